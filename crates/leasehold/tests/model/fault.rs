//! The rules that can be removed, one at a time.

/// A rule that is removed, or an assumption that is broken.
///
/// A model without a counterexample proves little: it may be unable to find any. So for every
/// rule there is a test that runs the same model without it and requires a counterexample. The
/// rules themselves are not changed for this. The model alters what they are shown, or what they
/// say to store.
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
    /// EXTEND takes a free lock, whatever the fence (`SET NX`).
    ExtendIgnoresFence,
    /// EXTEND trusts a lock that was restored from an old snapshot.
    ExtendIgnoresFloor,
    /// A token may be any distance ahead of the node's clock.
    NoCap,
    /// A node that lost its memory grants any token.
    NoFloor,
    /// A node that lost its memory uses its clock as the floor, without adding S.
    FloorWithoutSkew,
    /// A node that lost its memory copies the largest fence of its peers instead.
    FloorFromPeers,
    /// A lock from before the floor was set counts as a grant if the floor is its token, though
    /// the memory that granted it must not be trusted.
    FloorMakesGrant,
    /// ACQUIRE of a lock that was handed over to the claim before is granted only for the time
    /// that is left.
    AgainKeepsTtl,
    /// RELEASE deletes the lock and leaves the fence unchanged.
    ReleaseLeavesFence,
    /// RELEASE deletes the lock of any owner.
    ReleaseIgnoresOwner,
    /// RELEASE raises the fence under the lock of another owner, too.
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
    /// The validity of the lease counts from when the majority was reached.
    ValidityFromReply,
    /// All attempts of a client use the same owner value.
    OwnerPerClient,
    /// A node whose memory was replaced while it ran is taken to have the same memory.
    PromotionIgnored,
    /// A connection is trusted for as long as it is open, even if the node's memory was replaced.
    NeverVerified,

    // The rule of a resource.
    /// The resource checks the tokens of writes only.
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
    /// A reader acquires the lock on one node only.
    ReaderAsksOneNode,
    /// A result counts although only one node keeps it.
    ResultOfOneNode,
    /// A shared grant does not raise F.
    ReaderLeavesFence,
    /// An exclusive grant leaves W as it was.
    ExclusiveKeepsWriteFence,
    /// EXTEND lets a reader join whatever W is.
    ReaderJoinsAnyway,
    /// EXTEND lets a writer join if its token exceeds W.
    WriterJoinsByWriteFence,
    /// Readers count although their marker is gone.
    StaleReadersCount,
    /// For a writer, a lock that readers have is free.
    WriterIgnoresMarker,
    /// After a downgrade, W is below the writer's token.
    DowngradeForgetsWriter,
    /// The exclusive lease of a writer lasts until its downgrade is confirmed.
    DowngradeStaysExclusive,
    /// The floor of a node that lost its memory does not count for readers.
    NoFloorForReaders,
    /// A semaphore counts its holders on each node, instead of assigning slots.
    PermitsCountedPerNode,

    // Assumptions that no rule can replace.
    /// The clock of a node goes back when it restarts.
    ClockStepsBack,
    /// The clock of a node jumps ahead, so that a lock expires too early.
    ClockJumpsAhead,
}
