//! A lease in the history of a name, and its text on the nodes.
//!
//! The text is `HOW:FROM_MS:TO_MS:OWNER_ID:PERMIT:BY:TOKEN:pid@host:label`. Times are milliseconds since
//! 1970, and 0 if they are not known. OWNER_ID is the short id of the claim, which is not a secret: no
//! entry contains an owner value. PERMIT and BY may be empty. The rest is that of an owner value, as in
//! [`holder`](super::holder).

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::Loss;
use super::holder::{Holder, MAX_LABEL, owner_id, public_part};
use super::name::shown;

/// The rank of an entry by the client that broke the lease; see [`LeaseEnd::rank`].
const MAX_RANK: u8 = 4;

/// One lease in the [history](crate::Client::history) of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastLease {
    /// The holder, with its token. Holders to which a lease was passed on within a process have the same
    /// [`owner_id`](Holder::owner_id) and different tokens.
    pub holder: Holder,
    /// The number of the permit, if this is the history of a semaphore.
    pub permit: Option<u32>,
    /// When the lease was acquired, by the holder's clock.
    pub acquired_at: Option<SystemTime>,
    /// When the lease ended, by the clock of the client that recorded the end. If it is
    /// [`Expired`](LeaseEnd::Expired), it ended at this time or earlier: then the next holder acquired the
    /// lock, or the lock was found free. `None` if it is still held, and if that is unknown.
    pub ended_at: Option<SystemTime>,
    /// How it ended.
    pub end: LeaseEnd,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// It has not ended.
    StillHeld,
    /// Its holder released it. That includes leases that were dropped, passed on to another task of the
    /// process, or downgraded.
    Released,
    /// Its holder noticed that it was lost.
    Lost(Loss),
    /// Another client broke it.
    #[non_exhaustive]
    Broken {
        /// The client that broke it: its host and process id. `None` if only the holder recorded it.
        by: Option<String>,
    },
    /// The holder recorded no end, and does not hold the lock any more. It has crashed, or it could not
    /// reach the nodes, and its lease expired. [`PastLease::ended_at`] is the latest possible time.
    Expired,
    /// The holder recorded no end, and too few nodes answered to tell whether it still holds the lock.
    Unknown,
}

impl LeaseEnd {
    pub(crate) fn of_loss(loss: Loss) -> Self {
        match loss {
            Loss::Broken => Self::Broken { by: None },
            loss => Self::Lost(loss),
        }
    }

    /// The entry with the largest rank counts, if the end of a lease was recorded several times. A
    /// client that broke it knows more than the holder, which only notices. A holder that releases a
    /// lease may learn from the answers that it had been lost.
    fn rank(&self) -> u8 {
        match self {
            Self::Broken { by: Some(_) } => MAX_RANK,
            Self::Broken { by: None } => 3,
            Self::Lost(_) => 2,
            Self::Released => 1,
            Self::StillHeld | Self::Expired | Self::Unknown => 0,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Lost(Loss::TakenAway) => "taken-away",
            Self::Lost(Loss::MaxHold) => "max-hold",
            Self::Lost(Loss::RuntimeEnded) => "runtime-ended",
            Self::Lost(_) => "not-renewed",
            Self::Broken { .. } => "broken",
            Self::StillHeld | Self::Expired | Self::Unknown => "held",
        }
    }

    fn from_word(word: &str, by: &str) -> Option<Self> {
        Some(match word {
            "held" => Self::StillHeld,
            "released" => Self::Released,
            "not-renewed" => Self::Lost(Loss::NotRenewed),
            "taken-away" => Self::Lost(Loss::TakenAway),
            "max-hold" => Self::Lost(Loss::MaxHold),
            "runtime-ended" => Self::Lost(Loss::RuntimeEnded),
            "broken" => Self::Broken { by: breaker(by) },
            _ => return None,
        })
    }
}

fn breaker(by: &str) -> Option<String> {
    let (pid, host) = by.split_once('@')?;
    Some(format!(
        "{} pid {}",
        shown(host.as_bytes()),
        pid.parse::<u32>().ok()?
    ))
}

impl fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StillHeld => "held",
            Self::Released => "released",
            Self::Lost(Loss::TakenAway) => "lost (taken away)",
            Self::Lost(Loss::MaxHold) => "lost (time limit)",
            Self::Lost(Loss::RuntimeEnded) => "lost (runtime ended)",
            Self::Lost(_) => "lost (not renewed)",
            Self::Broken { by: Some(by) } => return write!(f, "broken by {by}"),
            Self::Broken { by: None } => "broken",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
        })
    }
}

