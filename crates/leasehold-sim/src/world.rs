//! The state of a run that its parts share.

use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use leasehold::node::{Claim, Verb, Vote};
use leasehold::{Lease, Name};

use crate::agenda::{Agenda, Nanos};
use crate::bug::Bug;
use crate::check::{Fact, Scene, order};
use crate::clock::NodeClock;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::journal::Journal;
use crate::ledger::HoldingId;
use crate::network::Network;
use crate::plan::Plan;
use crate::process::Process;
use crate::resource::Resource;
use crate::server::{Reply, Request, Server};
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
    journal: Mutex<Journal>,
    waiters: Mutex<Waiters>,
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
        Arc::new(Self {
            bug,
            agenda: Agenda::default(),
            network: Network::new(&plan, &dice),
            servers: servers.collect(),
            resource: Resource::new(plan.names),
            processes: Mutex::default(),
            names: (0..plan.names)
                .map(|name| Name::new(format!("name-{name}")).expect("a short name is valid"))
                .collect(),
            journal: Mutex::new(journal),
            waiters: Mutex::default(),
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

    /// Notes that a claim is sent to a node. Returns its owner value as the nodes see it.
    pub fn asked(&self, process: &Arc<Process>, verb: Verb, claim: &Claim) -> Arc<[u8]> {
        let name = self.names.iter().position(|name| name == claim.name());
        let name = name.expect("callers use the names there are");
        let owner = self.waiters().alias(claim.owner(), self.plan.seed);
        self.waiters()
            .sent(process, name, verb, (claim.token(), &owner));
        if !matches!(verb, Verb::Acquire | Verb::Wait) {
            return owner;
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
        if new && self.is_well() {
            let mut before = self.waiters().standing_before(name, claim.token());
            before.retain(|waiter| order::stands_everywhere(self, waiter));
            self.waiters().note_before(key, before);
        }
        owner
    }

    /// A caller has acquired a lease.
    pub fn granted(
        &self,
        process: &Arc<Process>,
        name: usize,
        token: u64,
        lease: Option<Weak<Lease>>,
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
                format!("{} holds name-{name} with token {token}", process.label())
            });
            journal.ledger.enter(process, name, token, lease, times)
        };
        self.check(Fact::Granted(id), Some(process));
        if let Err(what) = order::no_waiter_overtaken(self, token, &before) {
            self.violate(order::PROMISE, what);
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
        let (who, token) = (holding.process.label(), holding.token);
        journal.note(now, || format!("{who} releases token {token}"));
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
            let ask = match request {
                Request::Ask(ask) => ask,
                Request::Subscribe(_) => {
                    return format!("    n{server}: subscribes a client{late}");
                }
                _ => return format!("    n{server}: answers a handshake{late}"),
            };
            let (verb, claim) = (ask.verb, &ask.claim);
            let said = match reply.bare() {
                // Without host and process id, which differ from run to run.
                Reply::Vote(Vote::Held { holder, place, .. }) => {
                    let by = holder.label.as_deref().unwrap_or("another");
                    let kept = if holder.kept { ", kept" } else { "" };
                    let place = place.map_or(String::new(), |place| format!(", {place} before"));
                    format!("held by {by}, token {:?}{kept}{place}", holder.token)
                }
                Reply::Vote(vote) => vote.to_string(),
                Reply::Forgot => "another epoch".to_owned(),
                Reply::NoScript => "script not known".to_owned(),
                Reply::ReadOnly => "a replica".to_owned(),
                _ => "hello".to_owned(),
            };
            let (name, token) = (claim.name(), claim.token());
            format!("    n{server}: {verb:?} {name} token {token}: {said}{late}")
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
