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
    /// It waits for a permit: what is known about its order.
    pub ticket_holder: TicketHolder,
}

/// A waiter for a permit.
#[derive(Clone, Copy, Default)]
pub struct TicketHolder {
    /// It has stood in line on all nodes.
    pub stood: bool,
    /// It has sent its ACQUIRE since its last WAIT.
    pub takes: bool,
    /// How many later ones have got a permit before it.
    pub overtaken: u32,
    /// When it sent its last WAIT.
    asked_at: Nanos,
}

/// A waiter that has sent no WAIT for this long may have a clock that is too slow, and nodes remove it
/// from the line. Or it has got a permit that its caller, which wanted several, never saw.
const SILENT: Nanos = 2_500_000_000;

impl TicketHolder {
    /// Whether it waits, and must not be overtaken.
    fn waits(&self, now: Nanos) -> bool {
        self.stood && !self.takes && now.saturating_sub(self.asked_at) < SILENT
    }
}

/// An attempt to acquire the lock: process, life, name and token.
pub type Attempt = (usize, u32, usize, u64);

/// All waiters.
#[derive(Default)]
pub struct Waiters {
    /// The callers that wait in line, with the names they wait for.
    callers: BTreeMap<u64, (usize, Arc<Process>)>,
    /// How many calls for several names, which have not acquired all of them, may hold each name.
    collecting: BTreeMap<usize, usize>,
    entered: u64,
    in_line: Vec<Waiter>,
    /// The waiters that were ahead of an attempt when it sent its ACQUIRE.
    before: BTreeMap<Attempt, Vec<Waiter>>,
    /// The tickets that requests for permits have named.
    tickets: BTreeMap<Attempt, Arc<[u8]>>,
    /// The tickets that were in line when a request for a permit was sent that named a later one, or
    /// none.
    earlier: BTreeMap<Attempt, Vec<Arc<[u8]>>>,
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

/// A call for several names that may hold these while it waits for others, until dropped.
pub struct Collecting {
    world: Arc<World>,
    names: Vec<usize>,
}

impl Collecting {
    /// Registers a call that may hold these names.
    pub fn new(world: &Arc<World>, names: Vec<usize>) -> Self {
        for name in &names {
            *world.waiters().collecting.entry(*name).or_default() += 1;
        }
        let world = Arc::clone(world);
        Self { world, names }
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        for name in &self.names {
            if let Some(calls) = self.world.waiters().collecting.get_mut(name) {
                *calls = calls.saturating_sub(1);
            }
        }
    }
}

impl Waiters {
    /// Whether a call for several names that waits for another one may hold this name.
    pub fn may_be_held(&self, name: usize) -> bool {
        self.collecting.get(&name).is_some_and(|calls| *calls > 0)
    }

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
        now: Nanos,
    ) {
        let known = self.in_line.iter().position(|s| s.owner == *owner);
        match (verb, known) {
            (Verb::Wait, None) => self.in_line.push(Waiter {
                process: Arc::clone(process),
                name,
                ticket,
                owner: Arc::clone(owner),
                ticket_holder: TicketHolder {
                    asked_at: now,
                    ..TicketHolder::default()
                },
            }),
            (Verb::Wait, Some(known)) => {
                let waiter = &mut self.in_line[known].ticket_holder;
                (waiter.takes, waiter.asked_at) = (false, now);
            }
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

    /// The claims in line that are not to be overtaken by a claim for a permit, which names this
    /// ticket or none.
    pub fn standing_before_ticket(
        &mut self,
        line: usize,
        ticket: Option<&Arc<[u8]>>,
    ) -> Vec<Waiter> {
        let own = |waiter: &&mut Waiter| Some(&waiter.owner) == ticket;
        let own = self.in_line.iter_mut().find(own);
        let number = match (own, ticket) {
            (Some(own), _) => {
                own.ticket_holder.takes = true;
                own.ticket
            }
            (None, Some(_)) => 0,
            (None, None) => u64::MAX,
        };
        self.standing_before(line, number)
    }

    /// Notes that these claims stand in line on all nodes.
    pub fn note_standing(&mut self, standing: &[Waiter]) {
        for waiter in standing {
            let mut in_line = self.in_line.iter_mut();
            if let Some(known) = in_line.find(|known| known.owner == waiter.owner) {
                known.ticket_holder.stood = true;
            }
        }
    }

    /// Notes that a request for a permit is sent, which names this ticket or none, while these claims
    /// are before it.
    pub fn note_request(
        &mut self,
        attempt: Attempt,
        ticket: Option<Arc<[u8]>>,
        before: &[Waiter],
        now: Nanos,
    ) {
        if let Some(ticket) = ticket {
            self.tickets.insert(attempt, ticket);
        }
        let is_before = |waiter: &&Waiter| before.iter().any(|before| before.owner == waiter.owner);
        let waits = |waiter: &&Waiter| waiter.ticket_holder.waits(now);
        let waiting = self.in_line.iter().filter(is_before).filter(waits);
        let waiting: Vec<_> = waiting.map(|waiter| Arc::clone(&waiter.owner)).collect();
        if !waiting.is_empty() {
            self.earlier.insert(attempt, waiting);
        }
    }

    /// An attempt has acquired a permit. Returns the waiter that was overtaken most often, if it was
    /// overtaken now.
    pub fn granted_permit(&mut self, attempt: Attempt, now: Nanos) -> Option<Waiter> {
        if let Some(ticket) = self.tickets.remove(&attempt) {
            self.handed_over += 1;
            self.in_line.retain(|waiter| waiter.owner != ticket);
        }
        let earlier = self.earlier.remove(&attempt)?;
        let overtaken = self.in_line.iter_mut().filter(|waiter| {
            let waits = waiter.ticket_holder.waits(now) && waiter.process.is_running();
            waits && earlier.contains(&waiter.owner)
        });
        let overtaken = overtaken.map(|waiter| {
            waiter.ticket_holder.overtaken += 1;
            &*waiter
        });
        let most = overtaken.max_by_key(|waiter| waiter.ticket_holder.overtaken);
        most.cloned()
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
