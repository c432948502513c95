//! What a node keeps: locks, fences and its epoch. It votes by the library's own rules.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::Name;
use leasehold::node::rules::{self, Constants, View, Write};
use leasehold::node::{Claim, Verb, Vote};

use crate::bug::Bug;

/// Since when a node has remembered everything, and in which run of it that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    run: u64,
    began_us: u64,
}

impl Epoch {
    /// No token up to here is granted.
    pub fn floor(self, constants: &Constants) -> u64 {
        self.began_us
            .saturating_add(constants.skew.as_micros() as u64)
    }
}

/// What a node is asked to do with a claim, as it goes over the wire.
pub struct Ask {
    /// What to do.
    pub verb: Verb,
    /// With which claim.
    pub claim: Claim,
    /// Whether nothing of the claim is on its way.
    pub settled: bool,
    /// What the connection knows of the node's epoch.
    pub epoch: Epoch,
}

/// The memory of a node. A clone is a snapshot.
#[derive(Clone, Default)]
pub struct Store {
    names: BTreeMap<Name, Entry>,
    epoch: Option<Epoch>,
}

#[derive(Clone, Default)]
struct Entry {
    /// The owner value, and until when.
    lock: Option<(Box<[u8]>, u64)>,
    /// The highest token granted, and until when it is remembered.
    fence: Option<(u64, u64)>,
}

impl Store {
    /// The handshake: the epoch, which begins now if the record of it is missing or from
    /// another run of the node.
    pub fn greet(&mut self, run: u64, now_us: u64) -> Epoch {
        match self.epoch {
            Some(epoch) if epoch.run == run => epoch,
            earlier => {
                // If the clock has gone back since the earlier epoch began, its floor holds on.
                let began_us = earlier.map_or(now_us, |e| e.began_us.max(now_us));
                *self.epoch.insert(Epoch { run, began_us })
            }
        }
    }

    /// Votes on a claim. `None`: the epoch is another than the connection thinks, so it has
    /// to shake hands again first.
    pub fn vote(
        &mut self,
        ask: &Ask,
        now_us: u64,
        constants: Constants,
        bug: Option<Bug>,
    ) -> Option<Vote> {
        let (claim, verb) = (&ask.claim, ask.verb);
        let entry = self.names.entry(claim.name().clone()).or_default();
        entry.expire(now_us, bug);
        let owned = entry.owner() == Some(claim.owner());
        if ask.settled && verb == (Verb::Release { keep: None }) {
            // Nothing can arrive late, so the fence may stay as it is.
            if owned {
                entry.unlock(bug);
            }
            return Some(Vote::Released { held: owned });
        }
        let view = entry.view(ask, now_us, constants, bug);
        let (vote, mut write) = match verb {
            Verb::Acquire => rules::acquire(&view, claim),
            Verb::Extend => rules::extend(&view, claim),
            Verb::Release { keep } => rules::release(&view, claim, keep),
        };
        // A fence that is there has not been forgotten: like the scripts, the common case
        // does not look at the epoch.
        let plain = match verb {
            Verb::Acquire => entry.fence.is_some() && matches!(write, Write::Lock { .. }),
            Verb::Extend => owned && entry.fence.is_some_and(|(f, _)| f == claim.token()),
            Verb::Release { .. } => entry.lock.is_some(),
        };
        if !plain && self.epoch != Some(ask.epoch) {
            return None;
        }
        if bug == Some(Bug::ExtendIgnoresFence) && verb == Verb::Extend && vote == Vote::Granted {
            let fence = claim.token();
            write = Write::Lock { fence };
        }
        entry.apply(write, claim, now_us, constants, bug);
        Some(vote)
    }

    /// Whether the epoch was noted in this run.
    pub fn is_of_run(&self, run: u64) -> bool {
        self.epoch.is_some_and(|epoch| epoch.run == run)
    }

    /// Forgets everything, the epoch too.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The locks that have not expired, as name, token of the owner, and whether only
    /// `min_hold` keeps it.
    pub fn locks(&self, now_us: u64) -> impl Iterator<Item = (&Name, leasehold::Holder)> {
        self.names.iter().filter_map(move |(name, entry)| {
            let (owner, until) = entry.lock.as_ref()?;
            (*until > now_us).then(|| (name, leasehold::Holder::parse(owner)))
        })
    }
}

