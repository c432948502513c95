//! Everything of one run that its parts share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use leasehold::node::{Claim, Vote};
use leasehold::{Lease, Name};

use crate::agenda::{Agenda, Nanos};
use crate::bug::Bug;
use crate::check::{Fact, Scene};
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
use crate::sync::locked;

/// A run: its nodes, its processes, the network between them, and what happened.
pub struct World {
    /// What the seed decided in advance.
    pub plan: Plan,
    /// The rule that is broken on purpose.
    pub bug: Option<Bug>,
    /// What is due.
    pub agenda: Agenda,
    /// What is left to chance.
    pub dice: Dice,
    /// Who is connected to whom.
    pub network: Network,
    /// The nodes.
    pub servers: Vec<Server>,
    /// What the leases protect.
    pub resource: Resource,
    /// The processes that run now, by slot.
    pub processes: Mutex<Vec<Arc<Process>>>,
    /// The names that are locked.
    pub names: Vec<Name>,
    journal: Mutex<Journal>,
    calm: AtomicBool,
    winding_down: AtomicBool,
    /// How many callers are at work.
    busy: AtomicUsize,
}

/// A caller at work, until dropped.
pub struct Busy(Arc<World>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl World {
    /// A world with nodes, and no process yet.
    pub fn new(plan: Plan, bug: Option<Bug>, timeline: bool) -> Arc<Self> {
        let dice = Dice::new(plan.seed, 1);
        let mut journal = Journal::new(timeline);
        let skew_us = plan.constants.skew.as_micros() as i64;
        let servers = (0..plan.nodes).map(|_| {
            // Nodes keep their clocks together, as the skew asks of them.
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
            calm: AtomicBool::new(false),
            winding_down: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            dice,
            plan,
        })
    }

    /// Lets everything happen that is due until then, or until a promise is broken.
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

    /// A fault struck.
    pub fn strike(&self, fault: Fault) {
        self.journal().strike(fault);
    }

    /// Whether faults have stopped.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// No more faults from now on, or again.
    pub fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    /// Whether callers finish what they are at, and then stop.
    pub fn is_winding_down(&self) -> bool {
        self.winding_down.load(Ordering::Relaxed)
    }

    /// Callers stop from now on, or begin again.
    pub fn set_winding_down(&self, winding_down: bool) {
        self.winding_down.store(winding_down, Ordering::Relaxed);
    }

    /// One more caller is at work.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Whether any caller is at work.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// An attempt is sent.
    pub fn asked(&self, process: &Process, claim: &Claim) {
        let name = self.names.iter().position(|name| name == claim.name());
        let Some(name) = name else { return };
        let now = self.agenda.now();
        let key = (process.slot, process.life, name, claim.token());
        self.journal().asked.entry(key).or_insert(now);
    }

    /// Somebody got a lease.
    pub fn granted(
        &self,
        process: &Arc<Process>,
        name: usize,
        token: u64,
        lease: Option<Weak<Lease>>,
    ) -> HoldingId {
        let now = self.agenda.now();
        let id = {
            let journal = &mut *self.journal();
            let key = (process.slot, process.life, name, token);
            let began = journal.asked.get(&key).copied().unwrap_or(0);
            let times = (began, now);
            journal.note(now, || {
                format!("{} holds name-{name} with token {token}", process.label())
            });
            journal.ledger.enter(process, name, token, lease, times)
        };
        self.check(Fact::Granted(id), Some(process));
        id
    }

    /// A holder was told that its lease is lost.
    pub fn told(&self, id: HoldingId) {
        let process = {
            let now = self.agenda.now();
            let journal = &mut *self.journal();
            journal.ledger.told(id);
            let holding = journal.ledger.get(id);
            let (process, token) = (Arc::clone(&holding.process), holding.token);
            journal.note(now, || {
                format!("{} is told that token {token} is lost", process.label())
            });
            process
        };
        self.check(Fact::Told(id), Some(&process));
    }

    /// A holder has given its lease back, or is gone.
    pub fn over(&self, id: HoldingId) {
        let now = self.agenda.now();
        let journal = &mut *self.journal();
        journal.ledger.over(id);
        let holding = journal.ledger.get(id);
        let (who, token) = (holding.process.label(), holding.token);
        journal.note(now, || format!("{who} gives token {token} back"));
    }

    /// Shows a fact to all checkers.
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

    /// A promise that is checked at the end was broken.
    pub fn violate(&self, promise: &'static str, what: String) {
        let now = self.agenda.now();
        self.journal().violate(promise, now, what);
    }

    /// Notes a node's answer.
    pub fn trace_vote(&self, server: usize, request: &Request, reply: &Reply, late: bool) {
        let now = self.agenda.now();
        let journal = &mut *self.journal();
        journal.note(now, || {
            let late = if late { ", too late" } else { "" };
            let Request::Ask(ask) = request else {
                return format!("    n{server}: shakes hands{late}");
            };
            let (verb, claim) = (ask.verb, &ask.claim);
            let said = match reply {
                // Without host and process id, which differ from run to run.
                Reply::Vote(Vote::Held { holder, .. }) => {
                    let by = holder.label.as_deref().unwrap_or("another");
                    let kept = if holder.kept { ", kept" } else { "" };
                    format!("held by {by}, token {:?}{kept}", holder.token)
                }
                Reply::Vote(vote) => vote.to_string(),
                Reply::Forgot => "another epoch".to_owned(),
                Reply::NoScript => "script not known".to_owned(),
                Reply::Hello { .. } => "hello".to_owned(),
            };
            let (name, token) = (claim.name(), claim.token());
            format!("    n{server}: {verb:?} {name} token {token}: {said}{late}")
        });
    }

    /// The process in a slot.
    pub fn process(&self, slot: usize) -> Arc<Process> {
        Arc::clone(&locked(&self.processes)[slot])
    }

    /// Takes everything apart, so that nothing of the run stays in memory.
    pub fn clear(&self) {
        self.agenda.clear();
        let processes = std::mem::take(&mut *locked(&self.processes));
        for process in &processes {
            process.kill();
        }
        self.network.clear();
        self.journal().ledger.clear();
    }
}
