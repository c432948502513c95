//! A node of the models: the library's own rules, on numbers small enough to enumerate.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Name;
use leasehold::node::rules::{self, Constants, View, Write};
use leasehold::node::{Claim, Vote};

use crate::bits::small;
use crate::fault::Fault;

/// The models count tokens and clocks from 0. This is the time that the rules see for 0.
const EPOCH_US: u64 = 1_000_000;
/// A span so long that no small number exceeds it, and so short that `EPOCH_US` minus it is still
/// a time.
const LONG_US: u64 = EPOCH_US / 2;
/// The owner value, in a record, of a lock that `min_hold` keeps.
const KEPT: u8 = u8::MAX;
const KEPT_VALUE: &[u8] = b"kept";

/// What a node stores for the one name of the model, and about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// The owner value of the lock.
    pub lock: Option<u8>,
    /// The highest token granted, while the node remembers it.
    pub fence: Option<u8>,
    /// The largest token that is never granted; 0 until the node has lost its memory.
    pub floor: u8,
    /// The node's clock.
    pub clock: u8,
}

impl Record {
    /// Whether the name is kept taken, without an owner.
    pub fn is_kept(&self) -> bool {
        self.lock == Some(KEPT)
    }
}

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Acquire,
    Extend,
    Release,
    /// A release that keeps the name taken for a while, as `min_hold` and results do.
    ReleaseAndKeep,
}

/// Votes on small numbers by the real rules.
#[derive(Clone, Debug)]
pub struct Rules {
    constants: Constants,
    /// One claim for every owner and token, made once: the rules are evaluated millions of times.
    claims: Arc<[Vec<Claim>]>,
    fault: Option<Fault>,
}

impl Rules {
    /// For owners below `owners` and tokens up to `tokens`, with S and F larger than all of them
    /// and every rule in place.
    pub fn new(owners: usize, tokens: u8) -> Self {
        let claims = (0..owners).map(|owner| {
            let owner = [small(owner)];
            let claim = |token| Claim::new(name(), owner.as_slice(), micros(token), Duration::ZERO);
            (0..=tokens).map(claim).collect()
        });
        let mut constants = Constants::for_nodes(1);
        constants.skew = Duration::from_micros(LONG_US);
        constants.fence_retention = Duration::from_micros(LONG_US);
        constants.restart_guard = None;
        Self {
            constants,
            claims: claims.collect(),
            fault: None,
        }
    }

    /// With this S and F, where given.
    pub fn constants(mut self, skew: Option<u8>, retention: Option<u8>) -> Self {
        let span = |units: u8| Duration::from_micros(u64::from(units));
        let Constants {
            skew: s,
            fence_retention: f,
            ..
        } = &mut self.constants;
        *s = skew.map_or(*s, span);
        *f = retention.map_or(*f, span);
        self
    }

    /// Without one of the rules.
    pub fn without(mut self, fault: Option<Fault>) -> Self {
        if fault == Some(Fault::NoCap) {
            self.constants.skew = Duration::from_micros(LONG_US);
        }
        self.fault = fault;
        self
    }

    /// Lets a node vote on the claim of `owner` with `token` and store the result. Returns
    /// whether it granted the claim.
    pub fn vote(&self, ask: Ask, record: &mut Record, owner: u8, token: u8) -> bool {
        let mut view = self.view(record);
        self.tamper(ask, &mut view);
        let claim = self.claim(owner, token);
        let (vote, write) = match ask {
            Ask::Acquire => rules::acquire(&view, claim),
            Ask::Extend => rules::extend(&view, claim),
            Ask::Release => rules::release(&view, claim, None),
            Ask::ReleaseAndKeep => rules::release(&view, claim, Some(Duration::ZERO)),
        };
        self.store(ask, write, record, owner);
        let granted = vote == Vote::Granted;
        assert!(
            !granted || record.lock == Some(owner),
            "granted, but not locked"
        );
        granted
    }

    /// Whether a node may notify a waiter of its turn: the lock is free, and the token can still
    /// win. Nothing is stored for that.
    pub fn may_offer(&self, record: &Record, owner: u8, token: u8) -> bool {
        record.lock.is_none() && rules::may_wait(&self.view(record), self.claim(owner, token))
    }

    fn claim(&self, owner: u8, token: u8) -> &Claim {
        &self.claims[usize::from(owner)][usize::from(token)]
    }

    fn view(&self, record: &Record) -> View<'_> {
        View {
            lock: record.lock.map(|owner| match owner {
                KEPT => KEPT_VALUE,
                owner => self.claim(owner, 0).owner(),
            }),
            remaining: None,
            fence: record.fence.map(micros),
            write_fence: None,
            share: None,
            floor: micros(record.floor),
            now: micros(record.clock),
            constants: self.constants,
        }
    }

    /// Alters what the rules see.
    fn tamper(&self, ask: Ask, view: &mut View<'_>) {
        match (self.fault, ask) {
            // If there is a lock, the fence tells whether the same request arrived again.
            (Some(Fault::TiesWin), Ask::Acquire) if view.lock.is_none() => {
                view.fence = view.fence.map(|fence| fence - 1);
            }
            (Some(Fault::MissingFenceIsZero), _) => view.fence = view.fence.or(Some(0)),
            (Some(Fault::ExtendIgnoresFence), Ask::Extend) => view.fence = None,
            (Some(Fault::ExtendIgnoresFloor), Ask::Extend) => view.floor = 0,
            (Some(Fault::FloorMakesGrant), Ask::Acquire) => {
                view.fence = view.fence.max(Some(view.floor));
                view.floor -= 1;
            }
            (Some(Fault::ReleaseIgnoresOwner | Fault::ReleaseRaisesUnderLock), Ask::Release) => {
                view.lock = None
            }
            _ => {}
        }
    }

    fn store(&self, ask: Ask, write: Write, record: &mut Record, owner: u8) {
        let fence = match write {
            Write::Nothing | Write::Share { .. } | Write::Unshare { .. } => return,
            Write::Lock { fence, .. } => {
                record.lock = Some(owner);
                fence
            }
            Write::Unlock { fence } => {
                let foreign = record.lock.is_some_and(|other| other != owner);
                if !(foreign && self.fault == Some(Fault::ReleaseRaisesUnderLock)) {
                    record.lock = None;
                }
                fence
            }
            Write::Keep { value, fence, .. } => {
                assert!(value.starts_with(KEPT_VALUE), "a kept lock has no owner");
                record.lock = Some(KEPT);
                fence
            }
        };
        let unstored = match self.fault {
            Some(Fault::ExtendIgnoresFence) => ask == Ask::Extend,
            Some(Fault::ReleaseLeavesFence) => ask == Ask::Release,
            _ => false,
        };
        if let Some(fence) = fence
            && !unstored
        {
            record.fence = Some(units(fence));
        }
        if record.lock.is_none() {
            self.after_unlock(record);
        }
    }

    /// The lock has expired, by this node's clock.
    pub fn expire(&self, record: &mut Record) {
        record.lock = None;
        self.after_unlock(record);
    }

    fn after_unlock(&self, record: &mut Record) {
        if self.fault == Some(Fault::FenceDiesWithLock) {
            record.fence = None;
        }
    }
}

fn name() -> Name {
    Name::new("model").expect("a valid name")
}

fn micros(units: u8) -> u64 {
    EPOCH_US + u64::from(units)
}

fn units(us: u64) -> u8 {
    us.checked_sub(EPOCH_US)
        .and_then(|units| u8::try_from(units).ok())
        .expect("the rules store small numbers only")
}