impl Entry {
    fn owner(&self) -> Option<&[u8]> {
        self.lock.as_ref().map(|(owner, _)| &**owner)
    }

    fn expire(&mut self, now_us: u64, bug: Option<Bug>) {
        if self
            .lock
            .as_ref()
            .is_some_and(|(_, until)| *until <= now_us)
        {
            self.unlock(bug);
        }
        self.fence.take_if(|(_, until)| *until <= now_us);
    }

    fn unlock(&mut self, bug: Option<Bug>) {
        self.lock = None;
        if bug == Some(Bug::FenceDiesWithLock) {
            self.fence = None;
        }
    }

    /// What the rules are shown; without one of the rules, not quite the truth.
    fn view(&self, ask: &Ask, now: u64, constants: Constants, bug: Option<Bug>) -> View<'_> {
        let token = ask.claim.token();
        let mut view = View {
            lock: self.owner(),
            remaining: self
                .lock
                .as_ref()
                .map(|(_, until)| Duration::from_micros(until.saturating_sub(now))),
            fence: self.fence.map(|(fence, _)| fence),
            floor: ask.epoch.floor(&constants),
            now,
            constants,
        };
        match bug {
            Some(Bug::TiesWin) if ask.verb == Verb::Acquire => {
                view.fence = view.fence.map(|fence| fence - u64::from(fence == token));
            }
            Some(Bug::MissingFenceIsZero) => view.fence = view.fence.or(Some(0)),
            Some(Bug::NoFloor) => view.floor = 0,
            Some(Bug::ExtendIgnoresFence) if ask.verb == Verb::Extend => view.fence = Some(0),
            _ => {}
        }
        view
    }

    fn apply(
        &mut self,
        write: Write,
        claim: &Claim,
        now: u64,
        constants: Constants,
        bug: Option<Bug>,
    ) {
        let until = |span: Duration| now.saturating_add(span.as_micros() as u64);
        // As long as the rules ask for: F + S, the lock's own time, and an hour.
        let retention = constants.fence_retention + constants.skew + Duration::from_secs(3600);
        match write {
            Write::Nothing => {}
            Write::Lock { fence } => {
                self.lock = Some((claim.owner().into(), until(claim.ttl())));
                self.fence = Some((fence, until(retention + claim.ttl())));
            }
            Write::Unlock { fence } => {
                self.unlock(bug);
                if let Some(fence) = fence.filter(|_| bug != Some(Bug::FenceDiesWithLock)) {
                    self.fence = Some((fence, until(retention)));
                }
            }
            Write::Keep {
                value,
                remaining,
                fence,
            } => {
                self.lock = Some((value.into(), until(remaining)));
                if let Some(fence) = fence {
                    self.fence = Some((fence, until(retention + remaining)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    fn ask(token: u64, epoch: Epoch) -> Ask {
        let name = Name::new("a").expect("a name");
        let ttl = Duration::from_secs(10);
        Ask {
            verb: Verb::Acquire,
            claim: Claim::new(name, token.to_string().into_bytes(), token, ttl),
            settled: false,
            epoch,
        }
    }

    /// Found by a run: flushed while its clock was ahead, set back, and then restarted with
    /// everything it knew, a node handed out old tokens.
    #[test]
    fn a_restart_keeps_the_floor_of_a_clock_that_was_ahead() {
        let constants = Constants::for_nodes(1);
        let hour = 3_600_000_000;
        let mut store = Store::default();
        let ahead = store.greet(0, NOW + hour);
        let back = store.greet(1, NOW);
        assert_eq!(back.floor(&constants), ahead.floor(&constants));
        let vote = store.vote(&ask(NOW + 1, back), NOW, constants, None);
        assert!(matches!(vote, Some(Vote::Stale { .. })), "{vote:?}");
    }

    #[test]
    fn another_epoch_than_the_connection_knows_is_told() {
        let constants = Constants::for_nodes(1);
        let mut store = Store::default();
        let epoch = store.greet(0, NOW);
        let token = epoch.floor(&constants) + 1;
        store.clear();
        assert_eq!(
            store.vote(&ask(token, epoch), NOW + 1, constants, None),
            None
        );
        let epoch = store.greet(0, NOW + 1);
        let vote = store.vote(&ask(token + 1, epoch), NOW + 2, constants, None);
        assert_eq!(vote, Some(Vote::Granted));
    }
}
