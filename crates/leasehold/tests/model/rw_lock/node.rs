//! A node that readers and writers ask, which votes by the library's own rules.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Mode;
use leasehold::Name;
use leasehold::node::rules::{self, Constants, View, Write};
use leasehold::node::{Claim, Verb, Vote};

use crate::bits::{Bits, small};
use crate::fault::Fault;

/// The time that the rules see for 0.
const EPOCH_US: u64 = 1_000_000;
/// A span so long that no small number exceeds it.
const LONG_US: u64 = EPOCH_US / 2;
/// What the key of a lock holds while readers have it.
const MARKER: &[u8] = b"shared:1:1@model:";

/// What a node stores, and which of its grants can still matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    pub lock: Lock,
    /// The owners that are readers. They count only while the lock is a marker.
    pub readers: Bits,
    /// F, the highest token granted.
    pub fence: Option<u8>,
    /// W, if it is stored apart from F.
    pub write_fence: Option<u8>,
    /// The largest token that is never granted; 0 until the node has lost its memory.
    pub floor: u8,
    pub clock: u8,
    /// The attempts whose ACQUIRE it granted.
    pub granted: Bits,
    /// The attempts whose EXTEND it granted, or whose downgrade.
    pub extended: Bits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lock {
    #[default]
    Free,
    Owner(u8),
    Marker,
}

/// Votes on small numbers by the real rules, for attempts that each have one token.
pub struct Rules {
    constants: Constants,
    /// One claim for every owner and token, made once. Owner `a` is attempt `a`, and owner
    /// `attempts + a` is the shared claim to which it may downgrade.
    claims: Arc<[Vec<Claim>]>,
    attempts: usize,
    fault: Option<Fault>,
}

impl Rules {
    pub fn new(modes: &[Mode], tokens: u8, skew: Option<u8>, fault: Option<Fault>) -> Self {
        let attempts = modes.len();
        let owners = (0..attempts * 2).map(|owner| {
            let claims = (0..=tokens).map(|token| {
                let claim = |owner: usize, mode, token| {
                    let value = owner_value(owner, mode, token);
                    Claim::new(name(), value, micros(token), Duration::ZERO)
                };
                match owner.checked_sub(attempts) {
                    None => claim(owner, modes[owner], token),
                    Some(of) => {
                        let replaced = owner_value(of, modes[of], token.saturating_sub(1));
                        claim(owner, Mode::Shared, token).replacing(replaced)
                    }
                }
            });
            claims.collect()
        });
        let mut constants = Constants::for_nodes(1);
        constants.skew = Duration::from_micros(skew.map_or(LONG_US, u64::from));
        constants.fence_retention = Duration::from_micros(LONG_US);
        constants.restart_guard = None;
        Self {
            constants,
            claims: owners.collect(),
            attempts,
            fault,
        }
    }

    /// The owner of the shared claim to which this attempt may downgrade.
    pub fn downgraded(&self, attempt: u8) -> u8 {
        attempt + small(self.attempts)
    }

    /// Lets the node vote and store the result. `token_of` tells the token of the lock's owner.
    /// Returns whether it granted the claim.
    pub fn vote(
        &self,
        verb: Verb,
        node: &mut Node,
        (owner, token): (u8, u8),
        token_of: impl Fn(u8) -> u8,
    ) -> bool {
        let claim = &self.claims[usize::from(owner)][usize::from(token)];
        let lock = match node.lock {
            Lock::Free => None,
            Lock::Owner(owner) => {
                let claims = &self.claims[usize::from(owner)];
                Some(claims[usize::from(token_of(owner))].owner())
            }
            Lock::Marker => Some(MARKER),
        };
        let mut view = View {
            lock,
            remaining: None,
            fence: node.fence.map(micros),
            write_fence: node.write_fence.map(micros),
            share: node.readers.contains(owner).then_some(Duration::ZERO),
            floor: micros(node.floor),
            now: micros(node.clock),
            constants: self.constants,
        };
        self.tamper(verb, claim.mode(), &mut view);
        let (vote, write) = rules::vote(&view, verb, claim);
        self.store(node, write, owner, token);
        vote == Vote::Granted
    }

