//! Planted bugs: rules broken on purpose, each of which the checkers must find.

use leasehold::planted;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A rule of the client, or one of how nodes vote. The library itself breaks it.
    Client(planted::Bug),
    /// ACQUIRE with a token equal to the fence is granted.
    TiesWin,
    /// The fence is deleted together with the lock.
    FenceDiesWithLock,
    /// The fence is kept for F + S only, without the hour for clocks that jump.
    FenceKeptTooShort,
    /// A missing fence reads as 0.
    MissingFenceIsZero,
    /// A node that restarted votes at once.
    NoRestartGuard,
    /// A node that lost its memory grants any token.
    NoFloor,
    /// EXTEND takes a free lock, whatever the fence.
    ExtendIgnoresFence,
    /// The resource accepts every token.
    ResourceUnfenced,
    /// The resource checks the tokens of writes only.
    ResourceIgnoresReads,
    /// A node notifies no waiter, and waiters do not ask before they are notified.
    MissedNotification,
    /// A waiter stays in line for ever, even if its process is dead.
    DeadWaiterKept,
    /// The first in line is granted the lock, though a larger token was granted since.
    StaleTicketGranted,
    /// The line is ordered by arrival instead of by ticket.
    LineByArrival,
    /// A node refreshes the expiry of a line only when the first in line sends WAIT. (A former
    /// bug.)
    LineKeptByFirst,
    /// A node that was a replica in between is taken to have the same memory as before. (A former
    /// bug.)
    PromotionIgnored,
    /// A connection is trusted for as long as it is open. (A former bug.)
    NeverVerified,
    /// A shared grant does not raise the fence.
    ReaderLeavesFence,
    /// A reader's token need not exceed those of earlier writers.
    ReaderIgnoresWriteFence,
    /// An exclusive grant leaves the second number of the fence as it was.
    ExclusiveKeepsWriteFence,
    /// EXTEND lets a reader join whatever writers came after it.
    ReaderJoinsAnyway,
    /// For a writer, a lock that readers have is free.
    WriterIgnoresMarker,
    /// After a downgrade, the node forgets that a writer had the lock.
    DowngradeForgetsWriter,
    /// A node that lost its memory grants a reader any token.
    NoFloorForReaders,
    /// The marker lives as long as the reader that joined last, not as the one that stays longest.
    MarkerOfTheLast,
    /// A reader joins other readers though a writer is first in line.
    ReadersPassTheLine,
    /// A connection stays in use after a timeout, and the late reply answers the next request.
    WrongReply,
    /// A node does not notify waiters of a result.
    KeptNotifiesNobody,
}

impl Bug {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 51] = [
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
        ("fence-kept-too-short", Self::FenceKeptTooShort),
        ("missing-fence-is-zero", Self::MissingFenceIsZero),
        ("no-restart-guard", Self::NoRestartGuard),
        ("no-floor", Self::NoFloor),
        ("promotion-ignored", Self::PromotionIgnored),
        ("never-verified", Self::NeverVerified),
        ("extend-ignores-fence", Self::ExtendIgnoresFence),
        ("wrong-reply", Self::WrongReply),
        (
            "plain-delete-across-connections",
            Self::Client(planted::Bug::PlainDeleteAcrossConnections),
        ),
        (
            "releases-in-doubt",
            Self::Client(planted::Bug::ReleasesInDoubt),
        ),
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
        (
            "result-of-a-minority",
            Self::Client(planted::Bug::ResultOfAMinority),
        ),
        ("failure-keeps", Self::Client(planted::Bug::FailureKeeps)),
        ("kept-notifies-nobody", Self::KeptNotifiesNobody),
        ("unsorted", Self::Client(planted::Bug::Unsorted)),
        (
            "some-names-suffice",
            Self::Client(planted::Bug::SomeNamesSuffice),
        ),
        ("free-is-grant", Self::Client(planted::Bug::FreeIsGrant)),
        (
            "leaves-when-told",
            Self::Client(planted::Bug::LeavesWhenTold),
        ),
        ("ticket-ignored", Self::Client(planted::Bug::TicketIgnored)),
        (
            "rest-not-announced",
            Self::Client(planted::Bug::RestNotAnnounced),
        ),
        (
            "other-number-accepted",
            Self::Client(planted::Bug::OtherNumberAccepted),
        ),
        ("resource-unfenced", Self::ResourceUnfenced),
        ("resource-ignores-reads", Self::ResourceIgnoresReads),
        ("reader-leaves-fence", Self::ReaderLeavesFence),
        ("reader-ignores-write-fence", Self::ReaderIgnoresWriteFence),
        (
            "exclusive-keeps-write-fence",
            Self::ExclusiveKeepsWriteFence,
        ),
        ("reader-joins-anyway", Self::ReaderJoinsAnyway),
        ("writer-ignores-marker", Self::WriterIgnoresMarker),
        ("downgrade-forgets-writer", Self::DowngradeForgetsWriter),
        ("no-floor-for-readers", Self::NoFloorForReaders),
        ("marker-of-the-last", Self::MarkerOfTheLast),
        ("readers-pass-the-line", Self::ReadersPassTheLine),
    ];

    /// The bug of this name.
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, bug)| *bug)
    }

    /// Makes the library have this bug, and no other, on this thread.
    pub fn plant(bug: Option<Self>) {
        planted::plant(match bug {
            Some(Self::Client(bug)) => Some(bug),
            Some(Self::MissedNotification) => Some(planted::Bug::WaitsOnlyForNotifications),
            Some(Self::WrongReply) => Some(planted::Bug::UsedAfterTimeout),
            _ => None,
        });
    }
}
