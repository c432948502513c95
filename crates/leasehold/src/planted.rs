//! Bugs that can be switched on, to check that the simulator finds them.
//!
//! A simulator that finds nothing may be unable to find anything. Without the feature
//! `planted-bugs`, `on` is the constant `false`, and the compiler removes all of this.

/// A rule of the client that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Without Redis there is no link, and nothing has its bugs.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub enum Bug {
    /// The validity of a lease counts from the reply, not from before the request.
    ValidityFromReply,
    /// Nothing is subtracted from the TTL for clocks that run at different speeds.
    NoDrift,
    /// All attempts of a client have the same owner value.
    OwnerPerClient,
    /// A majority of the nodes that may have the lease is enough for an EXTEND.
    SubsetMajority,
    /// A failed attempt is not released and stays until its TTL is over.
    FailedAttemptKept,
    /// A failed attempt is not released on nodes that had not answered yet.
    LateGrantKept,
    /// After a token that was too low, the next one is just above the fence, which may have grown
    /// since. (A real bug once.)
    ChasesFence,
    /// The lost signal fires at the deadline, not before it.
    LostTooLate,
    /// `lost()` waits for a signal and never reads the clock. (A real bug once.)
    LostByFlag,
    /// A waiter sends WAIT again only when it is notified.
    WaitsOnlyForNotifications,
    /// The validity of a lease that was handed over counts from the reply.
    HandedOverValidityFromReply,
    /// A waiter that a majority notifies of its turn takes this for a grant.
    TurnIsGrant,
    /// A waiter that gives up does not leave the line.
    GivesUpInSilence,
    /// A client that wants to join a line does not take a ticket ahead of the node's clock, so a
    /// client far away is overtaken each time. (A real bug once.)
    NoLead,
    /// A waiter whose ticket was overtaken leaves its place before it joins with the new ticket.
    /// (A real bug once.)
    LeavesBeforeItJoins,
    /// A renewal ends when a majority can no longer agree, although outstanding answers could show
    /// that the lease has ended. (A real bug once.)
    DecidesTooEarly,
    /// A release does not raise the fence, though requests of its claim went over another connection
    /// and may arrive later.
    PlainDeleteAcrossConnections,
    /// A request that was sent over a connection that broke, and that the server may have forgotten,
    /// releases its claim, even if that is a lease. (A real bug once.)
    ReleasesInDoubt,
    /// A connection stays in use after a timeout.
    UsedAfterTimeout,
    /// A result counts although only one node keeps it.
    ResultOfAMinority,
    /// Work that fails keeps the name as if it had succeeded.
    FailureKeeps,
    /// Several names are acquired in the order in which they were given.
    Unsorted,
    /// A call for several names succeeds although it got only some of them.
    SomeNamesSuffice,
    /// A waiter that a majority notifies of a free permit takes this for a grant.
    FreeIsGrant,
    /// A node removes a waiter from the line as soon as it notifies it of a free permit.
    LeavesWhenTold,
    /// A node lets any claim acquire a free permit, although others are in line.
    TicketIgnored,
    /// After a permit was granted, the next in line is not notified of others that are free.
    RestNotAnnounced,
    /// A node accepts claims with any number of permits.
    OtherNumberAccepted,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches a bug on for everything that runs on this thread from now on. `None` switches it off.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is switched on.
#[inline(always)]
pub(crate) fn on(bug: Bug) -> bool {
    #[cfg(feature = "planted-bugs")]
    return PLANTED.get() == Some(bug);
    #[cfg(not(feature = "planted-bugs"))]
    {
        let _ = bug;
        false
    }
}
