//! Tokens are unique and grow, whatever clocks, pauses and the network do.
//!
//! There is no time in this model, so it holds for every timing. Once an attempt has started, its
//! ACQUIRE may reach any node at any moment, any number of times, or never: that covers loss,
//! delay, repetition and reordering. A grant may be counted at any later moment, even after the
//! node that gave it has restarted. A lock may vanish from a node at any moment, which covers
//! every TTL and early expiry.
//!
//! A lock that a node hands over to a waiter is equivalent to an ACQUIRE that arrives late. A
//! node that refuses an ACQUIRE because another waiter is first in line is equivalent to a node
//! that never received it. So waiting adds no step to the model.
//!
//! Each attempt picks any token, so nothing depends on how clients choose them. Each attempt is a
//! separate client, which covers clients with several attempts.
//!
//! Nodes are interchangeable, so states that differ only in the order of nodes are explored once.

mod mutations;
mod scenarios;
mod steps;

use stateright::{Model, Property};

use crate::bits::{Bits, small};
use crate::check::changed;
use crate::fault::Fault;
use crate::node::{Record, Rules};

pub const UNIQUE: &str = "no two acquisitions have the same token";
pub const GROWING: &str = "a later acquisition has a larger token";
pub const CONTINUOUS: &str = "no extension succeeds that began after a newer acquisition";
pub const NO_LOST_UPDATE: &str = "no update of the resource is lost";
pub const NO_ORPHAN: &str = "a late request does not take the lock again after its release";
pub const FENCE_IS_TOKEN: &str = "the fence of a lock is the token of its owner";

/// What may happen in a run of the model, with `A` attempts on `N` nodes.
#[derive(Clone, Debug)]
pub struct Scenario<const N: usize, const A: usize> {
    /// The number of grants that make an acquisition.
    pub quorum: usize,
    /// Attempts pick tokens from 1 to here.
    pub tokens: u8,
    /// S; `None` means no limit that could matter.
    pub skew: Option<u8>,
    /// F; `None` means that fences do not expire.
    pub retention: Option<u8>,
    /// Node clocks start at 0 and stop here.
    pub clock_max: u8,
    /// How often some node restarts without its memory.
    pub restarts: u8,
    /// A node may also restart with what it knew at any earlier time.
    pub snapshots: bool,
    /// Instead of a restart, the memory of a node is replaced while it runs and connections stay
    /// open: it was a replica for a while. Until a client notices, it votes without a floor for
    /// that.
    pub exchanges: bool,
    /// Holders may extend their lease, once each.
    pub extends: bool,
    /// Whether ended attempts release, and how.
    pub releases: Releases,
    /// Holders read the resource and write an update that depends on it, once each.
    pub resource: bool,
    /// The rule that is removed.
    pub fault: Option<Fault>,
}

/// How ended attempts release their locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Releases {
    /// Not at all: the locks vanish at some time, as they always may.
    Never,
    /// With RELEASE.
    Plain,
    /// With RELEASE, recording which node has processed which.
    Watched,
    /// With RELEASE, and the name stays taken for a while (`min_hold`).
    Keeping,
}

impl<const N: usize, const A: usize> Default for Scenario<N, A> {
    fn default() -> Self {
        Self {
            quorum: N / 2 + 1,
            tokens: small(A),
            skew: None,
            retention: None,
            clock_max: 0,
            restarts: 0,
            snapshots: false,
            exchanges: false,
            extends: false,
            releases: Releases::Plain,
            resource: false,
            fault: None,
        }
    }
}

/// The model of a [`Scenario`].
pub struct Tokens<const N: usize, const A: usize> {
    scenario: Scenario<N, A>,
    rules: Rules,
}

impl<const N: usize, const A: usize> Scenario<N, A> {
    pub fn model(self) -> Tokens<N, A> {
        let rules = Rules::new(A, self.tokens)
            .constants(self.skew, self.retention)
            .without(self.fault);
        Tokens {
            scenario: self,
            rules,
        }
    }
}

/// The whole state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize, const A: usize> {
    nodes: [Node; N],
    attempts: [Attempt; A],
    /// The tokens of all acquisitions so far.
    acquired: Bits,
    restarts: u8,
    resource: Resource,
    violated: Violated,
}

/// A node, and the replies it has sent, which are under way for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    record: Record,
    /// Its memory was replaced, and no client has noticed yet.
    unnoticed: bool,
    /// The attempts whose ACQUIRE it granted, while that can still matter.
    granted: Bits,
    /// The attempts whose EXTEND it granted, while that can still matter.
    extended: Bits,
    /// The attempts whose RELEASE it processed, if watched.
    released: Bits,
    /// The attempts that ever had the lock, if there are snapshots.
    past_owners: Bits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Attempt {
    phase: Phase,
    token: u8,
    /// When it started, an acquisition with this or a larger token had succeeded.
    late: bool,
    extension: Extension,
    copy: Copied,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Extension {
    #[default]
    None,
    /// EXTEND was sent.
    Asked {
        /// Before that, an acquisition with a larger token had succeeded.
        overtaken: bool,
    },
    Done,
    /// The attempt ended, but EXTEND may still be under way.
    Over,
}

/// What a holder has read of the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Copied {
    #[default]
    Nothing,
    Fresh,
    /// Another has written since.
    Outdated,
    /// It has written, and is done.
    Written,
}