    /// Alters what the rules see.
    fn tamper(&self, verb: Verb, mode: Mode, view: &mut View<'_>) {
        let nothing = Some(micros(0));
        let is_marker = view.lock == Some(MARKER);
        match (self.fault, mode, verb) {
            (Some(Fault::ReaderIgnoresFence), Mode::Shared, Verb::Acquire)
            | (Some(Fault::ReaderJoinsAnyway), Mode::Shared, Verb::Extend) => {
                view.write_fence = nothing;
            }
            (Some(Fault::WriterIgnoresReadFence), Mode::Exclusive, Verb::Acquire)
            | (Some(Fault::WriterJoinsByWriteFence), Mode::Exclusive, Verb::Extend) => {
                view.fence = view.write_fence.or(view.fence);
                view.write_fence = None;
            }
            (Some(Fault::WriterIgnoresMarker), Mode::Exclusive, _) if is_marker => {
                view.lock = None;
            }
            (Some(Fault::StaleReadersCount), Mode::Shared, _) if view.share.is_some() => {
                view.lock = Some(MARKER);
            }
            (Some(Fault::NoFloorForReaders), Mode::Shared, _) => view.floor = micros(0),
            _ => {}
        }
    }

    fn store(&self, node: &mut Node, write: Write, owner: u8, token: u8) {
        let exclusive = |node: &mut Node, fence: Option<u64>| {
            if let Some(fence) = fence {
                node.fence = Some(units(fence));
                if self.fault != Some(Fault::ExclusiveKeepsWriteFence) {
                    node.write_fence = None;
                }
            }
        };
        match write {
            Write::Nothing => {}
            Write::Lock { fence, .. } => {
                node.lock = Lock::Owner(owner);
                exclusive(node, fence);
            }
            Write::Unlock { fence } => {
                node.lock = Lock::Free;
                exclusive(node, fence);
            }
            Write::Share {
                fence, write_fence, ..
            } => {
                if node.lock != Lock::Marker && self.fault != Some(Fault::StaleReadersCount) {
                    node.readers = Bits::default();
                }
                node.lock = Lock::Marker;
                node.readers.insert(owner);
                if self.fault != Some(Fault::ReaderLeavesFence) {
                    node.fence = Some(units(fence));
                }
                let replaced = usize::from(owner) >= self.attempts;
                let forgets = replaced && self.fault == Some(Fault::DowngradeForgetsWriter);
                node.write_fence = match units_or_zero(write_fence) {
                    written if forgets && written + 1 == token => Some(written - 1),
                    written => Some(written),
                };
            }
            Write::Unshare { .. } => {
                node.readers.remove(owner);
                if node.readers.is_empty() {
                    node.lock = Lock::Free;
                }
            }
            Write::Keep { .. } => unreachable!("nothing is kept in this model"),
        }
        self.forget_readers(node);
    }

    /// The lock vanishes.
    pub fn expire(&self, node: &mut Node) {
        node.lock = Lock::Free;
        self.forget_readers(node);
    }

    /// A reader's share vanishes.
    pub fn expire_reader(&self, node: &mut Node, owner: u8) {
        node.readers.remove(owner);
        if node.readers.is_empty() && node.lock == Lock::Marker {
            node.lock = Lock::Free;
        }
    }

    /// Readers of an earlier marker do not count, so forgetting them merges states.
    fn forget_readers(&self, node: &mut Node) {
        if node.lock != Lock::Marker && self.fault != Some(Fault::StaleReadersCount) {
            node.readers = Bits::default();
        }
    }
}

fn owner_value(owner: usize, mode: Mode, token: u8) -> Vec<u8> {
    let shared = if mode == Mode::Shared { "s" } else { "" };
    format!("{owner:040x}:{}{shared}:1@model:", micros(token)).into_bytes()
}

fn name() -> Name {
    Name::new("model").expect("a valid name")
}

fn micros(units: u8) -> u64 {
    EPOCH_US + u64::from(units)
}

fn units(us: u64) -> u8 {
    let units = us.checked_sub(EPOCH_US).map(u8::try_from);
    units
        .and_then(Result::ok)
        .expect("the rules store small numbers only")
}

/// The same; 0 for the number as which a missing fence reads, which is below all tokens.
fn units_or_zero(us: u64) -> u8 {
    if us < EPOCH_US { 0 } else { units(us) }
}
