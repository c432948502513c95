//! The course of a run: processes start, faults begin and end, and the checkers look at what is
//! left.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Client;
use leasehold::node::DEAD_AFTER;

use crate::agenda::{MILLI, Nanos, SECOND};
use crate::bug::Bug;
use crate::caller::{Caller, options_of};
use crate::check::{Fact, Violation, leftovers, progress};
use crate::clock::{ProcessClock, Watch};
use crate::dice::Dice;
use crate::fault::{Fault, FaultCounts};
use crate::link::Link;
use crate::message::SentCounts;
use crate::nemesis;
use crate::network::MOST_TTLS_LATE;
use crate::plan::{Mode, Plan};
use crate::process::{Process, Source};
use crate::sync::locked;
use crate::world::World;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its plan.
    pub plan: Plan,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// How often each kind of fault occurred.
    pub faults: FaultCounts,
    /// The number of leases acquired.
    pub leases: usize,
    /// The number of leases that went to a waiter in line.
    pub handed_over: u64,
    /// How often the order of the line was checked.
    pub orders_seen: u64,
    /// How calls were sent.
    pub sent: SentCounts,
    /// The simulated time.
    pub simulated: Duration,
    /// The number of events.
    pub events: u64,
    /// The timeline of holders and faults, if requested.
    pub timeline: String,
}

/// Runs a seed from beginning to end.
pub fn run(seed: u64, bug: Option<Bug>, timeline: bool) -> Report {
    Bug::plant(bug);
    let world = World::new(Plan::draw(seed), bug, timeline);
    for slot in 0..world.plan.processes {
        start(&world, slot, 0);
    }
    fault_phase(&world);
    if !world.is_violated() {
        aftermath(&world);
    }
    Bug::plant(None);
    let report = report(&world);
    world.clear();
    report
}

fn report(world: &World) -> Report {
    let mut journal = world.journal();
    let waiters = world.waiters();
    Report {
        plan: world.plan.clone(),
        violation: journal.violation.clone(),
        faults: journal.faults.clone(),
        leases: journal.ledger.taken(),
        handed_over: waiters.handed_over,
        orders_seen: waiters.orders_seen,
        sent: journal.sent,
        simulated: Duration::from_nanos(world.agenda.now()),
        events: world.agenda.happened(),
        timeline: journal.take_timeline(),
    }
}

/// Starts a process, for the first time or again.
pub fn start(world: &Arc<World>, slot: usize, life: u32) {
    let (plan, dice) = (&world.plan, &world.dice);
    let most = plan.drift_ppm();
    let ppm = dice.pick(&[0, most, -most, dice.signed(-most, most)]);
    // Some clocks are years behind. Tokens then follow the nodes' fences, one by one.
    let wall_us = match plan.slow_walls {
        true => dice.signed(-100_000_000_000_000, 0),
        false => dice.signed(-1_000_000, 1_000_000),
    };
    let process = Process::new(slot, life, ProcessClock::new(ppm, wall_us));
    if ppm != 0 {
        world.strike(Fault::ClientDrift);
    }
    if plan.slow_walls {
        world.strike(Fault::ClientStep);
    }
    {
        let processes = &mut *locked(&world.processes);
        match processes.get_mut(slot) {
            Some(earlier) => *earlier = Arc::clone(&process),
            None => processes.push(Arc::clone(&process)),
        }
    }
    world.note(|| format!("{} starts", process.label()));
    let started = Arc::clone(&process);
    process.post(world, Source::Outside, move |world| {
        let client = connect(world, &started);
        *locked(&started.client) = Some(client);
    });
    start_callers(world, &process);
}

fn connect(world: &Arc<World>, process: &Arc<Process>) -> Client {
    let constants = world.plan.constants;
    let mut builder = Client::builder()
        .time_source(Watch {
            world: Arc::clone(world),
            process: Arc::clone(process),
        })
        .jitter_seed(world.dice.seed())
        .skew(constants.skew)
        .fence_retention(constants.fence_retention)
        .options(options_of(world, process));
    builder = match constants.restart_guard {
        Some(guard) => builder.restart_guard(guard),
        None => builder.without_restart_guard(),
    };
    for server in 0..world.plan.nodes {
        builder = builder.custom_node(Link::new(world, process, server));
    }
    builder.build().expect("plans are drawn within the limits")
}

/// Starts the callers of a process.
fn start_callers(world: &Arc<World>, process: &Arc<Process>) {
    if let Some(patience) = world.probing() {
        return probe(world, process, patience);
    }
    if world.is_winding_down() {
        return;
    }
    for _ in 0..world.plan.workers {
        spawn(world, process, |caller| caller.work());
    }
    for _ in 0..2 * usize::from(world.plan.once) {
        spawn(world, process, |caller| caller.wants_results());
    }
}

