//! The stage of a run: processes start, faults strike, all is healed, and it is looked at
//! what is left.

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
use crate::nemesis;
use crate::network::MOST_TTLS_LATE;
use crate::plan::{Mode, Plan};
use crate::process::{Process, Source};
use crate::sync::locked;
use crate::world::World;

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plan that it followed.
    pub plan: Plan,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// How often each kind of fault struck.
    pub faults: FaultCounts,
    /// How many leases were taken.
    pub leases: usize,
    /// How many of them went to one who stood in line.
    pub handed_over: u64,
    /// How often it was looked at whether somebody was overtaken.
    pub orders_seen: u64,
    /// How much time passed in it.
    pub simulated: Duration,
    /// How many events there were.
    pub events: u64,
    /// Who held what, and which fault struck, if that was asked for.
    pub timeline: String,
}

/// Runs a seed from beginning to end.
pub fn run(seed: u64, bug: Option<Bug>, timeline: bool) -> Report {
    Bug::plant(bug);
    let world = World::new(Plan::draw(seed), bug, timeline);
    for slot in 0..world.plan.processes {
        start(&world, slot, 0);
    }
    turmoil(&world);
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
    // Some clocks are years behind; then tokens follow the nodes' fences, one by one.
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
    employ(world, &process);
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

/// Gives a process its callers.
fn employ(world: &Arc<World>, process: &Arc<Process>) {
    if let Some(patience) = world.probing() {
        return probe(world, process, patience);
    }
    if world.is_winding_down() {
        return;
    }
    for _ in 0..world.plan.workers {
        spawn(world, process, |caller| caller.work());
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

fn everybody(world: &World) -> Vec<Arc<Process>> {
    locked(&world.processes).clone()
}

/// Faults strike; perhaps with a long lull in between.
fn turmoil(world: &Arc<World>) {
    nemesis::start(world);
    snapshots(world);
    audits(world);
    let Some((at, duration)) = world.plan.lull else {
        return world.run_until(world.plan.turmoil);
    };
    world.run_until(at);
    wind_down(world);
    if world.is_violated() {
        return;
    }
    world.strike(Fault::Lull);
    world.note(|| format!("** nobody wants anything for {} s", duration / SECOND));
    world.run_until(world.agenda.now() + duration);
    // Meanwhile some were started anew, and have forgotten what they knew of the nodes.
    for slot in 0..world.plan.processes {
        if world.dice.chance(0.5) {
            nemesis::replace(world, slot);
        }
    }
    world.set_winding_down(false);
    world.set_calm(false);
    for process in everybody(world) {
        employ(world, &process);
    }
    nemesis::start(world);
    snapshots(world);
    audits(world);
    world.run_until(world.agenda.now() + world.plan.turmoil / 2);
}

/// From time to time, nodes keep what they know, for a crash to come.
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

/// From time to time, everybody is looked at.
fn audits(world: &Arc<World>) {
    let every = world.plan.ttl.as_nanos() as Nanos / 8;
    world.agenda.enter(world.agenda.now() + every, |world| {
        if !world.is_calm() {
            world.check(Fact::Audit, None);
            audits(world);
        }
    });
}

/// How long the last callers may take, once all is well: a handful of them, each of whom
/// may have to wait for all others, and for nodes that have restarted.
fn patience(world: &World) -> Nanos {
    world.plan.longest_guard() + 60 * world.plan.longest_ttl() + 120 * SECOND
}

impl World {
    /// How long those who want every name are ready to wait; `None` if it is not their time.
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

/// All is well again: leases can be had, and nothing stays behind.
fn aftermath(world: &Arc<World>) {
    wind_down(world);
    // What is late has arrived, perhaps twice, and what it and the faults have left behind
    // has ended with its TTL.
    let ttl = world.plan.longest_ttl();
    let settled = (MOST_TTLS_LATE + 2) * ttl + world.plan.longest_guard();
    let settled = world.plan.by_slow_clocks(settled);
    let settled = settled.max(world.plan.longest_settling());
    // A promotion is noticed when a connection is next used, and the guard counts from then: by
    // the node's clock, or, if that was set back, from the handshake, which comes after the
    // guard of an earlier restart.
    let guards = match world.plan.mode {
        Mode::Within => 1,
        Mode::Beyond => 2,
    };
    for _ in 0..guards {
        world.run_until(world.agenda.now() + world.plan.by_slow_clocks(2 * SECOND));
        for process in everybody(world) {
            spawn(world, &process, |caller| caller.look_in());
        }
        world.run_until(world.agenda.now() + MILLI);
        wait_for_callers(world);
        world.run_until(world.agenda.now() + settled);
    }
    contest(world);
    // Beyond the assumptions, fences may be ahead of the nodes' clocks by nearly S, and then there is
    // no room for the lead of a client that is far away.
    if world.plan.rivals && world.plan.mode == Mode::Within {
        // What the contest has left, kept or held by the dead, is over.
        world.run_until(world.agenda.now() + world.plan.by_slow_clocks(ttl));
        rivalry(world);
    }
    shut_down(world);
    if let Err(what) = leftovers::nothing_on_nodes(world, false) {
        return world.violate(leftovers::PROMISE, what);
    }
    if let Err(what) = leftovers::no_tasks(&everybody(world)) {
        return world.violate(leftovers::PROMISE, what);
    }
    let dead = 2 * DEAD_AFTER.as_nanos() as Nanos;
    world.run_until(world.agenda.now() + ttl + dead);
    if let Err(what) = leftovers::nothing_on_nodes(world, true) {
        world.violate(leftovers::PROMISE, what);
    }
}

/// All want every name, many at a time, and some are killed over it.
fn contest(world: &Arc<World>) {
    world.set_probing(true);
    nemesis::haunt(world);
    for process in everybody(world) {
        employ(world, &process);
    }
    progress::watch(world);
    wait_for_callers(world);
    world.set_probing(false);
    world.set_victims(0);
}

/// One process wants every name from far away, all others are near and want it all the time.
fn rivalry(world: &Arc<World>) {
    let patience = Duration::from_nanos(progress::longest_hand_over(&world.plan));
    for process in everybody(world) {
        if process.slot == 0 {
            spawn(world, &process, move |caller| caller.outpost(patience));
            continue;
        }
        for name in 0..world.names.len() {
            spawn(world, &process, move |caller| caller.rival(name));
        }
    }
    // Not before the processes have begun.
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
    // A connection that broke unnoticed in the turmoil has to be made anew first, and both
    // that and the janitor pause for up to a second between two tries.
    let grace = world.plan.ttl + Duration::from_secs(8);
    for process in everybody(world) {
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
    for process in everybody(world) {
        let dropped = Arc::clone(&process);
        process.post(world, Source::Outside, move |_| {
            let client = locked(&dropped.client).take();
            drop(client);
        });
    }
    world.run_until(world.agenda.now() + MILLI);
}

impl Report {
    /// What the run's faults might do.
    pub fn mode(&self) -> Mode {
        self.plan.mode
    }
}
