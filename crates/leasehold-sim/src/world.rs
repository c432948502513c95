//! The state of a run that its parts share.

use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::node::link::Reply as Said;
use leasehold::node::{Claim, Seat, Verb, Vote};
use leasehold::{Mode, Name};

use crate::agenda::{Agenda, Nanos};
use crate::bug::Bug;
use crate::check::once::Runs;
use crate::check::{Fact, Scene, limit, order};
use crate::clock::NodeClock;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::journal::Journal;
use crate::ledger::{Guard, HoldingId};
use crate::message::{Ask, Reply, Request};
use crate::network::Network;
use crate::plan::Plan;
use crate::process::Process;
use crate::resource::Resource;
use crate::semaphore::Semaphores;
use crate::server::Server;
use crate::subscriptions::{Channel, Notification};
use crate::sync::locked;
use crate::waiters::Waiters;

/// A run: its nodes, its processes, the network between them, and the record of what happened.
pub struct World {
    /// What the seed determined in advance.
    pub plan: Plan,
    /// The planted bug, if any.
    pub bug: Option<Bug>,
    /// The events to come.
    pub agenda: Agenda,
    /// The random numbers.
    pub dice: Dice,
    /// The connections.
    pub network: Network,
    /// The nodes.
    pub servers: Vec<Server>,
    /// The resources that the leases protect.
    pub resource: Resource,
    /// The processes that run now, by slot.
    pub processes: Mutex<Vec<Arc<Process>>>,
    /// The names that are locked.
    pub names: Vec<Name>,
    /// Which of them belong to semaphores.
    pub semaphores: Semaphores,
    /// The numbers of permits that holders of permits use.
    numbers: Mutex<limit::Numbers>,
    journal: Mutex<Journal>,
    waiters: Mutex<Waiters>,
    /// The runs of work that is done once per period, in the fault phase and without faults.
    runs: [Mutex<Runs>; 2],
    channels: AtomicU64,
    calm: AtomicBool,
    /// From when on there are no effects of faults, if it stays calm.
    well_from: AtomicU64,
    /// How many more processes may be killed though it is calm.
    victims: AtomicUsize,
    winding_down: AtomicBool,
    probing: AtomicBool,
    /// The number of callers at work.
    busy: AtomicUsize,
    /// How many of them are rivals, which only compete with the others.
    rivals: AtomicUsize,
}

/// A caller at work, until dropped.
pub struct Busy(Arc<World>);

/// A caller that only competes with others, until dropped.
pub struct Rival(Busy);

impl Drop for Rival {
    fn drop(&mut self) {
        self.0.0.rivals.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl World {
    /// A world with nodes, and without processes.
    pub fn new(plan: Plan, bug: Option<Bug>, timeline: bool) -> Arc<Self> {
        let dice = Dice::new(plan.seed, 1);
        let mut journal = Journal::new(timeline);
        let skew_us = plan.constants.skew.as_micros() as i64;
        let servers = (0..plan.nodes).map(|_| {
            // The clocks of the nodes are close together, as the skew requires.
            let offset_us = dice.signed(-skew_us / 8, skew_us / 8);
            let most = plan.drift_ppm() as u64;
            let ppm = dice.pick(&[0, most, dice.between(0, most)]);
            if ppm > 0 {
                journal.strike(Fault::NodeDrift);
            }
            Server::new(NodeClock::new(ppm, dice.between(0, 4_000_000), offset_us))
        });
        // Two more for work that is done once per period.
        let names = (0..plan.names + 2)
            .map(|name| Name::new(format!("name-{name}")).expect("a short name is valid"));
        let mut names = names.collect();
        let semaphores = Semaphores::new(&plan.kinds, &mut names);
        Arc::new(Self {
            bug,
            agenda: Agenda::default(),
            network: Network::new(&plan, &dice),
            servers: servers.collect(),
            resource: Resource::new(names.len()),
            processes: Mutex::default(),
            names,
            semaphores,
            numbers: Mutex::default(),
            journal: Mutex::new(journal),
            waiters: Mutex::default(),
            runs: Default::default(),
            channels: AtomicU64::new(0),
            calm: AtomicBool::new(false),
            well_from: AtomicU64::new(0),
            victims: AtomicUsize::new(0),
            winding_down: AtomicBool::new(false),
            probing: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            rivals: AtomicUsize::new(0),
            dice,
            plan,
        })
    }

    /// The name of the work that is done once per period.
    pub fn once_name(&self) -> usize {
        self.plan.names
    }

    /// The same, when there are no faults.
    pub fn once_name_in_calm(&self) -> usize {
        self.plan.names + 1
    }

    /// The runs of the work of this name.
    pub fn runs(&self, name: usize) -> std::sync::MutexGuard<'_, Runs> {
        locked(&self.runs[name - self.plan.names])
    }

    /// Identifies the memory of each node.
    pub fn memories(&self) -> Vec<u64> {
        self.servers.iter().map(Server::memory).collect()
    }

    /// Runs all events until then, or until a promise is broken.
    pub fn run_until(self: &Arc<Self>, until: Nanos) {
        while !self.is_violated() {
            match self.agenda.next(until) {
                Some(event) => event(self),
                None => return,
            }
        }
    }

    /// The journal.
    pub fn journal(&self) -> std::sync::MutexGuard<'_, Journal> {
        locked(&self.journal)
    }

