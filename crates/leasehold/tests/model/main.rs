//! The rules, explored by a model checker.
//!
//! Each model is a small world: a few nodes, a few attempts, a few tokens. The checker visits
//! **every** reachable state: every order of messages, every loss and repetition, every moment at
//! which a lock may expire or a node restart. In each state the nodes vote by the library's own
//! [`rules`](leasehold::node::rules).
//!
//! These are **bounded checks, not a proof**. They cover no more nodes, attempts or restarts than
//! they have. They do not cover the Lua scripts that implement the rules on a server (other tests
//! compare the two), nor the code around the rules.
//!
//! | model | subject | time |
//! |---|---|---|
//! | [`tokens`] | tokens are unique and grow; restarts, extensions, a fenced resource | none: any timing |
//! | [`timed`] | at most one holder, and none while a majority keeps a result; clock errors, the restart guard | ticks |
//! | [`network`] | the properties of `tokens` again, with real messages | none: any timing |
//! | [`names`], [`rw_lock`], [`semaphore`] | what the primitives add to a claim | none: any timing |
//!
//! # How we know that the models would find a bug
//!
//! Every rule can be removed, and then the model must find a counterexample, which it prints with
//! its length (`-- --nocapture`). Nodes are interchangeable and kept sorted, so the number of a
//! node there may change from one step to the next. Every model must also reach the states that
//! make it worth exploring, such as two acquisitions with a restart in between.
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
//! | RELEASE does not delete the lock of another owner | `ReleaseIgnoresOwner` | one holder |
//! | nor raise its fence | `ReleaseRaisesUnderLock` | the holder's fence |
//! | a majority of all N | quorum of 2 of 4 | tokens unique |
//! | distinct nodes are counted | `CountsRepliesNotNodes` | tokens unique |
//! | replies belong to their attempt | `CountsOldReplies` | tokens grow |
//! | and to their EXTEND | `CountsOldExtensions` | one holder |
//! | a turn is not a grant | `TurnCounts` | tokens unique and grow |
//! | a floor does not turn an old lock into a grant | `FloorMakesGrant` | tokens unique |
//! | no success after RELEASE was sent | `SucceedsAfterRelease` | one holder |
//! | validity counts from before the send | `ValidityFromReply` | one holder |
//! | a lease that is handed over counts from when it was not granted yet | `ValidityFromReply` | one holder |
//! | ACQUIRE of a lock that was handed over sets the whole TTL | `AgainKeepsTtl` | one holder |
//! | the drift covers both clocks | a smaller drift | one holder |
//! | a new owner value for every attempt | `OwnerPerClient` | one holder |
//! | a restarted node waits for a TTL | a shorter guard, or none | one holder |
//! | the resource checks reads too | `ResourceIgnoresReads` | lost updates |
//! | all names on a node or none | `SomeNamesSuffice` | tokens unique |
//! | each name has its fence | `OneFenceForAllNames` | tokens grow |
//! | a writer obeys the readers' fence | `WriterIgnoresReadFence` | tokens grow |
//! | a reader obeys the writers' fence | `ReaderIgnoresFence` | tokens grow |
//! | a reader needs a majority | `ReaderAsksOneNode` | a writer is alone |
//! | a majority must keep a result | `ResultOfOneNode` | none acquires within the period |
//! | a shared grant raises F | `ReaderLeavesFence` | tokens grow |
//! | an exclusive grant removes W | `ExclusiveKeepsWriteFence` | tokens grow |
//! | a reader joins only if no newer writer came | `ReaderJoinsAnyway` | extensions |
//! | a writer joins only if no newer reader came | `WriterJoinsByWriteFence` | extensions |
//! | readers count only under their marker | `StaleReadersCount` | a writer is alone |
//! | a writer respects a marker | `WriterIgnoresMarker` | a writer is alone |
//! | a downgraded writer's token counts as a writer's | `DowngradeForgetsWriter` | tokens grow |
//! | the exclusive lease ends before the downgrade is sent | `DowngradeStaysExclusive` | a writer is alone |
//! | the floor counts for readers | `NoFloorForReaders` | tokens grow |
//! | a permit is a slot | `PermitsCountedPerNode` | the number of holders |
//!
//! Two assumptions are not rules, and no rule can replace them. The clock of a node that lost its
//! memory has not gone back (`ClockStepsBack`: tokens grow). For callers that do not use the
//! token, the clock of a node does not jump ahead (`ClockJumpsAhead`: one holder).
//!
//! # The large models
//!
//! They have more attempts, nodes and restarts, up to 150 million states, so they run only on
//! request. Run them one after the other: each uses all cores. On two cores most take less than
//! two minutes, and the largest 12 minutes and up to 19 GB of memory:
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
