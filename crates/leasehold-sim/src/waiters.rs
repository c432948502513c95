//! Who waits: the callers, and the claims that stand in line for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leasehold::node::Verb;

use crate::agenda::Nanos;
use crate::process::Process;
use crate::world::World;

/// A claim that stands in line, as far as its client goes.
#[derive(Clone)]
pub struct Stander {
    /// Whose.
    pub process: Arc<Process>,
    /// For which name.
    pub name: usize,
    /// With which ticket.
    pub ticket: u64,
    /// Its owner value, as the nodes know it.
    pub owner: Arc<[u8]>,
}

/// Who asks for the lock: process, life, name and token.
pub type Asker = (usize, u32, usize, u64);

/// All who wait.
#[derive(Default)]
pub struct Waiters {
    /// The callers that wait in line, with the names they wait for.
    callers: BTreeMap<u64, (usize, Arc<Process>)>,
    entered: u64,
    standers: Vec<Stander>,
    /// Those who stood before somebody when it asked for the lock.
    before: BTreeMap<Asker, Vec<Stander>>,
    /// Since when a name is free though somebody waits for it.
    pub idle_since: BTreeMap<usize, Nanos>,
    /// Owner values as the nodes know them.
    aliases: HashMap<Box<[u8]>, Arc<[u8]>>,
    /// How many leases went to one who stood in line.
    pub handed_over: u64,
    /// How often it was looked at whether somebody was overtaken.
    pub orders_seen: u64,
}

/// A caller that waits in line, until dropped.
pub struct InLine {
    world: Arc<World>,
    id: u64,
}

impl InLine {
    /// A caller of this process waits for the name.
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
    /// Whether anybody who runs waits in line for the name.
    pub fn wait_for(&self, name: usize) -> bool {
        let mut callers = self.callers.values();
        callers.any(|(of, process)| *of == name && process.is_running())
    }

    /// The owner value by which the nodes know an attempt. Those of the library are random,
    /// and among equal tickets the smaller value is served first: the runs of a seed would
    /// differ.
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

    /// A claim with this token and owner value is sent to a node.
    pub fn sent(
        &mut self,
        process: &Arc<Process>,
        name: usize,
        verb: Verb,
        (ticket, owner): (u64, &Arc<[u8]>),
    ) {
        let known = self.standers.iter().position(|s| s.owner == *owner);
        match (verb, known) {
            (Verb::Wait, None) => self.standers.push(Stander {
                process: Arc::clone(process),
                name,
                ticket,
                owner: Arc::clone(owner),
            }),
            (Verb::Release { .. }, Some(known)) => {
                self.standers.swap_remove(known);
            }
            _ => {}
        }
    }

    /// Those who stand in line for the name with a smaller ticket, as far as their clients
    /// go.
    pub fn standing_before(&mut self, name: usize, ticket: u64) -> Vec<Stander> {
        self.standers.retain(|stander| !stander.process.is_dead());
        let standers = self.standers.iter();
        let before = standers.filter(|s| s.name == name && s.ticket < ticket);
        before.cloned().collect()
    }

    /// These stood in line on all nodes when this one asked for the lock.
    pub fn note_before(&mut self, asker: Asker, before: Vec<Stander>) {
        if !before.is_empty() {
            self.orders_seen += before.len() as u64;
            self.before.insert(asker, before);
        }
    }

    /// Somebody has got the lease: who stood before it when it asked.
    pub fn granted(&mut self, asker: Asker) -> Vec<Stander> {
        let (slot, life, name, ticket) = asker;
        let stood = self.standers.iter().any(|s| {
            (s.name, s.ticket) == (name, ticket) && (s.process.slot, s.process.life) == (slot, life)
        });
        self.handed_over += u64::from(stood);
        self.before.remove(&asker).unwrap_or_default()
    }
}