    /// Whether a promise has been broken.
    pub fn is_violated(&self) -> bool {
        self.journal().violation.is_some()
    }

    /// Writes a line of the timeline.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let now = self.agenda.now();
        self.journal().note(now, line);
    }

    /// Counts a fault.
    pub fn strike(&self, fault: Fault) {
        self.journal().strike(fault);
    }

    /// Whether faults have stopped.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// Ends the faults, or allows them again.
    pub fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
        self.mark_unwell_for(self.plan.longest_settling());
    }

    /// Whether there have been no faults for so long that every process has noticed.
    pub fn is_well(&self) -> bool {
        self.is_calm() && self.agenda.now() >= self.well_from.load(Ordering::Relaxed)
    }

    /// Marks the run as affected by faults until `span` has passed.
    pub fn mark_unwell_for(&self, span: Nanos) {
        let from = self.agenda.now().saturating_add(span);
        self.well_from.fetch_max(from, Ordering::Relaxed);
    }

    /// Allows this many processes to be killed though it is calm.
    pub fn set_victims(&self, victims: usize) {
        self.victims.store(victims, Ordering::Relaxed);
    }

    /// Whether another process may be killed. If it is calm, allows one fewer from then on.
    pub fn take_victim(&self) -> bool {
        let one_fewer = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        !self.is_calm() || self.victims.fetch_update(order, order, one_fewer).is_ok()
    }

    /// The waiters.
    pub fn waiters(&self) -> std::sync::MutexGuard<'_, Waiters> {
        locked(&self.waiters)
    }

    /// A new channel.
    pub fn new_channel(&self) -> Channel {
        self.channels.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a process with this label runs now.
    pub fn is_alive(&self, label: Option<&str>) -> bool {
        let processes = locked(&self.processes);
        let mut alive = processes.iter().filter(|process| !process.is_dead());
        alive.any(|process| Some(&*process.label()) == label)
    }

    /// Whether callers finish their current work, and then stop.
    pub fn is_winding_down(&self) -> bool {
        self.winding_down.load(Ordering::Relaxed)
    }

    /// Makes callers stop, or start again.
    pub fn set_winding_down(&self, winding_down: bool) {
        self.winding_down.store(winding_down, Ordering::Relaxed);
    }

    /// Whether callers acquire every name, to check that there are no effects of faults left.
    pub fn is_probing(&self) -> bool {
        self.probing.load(Ordering::Relaxed)
    }

    /// Makes callers acquire every name, or ends that.
    pub fn set_probing(&self, probing: bool) {
        self.probing.store(probing, Ordering::Relaxed);
    }

    /// Counts a caller at work.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Counts a rival at work.
    pub fn rival(self: &Arc<Self>) -> Rival {
        self.rivals.fetch_add(1, Ordering::Relaxed);
        Rival(self.busy())
    }

    /// Whether any caller is at work that is not a rival.
    pub fn has_non_rivals(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > self.rivals.load(Ordering::Relaxed)
    }

    /// Whether any caller is at work.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// The owner value, as the nodes see it, of the claim that this one replaces.
    pub fn replaced_by(&self, claim: &Claim) -> Option<Arc<[u8]>> {
        let replaced = claim.replaces()?;
        Some(self.waiters().alias(replaced, self.plan.seed))
    }

    /// The seat of a claim, as the nodes see it.
    pub fn seat_of(&self, claim: &Claim) -> Option<Seat> {
        let seat = claim.seat()?;
        Some(match self.ticket_of(claim) {
            Some(ticket) => seat.copied().with_ticket(&*ticket),
            None => seat.copied(),
        })
    }

    /// The owner value, as the nodes see it, of the ticket that a claim for a permit names.
    fn ticket_of(&self, claim: &Claim) -> Option<Arc<[u8]>> {
        let seat = claim.seat().filter(|seat| seat.number().is_some())?;
        let ticket = seat.place(claim.owner())?;
        Some(self.waiters().alias(ticket, self.plan.seed))
    }

    /// The numbers of permits that holders of permits use.
    pub fn numbers(&self) -> std::sync::MutexGuard<'_, limit::Numbers> {
        locked(&self.numbers)
    }

    /// The number of a key among the names.
    pub fn index_of(&self, key: &Name) -> usize {
        let known = self.names.iter().position(|name| name == key);
        known.expect("callers use the names there are")
    }

    /// Notes that a claim is sent to a node.
    pub fn asked(&self, process: &Arc<Process>, verb: Verb, claim: &Claim) {
        let name = self.index_of(claim.name());
        let owner = self.waiters().alias(claim.owner(), self.plan.seed);
        self.waiters().sent(
            process,
            name,
            verb,
            (claim.token(), &owner),
            self.agenda.now(),
        );
        if !matches!(verb, Verb::Acquire | Verb::Wait) {
            return;
        }
        let key = (process.slot, process.life, name, claim.token());
        let asked = (verb, self.agenda.now());
        let new = match self.journal().asked.entry(key) {
            // A claim that stood in line sends its ACQUIRE.
            Entry::Occupied(mut entry) if verb == Verb::Acquire && entry.get().0 != verb => {
                entry.insert(asked);
                true
            }
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(asked);
                true
            }
        };
        if let (Some(seat), true) = (claim.seat(), new && verb == Verb::Acquire) {
            let (ticket, line) = (self.ticket_of(claim), self.index_of(seat.semaphore()));
            let mut before = match self.is_well() {
                true => self.waiters().standing_before_ticket(line, ticket.as_ref()),
                false => Vec::new(),
            };
            let all = before.clone();
            before.retain(|waiter| order::stands_everywhere(self, waiter));
            let waiters = &mut *self.waiters();
            waiters.note_standing(&before);
            waiters.note_request(key, ticket, &all, self.agenda.now());
            waiters.note_before(key, before);
            return;
        }
        if new && self.is_well() && claim.seat().is_none() {
            let mut before = self.waiters().standing_before(name, claim.token());
            before.retain(|waiter| order::stands_everywhere(self, waiter));
            self.waiters().note_before(key, before);
        }
    }

    /// A caller has acquired a lease.
    pub fn granted(
        &self,
        process: &Arc<Process>,
        name: usize,
        (token, mode): (u64, Mode),
        guard: Option<Guard>,
    ) -> HoldingId {
        let now = self.agenda.now();
        let key = (process.slot, process.life, name, token);
        let before = {
            let waiters = &mut *self.waiters();
            waiters.idle_since.remove(&name);
            waiters.granted(key)
        };
        let id = {
            let journal = &mut *self.journal();
            let times = (journal.began(key, self.plan.mode, now), now);
            journal.note(now, || {
                let how = match mode {
                    Mode::Shared => "reads",
                    _ => "holds",
                };
                let (who, name) = (process.label(), &self.names[name]);
                format!("{who} {how} {name} with token {token}")
            });
            let claim = (token, mode);
            journal.ledger.enter(process, name, claim, guard, times)
        };
        self.check(Fact::Granted(id), Some(process));
        if let Err(what) = order::no_waiter_overtaken(self, token, &before) {
            self.violate(order::PROMISE, what);
        }
        if let Some(semaphore) = self.semaphores.of_permit(name) {
            let overtaken = {
                let waiters = &mut *self.waiters();
                waiters.idle_since.remove(&semaphore.line());
                waiters.granted_permit(key, now)
            };
            // Beyond the assumptions, round trips may take longer than nodes wait for a silent waiter.
            let order = overtaken
                .as_ref()
                .filter(|_| self.plan.mode == crate::plan::Mode::Within)
                .map_or(Ok(()), order::not_overtaken_often);
            if let Err(what) = order {
                self.violate(order::PROMISE, what);
            }
            if let Err(what) = limit::not_exceeded(self, semaphore) {
                self.violate(limit::PROMISE, what);
            }
        }
        id
    }

    /// A holder was notified that its lease is lost.
    pub fn loss_notified(&self, id: HoldingId) {
        let process = {
            let now = self.agenda.now();
            let journal = &mut *self.journal();
            journal.ledger.loss_notified(id);
            let holding = journal.ledger.get(id);
            let (process, token) = (Arc::clone(&holding.process), holding.token);
            journal.note(now, || {
                format!(
                    "{} is notified of the loss of token {token}",
                    process.label()
                )
            });
            process
        };
        self.check(Fact::LossNotified(id), Some(&process));
    }

    /// A holder has released its lease, or is dead.
    pub fn over(&self, id: HoldingId) {
        let now = self.agenda.now();
        let journal = &mut *self.journal();
        journal.ledger.over(id);
        let holding = journal.ledger.get(id);
        // A process that is killed drops its leases in an order that depends on other runtimes: the ids
        // of tasks are counted for all of them.
        if !holding.process.is_dead() {
            let (who, token) = (holding.process.label(), holding.token);
            journal.note(now, || format!("{who} releases token {token}"));
        }
    }

    /// Passes a fact to all checkers.
    pub fn check(&self, fact: Fact, process: Option<&Process>) {
        let now = self.agenda.now();
        let local = process.map(|process| process.clock.at(now));
        self.journal().check(fact, |ledger| Scene {
            mode: self.plan.mode,
            now,
            ledger,
            local,
        });
    }

    /// Records a broken promise that is checked at the end.
    pub fn violate(&self, promise: &'static str, what: String) {
        let now = self.agenda.now();
        self.journal().violate(promise, now, what);
    }

    /// Adds a node's answer to the timeline.
    pub fn trace_vote(&self, server: usize, request: &Request, reply: &Reply, late: bool) {
        let now = self.agenda.now();
        let journal = &mut *self.journal();
        journal.note(now, || {
            let late = if late { ", too late" } else { "" };
            let said = match reply {
                Reply::Script(said) => said.iter().map(tell).collect::<Vec<_>>().join("; "),
                Reply::Bool(said) => said.to_string(),
                Reply::ReadOnly => "a replica".to_owned(),
                _ => "done".to_owned(),
            };
            let claim = |ask: &Ask| {
                let (verb, name, token) = (ask.verb, ask.claim.name(), ask.claim.token());
                let plain = if ask.is_plain_delete { " plainly" } else { "" };
                format!("{verb:?}{plain} {name} token {token}")
            };
            let asked = match request {
                Request::Script(asks) => asks.iter().map(claim).collect::<Vec<_>>().join("; "),
                Request::Set(ask) => format!("SET for {}", claim(ask)),
                Request::Delete(ask) => format!("DEL for {}", claim(ask)),
                Request::Look(name) => format!("a line for {name}"),
                Request::Probe => "identity".to_owned(),
                Request::Subscribe(_) => "subscription".to_owned(),
                _ => "handshake".to_owned(),
            };
            format!("    n{server}: {asked}: {said}{late}")
        });
    }

    /// Adds a notification to the timeline.
    pub fn trace_notification(
        &self,
        server: usize,
        process: &Process,
        notification: &Notification,
    ) {
        self.note(|| {
            let Notification {
                name, owner, news, ..
            } = notification;
            let who = process.label();
            let ticket = leasehold::Holder::parse(owner).token.unwrap_or(0);
            format!("    n{server}: notifies {who} about {name} ticket {ticket}: {news:?}")
        });
    }

    /// The process in a slot.
    pub fn process(&self, slot: usize) -> Arc<Process> {
        Arc::clone(&locked(&self.processes)[slot])
    }

    /// Drops everything, so that nothing of the run stays in memory.
    pub fn clear(&self) {
        self.agenda.clear();
        let processes = std::mem::take(&mut *locked(&self.processes));
        for process in &processes {
            process.kill();
        }
        self.network.clear();
        self.journal().ledger.clear();
        *self.waiters() = Waiters::default();
    }
}

/// What a node says about a claim, without host and process id, which differ from run to run.
fn tell(said: &Said) -> String {
    match said {
        Said::Answer(Ok(Vote::Held { holder, place, .. })) => {
            let by = holder.label.as_deref().unwrap_or("another");
            let kept = if holder.kept { ", kept" } else { "" };
            let place = place.map_or(String::new(), |place| format!(", {place} before"));
            format!("held by {by}, token {:?}{kept}{place}", holder.token)
        }
        Said::Answer(Ok(vote)) => vote.to_string(),
        Said::GrantedAt(_) => Vote::Granted.to_string(),
        Said::Alone => "not the common case".to_owned(),
        Said::Forgot => "another epoch".to_owned(),
        Said::NoScript => "script not known".to_owned(),
        _ => "a replica".to_owned(),
    }
}
