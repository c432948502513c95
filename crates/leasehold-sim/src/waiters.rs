//! The callers that wait, and their claims in line.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leasehold::node::Verb;

use crate::agenda::Nanos;
use crate::process::Process;
use crate::world::World;

/// A claim in line, as its client sees it.
#[derive(Clone)]
pub struct Waiter {
    /// The process that waits.
    pub process: Arc<Process>,
    /// The name it waits for.
    pub name: usize,
    /// The ticket.
    pub ticket: u64,
    /// The owner value that the nodes see.
    pub owner: Arc<[u8]>,
}

/// An attempt to acquire the lock: process, life, name and token.
pub type Attempt = (usize, u32, usize, u64);

/// All waiters.
#[derive(Default)]
pub struct Waiters {
    /// The callers that wait in line, with the names they wait for.
    callers: BTreeMap<u64, (usize, Arc<Process>)>,
    entered: u64,
    in_line: Vec<Waiter>,
    /// The waiters that were ahead of an attempt when it sent its ACQUIRE.
    before: BTreeMap<Attempt, Vec<Waiter>>,
    /// Since when a name has been free though callers wait for it.
    pub idle_since: BTreeMap<usize, Nanos>,
    /// The owner values that the nodes see, by the library's own.
    aliases: HashMap<Box<[u8]>, Arc<[u8]>>,
    /// The number of leases that went to a waiter in line.
    pub handed_over: u64,
    /// How often the order of the line was checked.
    pub orders_seen: u64,
}

/// A caller that waits in line, until dropped.
pub struct InLine {
    world: Arc<World>,
    id: u64,
}

impl InLine {
    /// Registers a caller of this process that waits for the name.
    pub fn new(world: &Arc<World>, process: &Arc<Process>, name: usize) -> Self {
        let waiters = &mut *world.waiters();
        waiters.entered += 1;
        let id = waiters.entered;
        waiters.callers.insert(id, (name, Arc::clone(process)));
        let world = Arc::clone(world);
        Self { world, id }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.world.waiters().callers.remove(&self.id);
    }
}

impl Waiters {
    /// Whether a caller of a running process waits in line for the name.
    pub fn wait_for(&self, name: usize) -> bool {
        let mut callers = self.callers.values();
        callers.any(|(of, process)| *of == name && process.is_running())
    }

    /// Replaces an owner value by the one that the nodes see. The library's owner values are
    /// random, and of two equal tickets the one with the smaller owner value is served first.
    /// Without the replacement, two runs of one seed would differ.
    pub fn alias(&mut self, owner: &[u8], seed: u64) -> Arc<[u8]> {
        if let Some(alias) = self.aliases.get(owner) {
            return Arc::clone(alias);
        }
        let number = self.aliases.len() as u64 + 1;
        let mixed = (seed ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut alias = format!("{:016x}{number:024x}", mixed ^ mixed >> 31).into_bytes();
        alias.extend_from_slice(owner.get(40..).unwrap_or_default());
        let alias: Arc<[u8]> = alias.into();
        self.aliases.insert(owner.into(), Arc::clone(&alias));
        alias
    }

    /// Notes that a claim with this ticket and owner value is sent to a node.
    pub fn sent(
        &mut self,
        process: &Arc<Process>,
        name: usize,
        verb: Verb,
        (ticket, owner): (u64, &Arc<[u8]>),
    ) {
        let known = self.in_line.iter().position(|s| s.owner == *owner);
        match (verb, known) {
            (Verb::Wait, None) => self.in_line.push(Waiter {
                process: Arc::clone(process),
                name,
                ticket,
                owner: Arc::clone(owner),
            }),
            (Verb::Release { .. }, Some(known)) => {
                self.in_line.swap_remove(known);
            }
            _ => {}
        }
    }

    /// The claims in line for the name with a smaller ticket, as their clients see it.
    pub fn standing_before(&mut self, name: usize, ticket: u64) -> Vec<Waiter> {
        self.in_line.retain(|waiter| !waiter.process.is_dead());
        let in_line = self.in_line.iter();
        let before = in_line.filter(|s| s.name == name && s.ticket < ticket);
        before.cloned().collect()
    }

    /// Notes that these claims stood in line on all nodes when this attempt sent its ACQUIRE.
    pub fn note_before(&mut self, attempt: Attempt, before: Vec<Waiter>) {
        if !before.is_empty() {
            self.orders_seen += before.len() as u64;
            self.before.insert(attempt, before);
        }
    }

    /// An attempt has acquired the lease. Returns the claims that were ahead of it when it sent
    /// its ACQUIRE.
    pub fn granted(&mut self, attempt: Attempt) -> Vec<Waiter> {
        let (slot, life, name, ticket) = attempt;
        let stood = self.in_line.iter().any(|s| {
            (s.name, s.ticket) == (name, ticket) && (s.process.slot, s.process.life) == (slot, life)
        });
        self.handed_over += u64::from(stood);
        self.before.remove(&attempt).unwrap_or_default()
    }
}
