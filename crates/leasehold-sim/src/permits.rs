//! A semaphore on a node during one request: what the library's own rules vote on.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::node::rules::{self, Constants};
use leasehold::node::{Claim, Record, SemaphoreRecord, Verb, Vote};
use leasehold::{Holder, Name};

use crate::record::NameRecord;
use crate::store::Entry;

/// A semaphore: its line, and the names among which its permits are.
pub struct NamedPermits<'a> {
    /// What the node stores about all other names.
    pub names: &'a mut BTreeMap<Name, Entry>,
    /// The key of the semaphore, with its line.
    pub line: NameRecord<'a>,
}

impl NamedPermits<'_> {
    fn key(&self) -> &Name {
        self.line.key_of_line()
    }
}

impl<'a> SemaphoreRecord for NamedPermits<'a> {
    type Line = NameRecord<'a>;

    fn line(&mut self) -> &mut NameRecord<'a> {
        &mut self.line
    }

    fn permits(&mut self) -> Option<u32> {
        let (permits, until) = self.line.entry.permits?;
        (until > self.line.now).then_some(permits)
    }

    fn set_permits(&mut self, permits: u32) {
        let until = self.line.fence_until(Duration::ZERO);
        self.line.entry.permits = Some((permits, until));
    }

    fn lock_of(&mut self, permit: u32) -> Option<(Holder, Option<Duration>)> {
        let key = self.key().permit(permit);
        let entry = self.names.get_mut(&key)?;
        entry.expire(self.line.now, self.line.bug);
        let (owner, until) = entry.lock.as_ref()?;
        let left = Duration::from_micros(until.saturating_sub(self.line.now));
        Some((Holder::parse(owner), Some(left)))
    }

    fn vote(&mut self, verb: Verb, claim: &Claim) -> Vote {
        let entry = self.names.entry(claim.name().clone()).or_default();
        entry.expire(self.line.now, self.line.bug);
        let mut record = NameRecord {
            entry,
            ask: self.line.ask,
            now: self.line.now,
            constants: self.line.constants,
            bug: self.line.bug,
            subscriptions: self.line.subscriptions,
        };
        let (vote, write) = rules::vote(&record.view(claim.owner()), verb, claim);
        record.write(write, claim);
        vote
    }

    fn clock(&self) -> (u64, u64, Constants) {
        let floor = self.line.view(&[]).floor;
        (floor, self.line.now, self.line.constants)
    }
}