/// What is recorded about a lease.
pub(crate) struct Recorded<'a> {
    pub(crate) end: &'a LeaseEnd,
    /// The client that broke it, as `pid@host`.
    pub(crate) by: &'a str,
    pub(crate) acquired_at: Option<SystemTime>,
    pub(crate) ended_at: Option<SystemTime>,
    pub(crate) owner: &'a [u8],
    pub(crate) permit: Option<u32>,
    /// The token of the lease, which may be larger than that of the claim.
    pub(crate) token: u64,
}

impl Recorded<'_> {
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let (from, to) = (unix_ms(self.acquired_at), unix_ms(self.ended_at));
        let permit = self.permit.map_or_else(String::new, |n| n.to_string());
        let (how, id) = (self.end.word(), owner_id(self.owner));
        let head = format!("{how}:{from}:{to}:{id}:{permit}:{}:", self.by);
        [head.as_bytes(), &public_part(self.owner, self.token)].concat()
    }
}

fn unix_ms(at: Option<SystemTime>) -> u128 {
    let since_1970 = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since_1970.map_or(0, |since_1970| since_1970.as_millis())
}

impl PastLease {
    /// Parses the text of an entry. `None` if this version does not understand it.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.splitn(7, |&b| b == b':');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let (how, from, to) = (word()?, word()?, word()?);
        let (id, permit, by) = (word()?, word()?, word()?);
        // An id is 12 hexadecimal digits. Nothing else of an entry may reach a terminal unchecked.
        let is_id = id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let rest = parts.next().filter(|_| is_id)?;
        let holder = Holder::parse_public(&rest[..rest.len().min(MAX_LABEL + 512)])?;
        Some(Self {
            holder: Holder {
                owner_id: Some(id.to_owned()),
                ..holder
            },
            permit: (!permit.is_empty())
                .then(|| permit.parse())
                .transpose()
                .ok()?,
            acquired_at: time(from)?,
            ended_at: time(to)?,
            end: LeaseEnd::from_word(how, by)?,
        })
    }

    /// Which lease this is an entry of.
    pub(crate) fn id(&self) -> (Option<u64>, Option<&str>) {
        (self.holder.token, self.holder.owner_id.as_deref())
    }

    /// Adds what another entry of the same lease says.
    pub(crate) fn merge(&mut self, other: Self) {
        // A client that broke the lease does not know exactly when it began.
        let by_breaker = |lease: &Self| lease.end.rank() == MAX_RANK;
        let acquired_at = match by_breaker(self) && !by_breaker(&other) {
            true => other.acquired_at.or(self.acquired_at),
            false => self.acquired_at.or(other.acquired_at),
        };
        if other.end.rank() > self.end.rank() {
            *self = other;
        }
        self.acquired_at = acquired_at;
    }

    /// Orders leases by token. A token is a time in microseconds, so leases without one are ordered
    /// among the others by when they were acquired.
    pub(crate) fn order(&self) -> (u64, Option<SystemTime>) {
        let since_1970 = self
            .acquired_at
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let acquired_us = since_1970.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(0));
        let token = self.holder.token.filter(|token| *token > 0);
        (token.unwrap_or(acquired_us), self.ended_at)
    }
}

/// The end of the year 9999. Programs that write dates cannot write later ones.
pub(super) const LATEST_MS: u64 = 253_402_300_799_999;

