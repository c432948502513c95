//! The rules that can be removed, one at a time.

/// A rule that is removed, or an assumption that is broken.
///
/// A model that finds nothing proves little: it may be unable to find anything. So for
/// every rule there is a test that runs the same model without it and requires a
/// counterexample. The rules themselves are not touched for this; what they are shown,
/// or what they say to store, is tampered with on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    // The rules of a node.
    /// ACQUIRE with a token equal to the fence is granted.
    TiesWin,
    /// The fence is deleted together with the lock.
    FenceDiesWithLock,
    /// A fence that has expired reads as 0, not as `now − F`.
    MissingFenceIsZero,
    /// The fence may expire while `now − F` is still below it.
    FenceExpiresEarly,
    /// EXTEND takes a free lock whatever the fence says (`SET NX`).
    ExtendIgnoresFence,
    /// EXTEND believes a lock that came back with an old snapshot.
    ExtendIgnoresFloor,
    /// A token may be any distance ahead of the node's clock.
    NoCap,
    /// A node that forgot grants whatever is asked of it.
    NoFloor,
    /// A node that forgot takes its clock for the floor, without adding S.
    FloorWithoutSkew,
    /// A node that forgot copies the largest fence of its peers instead.
    FloorFromPeers,
    /// A lock from before the floor was set is taken for a grant if the floor is its token, though
    /// the memory that granted it must not be trusted.
    FloorMakesGrant,
    /// ACQUIRE of a lock that was handed over to the claim before is granted for what is left of
    /// that.
    AgainKeepsTtl,
    /// RELEASE deletes the lock and leaves the fence as it was.
    ReleaseLeavesFence,
    /// RELEASE deletes the lock of whoever has it.
    ReleaseIgnoresOwner,
    /// RELEASE raises the fence under the lock of another, too.
    ReleaseRaisesUnderLock,

    // The rules of a client.
    /// A grant of the client's previous attempt counts for the next one.
    CountsOldReplies,
    /// A reply that arrives twice counts twice, as if two nodes had sent it.
    CountsRepliesNotNodes,
    /// An attempt may succeed after its RELEASE was sent.
    SucceedsAfterRelease,
    /// A reply to an earlier EXTEND counts for the present one.
    CountsOldExtensions,
    /// A notification "it is your turn" counts as the node's grant.
    TurnCounts,
    /// The lease is counted from when the majority was reached.
    ValidityFromReply,
    /// All attempts of a client use the same owner value.
    OwnerPerClient,
    /// A node whose memory was exchanged while it ran is taken for the same.
    PromotionIgnored,
    /// A connection is trusted for as long as it is open, whatever became of the node's memory.
    NeverVerified,

    // The rule of a resource.
    /// The resource looks at the token of writes only.
    ResourceIgnoresReads,

    // The rules of the primitives.
    /// Of several names, a node grants those that are free, and that counts for all.
    SomeNamesSuffice,
    /// Of several names, a node raises the fence of the first only.
    OneFenceForAllNames,
    /// A writer's token need not exceed those of earlier readers.
    WriterIgnoresReadFence,
    /// A reader's token need not exceed those of earlier writers.
    ReaderIgnoresFence,
    /// A reader is content with one node.
    ReaderAsksOneNode,
    /// A semaphore counts its holders on each node, instead of naming slots.
    PermitsCountedPerNode,

    // What no rule can replace.
    /// The clock of a node goes back when it restarts.
    ClockStepsBack,
    /// The clock of a node jumps ahead, so that a lock expires too early.
    ClockJumpsAhead,
}