fn spawn<F>(
    world: &Arc<World>,
    process: &Arc<Process>,
    task: impl FnOnce(Caller) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let of = Arc::clone(process);
    process.post(world, Source::Outside, move |world| {
        let Some(client) = locked(&of.client).clone() else {
            return;
        };
        tokio::spawn(task(Caller {
            world: Arc::clone(world),
            process: of,
            client,
            dice: Dice::new(world.dice.seed(), 2),
        }));
    });
}

fn all_processes(world: &World) -> Vec<Arc<Process>> {
    locked(&world.processes).clone()
}

/// The phase with faults, which may include a long lull.
fn fault_phase(world: &Arc<World>) {
    nemesis::start(world);
    snapshots(world);
    audits(world);
    let Some((at, duration)) = world.plan.lull else {
        return world.run_until(world.plan.fault_phase);
    };
    world.run_until(at);
    wind_down(world);
    if world.is_violated() {
        return;
    }
    world.strike(Fault::Lull);
    world.note(|| format!("** no requests for {} s", duration / SECOND));
    world.run_until(world.agenda.now() + duration);
    if let Some(jump_us) = world.plan.jump_us {
        nemesis::jump_ahead(world, jump_us);
    }
    // Some processes are started anew meanwhile, and have forgotten what they knew about the
    // nodes.
    for slot in 0..world.plan.processes {
        if world.dice.chance(0.5) {
            nemesis::replace(world, slot);
        }
    }
    if let Some(jump_us) = world.plan.jump_us {
        // The new processes connect. They send no other requests yet, so no token is granted by
        // clocks that are ahead.
        world.run_until(world.agenda.now() + 4 * world.plan.longest_round_trip());
        nemesis::jump_back(world, jump_us);
    }
    world.set_winding_down(false);
    world.set_calm(false);
    for process in all_processes(world) {
        start_callers(world, &process);
    }
    nemesis::start(world);
    snapshots(world);
    audits(world);
    world.run_until(world.agenda.now() + world.plan.fault_phase / 2);
}

/// From time to time, nodes save a snapshot, for a later crash.
fn snapshots(world: &Arc<World>) {
    let every = 2 * world.plan.ttl.as_nanos() as Nanos;
    world.agenda.enter(world.agenda.now() + every, |world| {
        if !world.is_calm() {
            for server in &world.servers {
                server.snapshot();
            }
            snapshots(world);
        }
    });
}

/// From time to time, all holders are checked.
fn audits(world: &Arc<World>) {
    let every = world.plan.ttl.as_nanos() as Nanos / 8;
    world.agenda.enter(world.agenda.now() + every, |world| {
        if !world.is_calm() {
            world.check(Fact::Audit, None);
            audits(world);
        }
    });
}

/// How long the last callers may take once there are no faults: a handful of them, each of which
/// may have to wait for all others, and for restarted nodes.
fn patience(world: &World) -> Nanos {
    world.plan.longest_guard() + 60 * world.plan.longest_ttl() + 120 * SECOND
}

impl World {
    /// How long the callers of a probe may wait for each name, or `None` outside of that phase.
    fn probing(&self) -> Option<Duration> {
        let patience = Duration::from_nanos(patience(self) / 4);
        self.is_probing().then_some(patience)
    }
}

/// Ends all faults, and lets the callers finish.
fn wind_down(world: &Arc<World>) {
    nemesis::heal(world);
    world.set_winding_down(true);
    wait_for_callers(world);
}

fn wait_for_callers(world: &Arc<World>) {
    let limit = world.agenda.now() + patience(world);
    while world.is_busy() && !world.is_violated() {
        if world.agenda.now() >= limit {
            let what = "callers are still waiting, long after all faults have ended";
            return world.violate(progress::PROMISE, what.to_owned());
        }
        let step = world.plan.ttl.as_nanos() as Nanos / 10;
        world.run_until((world.agenda.now() + step).min(limit));
    }
}

