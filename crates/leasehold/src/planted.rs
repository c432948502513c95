//! Bugs that can be switched on, to see that the simulator finds them.
//!
//! A harness that finds nothing proves little: it may be unable to find anything. Without
//! the feature `planted-bugs`, `on` is the constant `false`, and the compiler removes
//! every trace of this.

/// A rule of the client that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The validity of a lease counts from the reply, not from before the request.
    ValidityFromReply,
    /// Nothing of the TTL is given up for clocks that run at different speeds.
    NoDrift,
    /// All attempts of a client have the same owner value.
    OwnerPerClient,
    /// An EXTEND is content with a majority of the nodes that the lease may be on.
    SubsetMajority,
    /// A failed attempt is left to its TTL.
    FailedAttemptKept,
    /// A failed attempt is not released where no answer had come yet.
    LateGrantKept,
    /// A token that was too low is followed by one that is just above the fence, which may
    /// have moved on. (A real bug once.)
    ChasesFence,
    /// The lost signal fires at the deadline, not before it.
    LostTooLate,
    /// `lost()` waits for a signal and never reads the clock. (A real bug once.)
    LostByFlag,
    /// Who stands in line asks again only when it is told something.
    AsksOnlyWhenTold,
    /// The validity of a lease that was waited for counts from the reply.
    HandedOverValidityFromReply,
    /// Whoever is told by a majority that it is its turn takes that for the lease.
    TurnIsGrant,
    /// Who gives up waiting does not leave the line.
    GivesUpInSilence,
    /// A client that wants to join a line does not take a ticket ahead of the node's clock, so a
    /// client far away is overtaken each time. (A real bug once.)
    NoLead,
    /// A waiter whose ticket was overtaken leaves its place before it joins with the new ticket.
    /// (A real bug once.)
    LeavesBeforeItJoins,
    /// A renewal ends when a majority can no longer agree, though the answers that are to come
    /// could say that the lease is over. (A real bug once.)
    DecidesTooEarly,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches a bug on in whatever runs on this thread from now on; `None`: none.
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