/// `Some(None)` if the time is not known, and `None` if the text is no time.
fn time(ms: &str) -> Option<Option<SystemTime>> {
    match ms.parse().ok()? {
        0 => Some(None),
        ms @ 1..=LATEST_MS => Some(Some(UNIX_EPOCH + Duration::from_millis(ms))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::holder::{new_owner, new_owner_in};
    use crate::base::mode::Mode;

    fn at(ms: u64) -> Option<SystemTime> {
        Some(UNIX_EPOCH + Duration::from_millis(ms))
    }

    fn entry(end: &LeaseEnd, by: &str, (from, to): (u64, u64), owner: &[u8]) -> PastLease {
        let recorded = Recorded {
            end,
            by,
            acquired_at: at(from),
            ended_at: at(to).filter(|_| to > 0),
            owner,
            permit: None,
            token: 1_763_000_000_000_016,
        };
        PastLease::parse(&recorded.to_text()).unwrap()
    }

    /// Anyone who may write to the list can write this.
    #[test]
    fn a_time_that_cannot_be_shown_is_no_time() {
        let with_time = |ms: u64| {
            let text = format!("released:1700000000000:{ms}:00112233aabb:::1700000000000000:1@h:x");
            PastLease::parse(text.as_bytes())
        };
        assert_eq!(with_time(LATEST_MS).unwrap().ended_at, at(LATEST_MS));
        assert!(with_time(LATEST_MS + 1).is_none());
        assert!(with_time(u64::MAX).is_none());
    }

    #[test]
    fn an_entry_says_what_was_recorded_and_has_no_secret() {
        let owner = new_owner_in(Mode::Shared, 1_763_000_000_000_000, "nightly: backup");
        for end in [
            LeaseEnd::StillHeld,
            LeaseEnd::Released,
            LeaseEnd::Lost(Loss::NotRenewed),
            LeaseEnd::Lost(Loss::TakenAway),
            LeaseEnd::Lost(Loss::MaxHold),
            LeaseEnd::Lost(Loss::RuntimeEnded),
            LeaseEnd::Broken { by: None },
        ] {
            let recorded = Recorded {
                end: &end,
                by: "",
                acquired_at: at(1_763_000_000_001),
                ended_at: at(1_763_000_000_900),
                owner: &owner,
                permit: Some(7),
                token: 1_763_000_000_000_003,
            };
            let text = recorded.to_text();
            assert!(!text.windows(8).any(|part| part == &owner[..8]), "{end}");
            let past = PastLease::parse(&text).unwrap();
            assert_eq!(past.end, end);
            assert_eq!(
                (past.acquired_at, past.ended_at),
                (at(1_763_000_000_001), at(1_763_000_000_900))
            );
            assert_eq!(past.permit, Some(7));
            assert_eq!(past.holder.token, Some(1_763_000_000_000_003));
            assert_eq!(past.holder.owner_id, Some(owner_id(&owner)));
            assert_eq!(past.holder.label.as_deref(), Some("nightly: backup"));
            assert!(past.holder.shared && !past.holder.kept);
        }
    }

    #[test]
    fn the_client_that_broke_a_lease_counts_and_the_holder_knows_when_it_began() {
        let owner = new_owner(1_763_000_000_000_000, "");
        let held = entry(&LeaseEnd::StillHeld, "", (1000, 0), &owner);
        let broken = entry(
            &LeaseEnd::Broken { by: None },
            "12@ops-1",
            (900, 5000),
            &owner,
        );
        let noticed = entry(&LeaseEnd::Broken { by: None }, "", (1000, 6000), &owner);
        let by = Some("ops-1 pid 12".to_owned());
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let entries = [&held, &broken, &noticed];
            let mut merged = entries[order[0]].clone();
            for place in &order[1..] {
                merged.merge(entries[*place].clone());
            }
            assert_eq!(merged.end, LeaseEnd::Broken { by: by.clone() }, "{order:?}");
            assert_eq!(merged.ended_at, at(5000), "{order:?}");
            assert_eq!(merged.acquired_at, at(1000), "{order:?}");
        }
    }

    #[test]
    fn a_lease_that_was_lost_was_not_released() {
        let owner = new_owner(1_763_000_000_000_000, "");
        let released = entry(&LeaseEnd::Released, "", (1000, 5000), &owner);
        let lost = LeaseEnd::Lost(Loss::TakenAway);
        let refused = entry(&lost, "", (1000, 5001), &owner);
        for (one, other) in [(&released, &refused), (&refused, &released)] {
            let mut merged = one.clone();
            merged.merge(other.clone());
            assert_eq!(merged.end, lost);
        }
    }

    #[test]
    fn an_entry_that_makes_no_sense_is_left_out() {
        for text in [
            &b""[..],
            b"released",
            b"released:1:2:00112233aabb:::16:1@h",
            b"vanished:1:2:00112233aabb:::16:1@h:",
            b"released:x:2:00112233aabb:::16:1@h:",
            b"released:1:2:\x1b[2J12345678:::16:1@h:",
            b"released:1:2:00112233aabb:x::16:1@h:",
            b"released:1:99999999999999999999:00112233aabb:::16:1@h:",
            b"\xff\xfe",
        ] {
            assert_eq!(PastLease::parse(text), None, "{}", text.escape_ascii());
        }
        assert!(PastLease::parse(b"released:1:2:00112233aabb:::16:1@h:").is_some());
    }
}