/// There are no faults any more: leases can be acquired, and nothing is left behind.
fn aftermath(world: &Arc<World>) {
    wind_down(world);
    // Late messages have arrived, perhaps twice, and the locks that they and the faults have left
    // behind have expired.
    let ttl = world.plan.longest_ttl();
    let settled = (MOST_TTLS_LATE + 2) * ttl + world.plan.longest_guard();
    let settled = world.plan.by_slow_clocks(settled);
    let settled = settled.max(world.plan.longest_settling());
    // A promotion is noticed when a connection is next used, and the guard counts from then. A
    // node that restarted before it was promoted gets no request until the guard of the restart is
    // over: so the promotion may be noticed, and a second guard begin, only after that.
    for _ in 0..2 {
        world.run_until(world.agenda.now() + world.plan.by_slow_clocks(2 * SECOND));
        for process in all_processes(world) {
            spawn(world, &process, |caller| caller.use_connections());
        }
        world.run_until(world.agenda.now() + MILLI);
        wait_for_callers(world);
        world.run_until(world.agenda.now() + settled);
    }
    resize(world);
    contest(world);
    if world.plan.once && world.plan.mode == Mode::Within {
        one_result(world);
    }
    if let (Some((name, permits)), Mode::Within) = (world.plan.semaphores().next(), world.plan.mode)
    {
        hand_out(world, name, permits);
    }
    // Beyond the assumptions, fences may be ahead of the nodes' clocks by nearly S, which leaves
    // no room for the lead of a far client.
    if world.plan.rivals && world.plan.mode == Mode::Within {
        // The locks that the contest has left, kept for `min_hold` or held by dead processes,
        // have expired.
        world.run_until(world.agenda.now() + world.plan.by_slow_clocks(ttl));
        rivalry(world);
    }
    shut_down(world);
    if let Err(what) = leftovers::nothing_on_nodes(world, false) {
        return world.violate(leftovers::PROMISE, what);
    }
    if let Err(what) = leftovers::no_tasks(&all_processes(world)) {
        return world.violate(leftovers::PROMISE, what);
    }
    let dead = 2 * DEAD_AFTER.as_nanos() as Nanos;
    world.run_until(world.agenda.now() + ttl + dead);
    if let Err(what) = leftovers::nothing_on_nodes(world, true) {
        world.violate(leftovers::PROMISE, what);
    }
}

/// Semaphores get the number of permits that most callers use.
fn resize(world: &Arc<World>) {
    let process = world.process(0);
    spawn(world, &process, |caller| caller.resizes());
    world.run_until(world.agenda.now() + MILLI);
    wait_for_callers(world);
}

/// All processes acquire every name, many at a time, and some are killed meanwhile.
fn contest(world: &Arc<World>) {
    world.set_probing(true);
    nemesis::kill_during_calm(world);
    for process in all_processes(world) {
        start_callers(world, &process);
    }
    progress::watch(world);
    wait_for_callers(world);
    world.set_probing(false);
    world.set_victims(0);
}

/// All processes want the same result.
fn one_result(world: &Arc<World>) {
    // Those that the contest has killed are started again.
    world.run_until(world.agenda.now() + world.plan.longest_settling());
    for process in all_processes(world) {
        spawn(world, &process, |caller| caller.wants_one_result());
    }
    world.run_until(world.agenda.now() + MILLI);
    wait_for_callers(world);
}

/// One process releases all permits of a semaphore at once, for which as many callers wait.
fn hand_out(world: &Arc<World>, name: usize, permits: u32) {
    // Those that the contest has killed are started again, and their locks have expired.
    world.run_until(world.agenda.now() + world.plan.longest_settling());
    spawn(world, &world.process(0), move |caller| {
        caller.hands_out(name, permits)
    });
    let processes = all_processes(world);
    for number in 0..permits as usize {
        let process = &processes[1 + number % (processes.len() - 1)];
        spawn(world, process, move |caller| {
            caller.wants_a_permit(name, permits)
        });
    }
    world.run_until(world.agenda.now() + MILLI);
    wait_for_callers(world);
}

/// One far process acquires every name while all others, which are near, acquire it again and
/// again.
fn rivalry(world: &Arc<World>) {
    let patience = Duration::from_nanos(progress::longest_hand_over(&world.plan));
    for process in all_processes(world) {
        if process.slot == 0 {
            spawn(world, &process, move |caller| caller.far_client(patience));
            continue;
        }
        for name in 0..world.plan.names {
            spawn(world, &process, move |caller| caller.rival(name));
        }
    }
    // Not before the processes have started.
    world.run_until(world.agenda.now() + MILLI);
    wait_for_callers(world);
}

fn probe(world: &Arc<World>, process: &Arc<Process>, patience: Duration) {
    for _ in 0..=world.plan.workers {
        spawn(world, process, move |caller| caller.probe(patience));
    }
}

/// Shuts all clients down, and drops them.
fn shut_down(world: &Arc<World>) {
    // A connection that broke unnoticed during the faults has to be opened again first. Both that
    // and the janitor pause for up to a second between two attempts.
    let grace = world.plan.ttl + Duration::from_secs(8);
    for process in all_processes(world) {
        spawn(world, &process, move |caller| async move {
            let busy = caller.world.busy();
            let owed = caller.client.shutdown(grace).await;
            if owed > 0 {
                let who = caller.process.label();
                let what = format!("{who}'s janitor still owes {owed} release(s)");
                caller.world.violate(leftovers::PROMISE, what);
            }
            drop(busy);
        });
    }
    wait_for_callers(world);
    for process in all_processes(world) {
        let dropped = Arc::clone(&process);
        process.post(world, Source::Outside, move |_| {
            let client = locked(&dropped.client).take();
            drop(client);
        });
    }
    world.run_until(world.agenda.now() + MILLI);
}

impl Report {
    /// The mode of the run.
    pub fn mode(&self) -> Mode {
        self.plan.mode
    }
}
