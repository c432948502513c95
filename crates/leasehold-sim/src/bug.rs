//! Planted bugs: rules broken on purpose, each of which the checkers must find.

use leasehold::planted;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A rule of the client; the library itself is told to break it.
    Client(planted::Bug),
    /// ACQUIRE with a token equal to the fence is granted.
    TiesWin,
    /// The fence is deleted together with the lock.
    FenceDiesWithLock,
    /// A fence that is missing reads as 0.
    MissingFenceIsZero,
    /// A node that restarted votes at once.
    NoRestartGuard,
    /// A node that forgot grants whatever token is asked of it.
    NoFloor,
    /// EXTEND takes a free lock whatever the fence says.
    ExtendIgnoresFence,
    /// The resource takes every token.
    ResourceUnfenced,
    /// The resource looks at the tokens of writes only.
    ResourceIgnoresReads,
    /// A node tells nobody, and who waits does not ask before it is told something.
    MissedNotification,
    /// Who stands in line stands there for ever, dead or not.
    DeadWaiterKept,
    /// Who is first in line gets the lock, though a larger token was granted since.
    StaleTicketGranted,
    /// Who comes first stands before those with smaller tickets who come later.
    LineByArrival,
    /// A node refreshes a line only when the first in line asks. (A real bug once.)
    LineKeptByFirst,
    /// A node that was a replica in between is taken for the same, with the same memory. (A real
    /// bug once.)
    PromotionIgnored,
    /// A connection is trusted for as long as it is open. (A real bug once.)
    NeverVerified,
    /// A connection is used on after a timeout, and the late reply answers the next request.
    WrongReply,
}

impl Bug {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 29] = [
        (
            "validity-from-reply",
            Self::Client(planted::Bug::ValidityFromReply),
        ),
        ("no-drift", Self::Client(planted::Bug::NoDrift)),
        (
            "owner-per-client",
            Self::Client(planted::Bug::OwnerPerClient),
        ),
        (
            "subset-majority",
            Self::Client(planted::Bug::SubsetMajority),
        ),
        (
            "failed-attempt-kept",
            Self::Client(planted::Bug::FailedAttemptKept),
        ),
        ("late-grant-kept", Self::Client(planted::Bug::LateGrantKept)),
        ("chases-fence", Self::Client(planted::Bug::ChasesFence)),
        ("lost-too-late", Self::Client(planted::Bug::LostTooLate)),
        ("lost-by-flag", Self::Client(planted::Bug::LostByFlag)),
        ("ties-win", Self::TiesWin),
        ("fence-dies-with-lock", Self::FenceDiesWithLock),
        ("missing-fence-is-zero", Self::MissingFenceIsZero),
        ("no-restart-guard", Self::NoRestartGuard),
        ("no-floor", Self::NoFloor),
        ("promotion-ignored", Self::PromotionIgnored),
        ("never-verified", Self::NeverVerified),
        ("extend-ignores-fence", Self::ExtendIgnoresFence),
        ("wrong-reply", Self::WrongReply),
        ("missed-notification", Self::MissedNotification),
        ("dead-waiter-kept", Self::DeadWaiterKept),
        ("stale-ticket-granted", Self::StaleTicketGranted),
        ("line-by-arrival", Self::LineByArrival),
        ("line-kept-by-first", Self::LineKeptByFirst),
        (
            "handed-over-validity-from-reply",
            Self::Client(planted::Bug::HandedOverValidityFromReply),
        ),
        ("turn-is-grant", Self::Client(planted::Bug::TurnIsGrant)),
        (
            "gives-up-in-silence",
            Self::Client(planted::Bug::GivesUpInSilence),
        ),
        ("no-lead", Self::Client(planted::Bug::NoLead)),
        ("resource-unfenced", Self::ResourceUnfenced),
        ("resource-ignores-reads", Self::ResourceIgnoresReads),
    ];

    /// The bug of this name.
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, bug)| *bug)
    }

    /// Tells the library, on this thread, to have this bug and no other.
    pub fn plant(bug: Option<Self>) {
        planted::plant(match bug {
            Some(Self::Client(bug)) => Some(bug),
            Some(Self::MissedNotification) => Some(planted::Bug::AsksOnlyWhenTold),
            _ => None,
        });
    }
}