/// A resource that keeps the largest token it has seen and refuses smaller ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Resource {
    highest: u8,
    writes: u8,
}

/// Which of the forbidden events have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Violated {
    unique: bool,
    growing: bool,
    continuous: bool,
    update_lost: bool,
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start {
        attempt: u8,
        token: u8,
    },
    AcquireArrives {
        attempt: u8,
        node: u8,
    },
    Acquired {
        attempt: u8,
    },
    End {
        attempt: u8,
    },
    ReleaseArrives {
        attempt: u8,
        node: u8,
    },
    StartExtending {
        attempt: u8,
    },
    ExtendArrives {
        attempt: u8,
        node: u8,
    },
    Extended {
        attempt: u8,
    },
    /// The lock is free, and a waiter is notified of its turn.
    Offered {
        attempt: u8,
        node: u8,
    },
    ReadResource {
        attempt: u8,
    },
    WriteResource {
        attempt: u8,
    },
    LockExpires {
        node: u8,
    },
    FenceExpires {
        node: u8,
    },
    ClockTicks {
        node: u8,
    },
    Restarts {
        node: u8,
        with: Remembered,
    },
    /// A client completes a handshake with a node whose memory was replaced.
    Noticed {
        node: u8,
    },
}

/// The memory with which a node restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    lock: Option<u8>,
    fence: Option<u8>,
    clock: u8,
}

impl<const N: usize, const A: usize> Model for Tokens<N, A> {
    type State = State<N, A>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            nodes: [Node::default(); N],
            attempts: [Attempt::default(); A],
            acquired: Bits::default(),
            restarts: 0,
            resource: Resource::default(),
            violated: Violated::default(),
        }]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        for attempt in 0..A {
            self.steps_of_attempt(state, attempt, steps);
        }
        for node in distinct(&state.nodes) {
            self.steps_of_node(state, node, steps);
        }
    }

    fn next_state(&self, before: &Self::State, step: Step) -> Option<Self::State> {
        let mut after = changed(before, |after| self.take(step, after))?;
        after.nodes.sort_unstable();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(UNIQUE, |_, s| !s.violated.unique),
            Property::<Self>::always(GROWING, |_, s| !s.violated.growing),
            Property::<Self>::sometimes("two acquisitions", |_, s| s.acquired.len() >= 2),
        ];
        if self.scenario.restarts > 0 {
            properties.push(Property::<Self>::sometimes(
                "two acquisitions and all the restarts",
                |m, s| s.acquired.len() >= 2 && s.restarts == m.scenario.restarts,
            ));
        }
        if self.scenario.extends {
            properties.extend([
                Property::<Self>::always(CONTINUOUS, |_, s| !s.violated.continuous),
                Property::<Self>::sometimes("an extension and two acquisitions", |_, s| {
                    let extended = |a: &Attempt| a.extension == Extension::Done;
                    s.acquired.len() >= 2 && s.attempts.iter().any(extended)
                }),
            ]);
        }
        if self.scenario.resource {
            properties.extend([
                Property::<Self>::always(NO_LOST_UPDATE, |_, s| !s.violated.update_lost),
                Property::<Self>::sometimes("two updates", |_, s| s.resource.writes >= 2),
            ]);
        }
        if self.scenario.releases == Releases::Watched {
            properties.extend([
                Property::<Self>::always(NO_ORPHAN, |_, s| s.nodes.iter().all(Node::no_orphan)),
                Property::<Self>::always(FENCE_IS_TOKEN, |_, s| {
                    s.nodes.iter().all(|node| s.fence_is_token(node))
                }),
            ]);
        }
        properties
    }
}

impl Node {
    fn no_orphan(&self) -> bool {
        !self
            .record
            .lock
            .is_some_and(|owner| self.released.contains(owner))
    }
}

impl<const N: usize, const A: usize> State<N, A> {
    fn fence_is_token(&self, node: &Node) -> bool {
        let token_of = |owner: u8| self.attempts[usize::from(owner)].token;
        let owner = node.record.lock;
        owner.is_none_or(|owner| node.record.fence == Some(token_of(owner)))
    }
}

/// The indices of nodes that differ from one another. The nodes are sorted.
fn distinct(nodes: &[Node]) -> impl Iterator<Item = usize> {
    (0..nodes.len()).filter(|&i| i == 0 || nodes[i] != nodes[i - 1])
}
