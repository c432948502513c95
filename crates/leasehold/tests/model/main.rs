//! The rules, explored by a model checker.
//!
//! Each model is a small world: a few nodes, a few attempts, a few tokens. The checker
//! visits **every** state of it that can be reached: every order of messages, every loss
//! and repetition, every moment at which a lock may expire or a node restart. In each of
//! them the nodes vote by the library's own [`rules`](leasehold::node::rules).
//!
//! These are **bounded checks, not a proof**. They say nothing about more nodes, attempts
//! or restarts than they have, nothing about the Lua scripts that restate the rules (other
//! tests hold the two against each other), and nothing about the code around them.
//!
//! | model | what it is about | time |
//! |---|---|---|
//! | [`tokens`] | tokens are unique and grow; restarts, extensions, a fenced resource | none: any timing |
//! | [`timed`] | at most one holder; clock errors, the restart guard | ticks |
//! | [`network`] | the claim of `tokens` once more, with real messages | none: any timing |
//! | [`names`], [`rw_lock`], [`semaphore`] | what the primitives add to a claim | none: any timing |
//!
//! # How we know that they would find something
//! Every rule can be taken away, and then the model must find a counterexample, which it
//! prints with its length (`-- --nocapture`). Nodes are alike and are kept sorted, so the
//! number of a node there may change from one step to the next. And every model must
//! reach what makes it worth exploring, such as two acquisitions with a restart between.
//!
//! | the rule | without it ([`Fault`](fault::Fault)) | what breaks |
//! |---|---|---|
//! | ties lose | `TiesWin` | tokens unique, lost updates |
//! | the fence outlives the lock | `FenceDiesWithLock` | tokens grow |
//! | a missing fence reads as `now − F` | `MissingFenceIsZero` | tokens grow, extensions |
//! | a fence is kept for F | `FenceExpiresEarly` | tokens grow |
//! | a token is at most S ahead of the node's clock | `NoCap` | tokens grow |
//! | a node that forgot has a floor | `NoFloor` | tokens unique and grow, extensions |
//! | the floor is `now + S` | `FloorWithoutSkew` | tokens grow |
//! | the floor comes from the clock | `FloorFromPeers` | tokens unique and grow |
//! | EXTEND obeys the fence | `ExtendIgnoresFence` | extensions |
//! | EXTEND obeys the floor | `ExtendIgnoresFloor` | extensions |
//! | RELEASE raises the fence | `ReleaseLeavesFence` | a late request locks again |
//! | RELEASE leaves another's lock | `ReleaseIgnoresOwner` | one holder |
//! | and another's fence | `ReleaseRaisesUnderLock` | the holder's fence |
//! | a majority of all N | quorum of 2 of 4 | tokens unique |
//! | distinct nodes are counted | `CountsRepliesNotNodes` | tokens unique |
//! | replies belong to their attempt | `CountsOldReplies` | tokens grow |
//! | and to their EXTEND | `CountsOldExtensions` | one holder |
//! | a turn is no grant | `TurnCounts` | tokens unique and grow |
//! | nor does a floor make one of it | `FloorMakesGrant` | tokens unique |
//! | no success after RELEASE was sent | `SucceedsAfterRelease` | one holder |
//! | validity counts from before the send | `ValidityFromReply` | one holder |
//! | a lease that is handed over counts from when it was not granted yet | `ValidityFromReply` | one holder |
//! | ACQUIRE of what was handed over is for a whole TTL | `AgainKeepsTtl` | one holder |
//! | the drift covers both clocks | a smaller drift | one holder |
//! | a new owner value for every attempt | `OwnerPerClient` | one holder |
//! | a restarted node waits for a TTL | a shorter guard, or none | one holder |
//! | the resource checks reads too | `ResourceIgnoresReads` | lost updates |
//! | all names on a node or none | `SomeNamesSuffice` | tokens unique |
//! | each name has its fence | `OneFenceForAllNames` | tokens grow |
//! | a writer obeys the readers' fence | `WriterIgnoresReadFence` | tokens grow |
//! | a reader obeys the writers' fence | `ReaderIgnoresFence` | tokens grow |
//! | a reader needs a majority | `ReaderAsksOneNode` | a writer is alone |
//! | a permit is a slot | `PermitsCountedPerNode` | the number of holders |
//!
//! Two assumptions are not rules, and nothing replaces them: the clock of a node that
//! forgot has not gone back (`ClockStepsBack`: tokens grow), and, for those who do not use
//! the token, the clock of a node does not jump ahead (`ClockJumpsAhead`: one holder).
//!
//! # The large models
//! They have more attempts, nodes and restarts, up to 150 million states, so they run only
//! when asked for. Let them run one after the other; each uses all cores. On two cores most
//! take less than two minutes, and the largest 12 minutes and up to 19 GB of memory:
//!
//! ```sh
//! LEASEHOLD_LARGE_MODELS=1 cargo test --release -p leasehold --test model \
//!     large -- --nocapture --test-threads=1
//! ```

mod bits;
mod check;
mod fault;
mod names;
mod network;
mod node;
mod rw_lock;
mod semaphore;
mod timed;
mod tokens;
