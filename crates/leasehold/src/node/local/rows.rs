//! The rows of names.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Failure;
use super::process::{self, Realm};
use super::store::CONSTANTS;
use crate::base::clock::{Clock, Moment};
use crate::base::holder::is_marker;
use crate::base::name::Name;
use crate::node::Claim;
use crate::node::rules::{View, Write};

/// The row of a name.
#[derive(Default)]
pub(super) struct Row {
    pub(super) lock: Option<Lock>,
    pub(super) fence: Option<u64>,
    /// W, if it is stored apart from the fence.
    pub(super) write_fence: Option<u64>,
    /// The token granted last, and when by the machine's clock, as stored in the file.
    pub(super) granted: Option<(u64, u64)>,
    /// The token that this vote grants, if any.
    grants: Option<u64>,
    /// There may be waiters.
    pub(super) line: bool,
    /// The lock differs from that in the file.
    changed: bool,
    /// How long to keep the fence, if it was set.
    fence_ttl: Option<Duration>,
}

/// A lock that has not expired and whose holder is not dead.
pub(super) struct Lock {
    pub(super) owner: Vec<u8>,
    holders: Option<String>,
    /// `None`: the lock never expires.
    pub(super) remaining: Option<Duration>,
}

impl Lock {
    /// Returns the holders that are alive and can be watched.
    pub(super) fn living_holders(&self) -> Vec<u32> {
        let holders = self.holders.as_deref();
        holders.map(process::living).unwrap_or_default()
    }
}

/// The readings of the clocks at one moment.
pub(super) struct Now {
    /// The node's clock, which does not go back.
    pub(super) unix_us: u64,
    /// The machine's wall clock.
    pub(super) wall_us: u64,
    pub(super) boot: Moment,
}

impl Now {
    pub(super) fn new(clock: &Clock, at_least_us: u64) -> Self {
        let wall_us = clock.unix_us();
        Self {
            unix_us: wall_us.max(at_least_us),
            wall_us,
            boot: clock.now(),
        }
    }

    pub(super) fn until(&self, time: Duration) -> i64 {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        to_sql(self.unix_us.saturating_add(time))
    }
}

impl Row {
    /// Reads the row of a name. A lock that has expired, or whose holders are dead, counts as free.
    pub(super) fn read(connection: &Connection, name: &Name, now: &Now) -> Result<Self, Failure> {
        let mut statement = connection.prepare_cached(
            "SELECT owner, holders, clock, expires_boot_ns, expires_unix_us, fence, line,
                    granted_token, granted_unix_us, write_fence
             FROM names WHERE name = ?",
        )?;
        let row = statement.query_row([name.as_bytes()], |row| {
            let owner: Option<Vec<u8>> = row.get(0)?;
            let holders: Option<String> = row.get(1)?;
            let lock = match owner {
                None => None,
                Some(owner) => Some(Lock {
                    owner,
                    holders,
                    remaining: remaining(row, now)?,
                }),
            };
            Ok(Self {
                lock: lock.filter(Lock::is_live),
                fence: row.get::<_, Option<i64>>(5)?.map(from_sql),
                write_fence: row.get::<_, Option<i64>>(9)?.map(from_sql),
                line: row.get(6)?,
                granted: match (row.get(7)?, row.get(8)?) {
                    (Some(token), Some(at_us)) => Some((from_sql(token), from_sql(at_us))),
                    _ => None,
                },
                grants: None,
                changed: false,
                fence_ttl: None,
            })
        });
        Ok(row.optional()?.unwrap_or_default())
    }

    pub(super) fn view(&self, floor: u64, now: u64) -> View<'_> {
        View {
            lock: self.lock.as_ref().map(|lock| &*lock.owner),
            remaining: self.lock.as_ref().and_then(|lock| lock.remaining),
            fence: self.fence,
            write_fence: self.write_fence,
            share: None,
            floor,
            now,
            constants: CONSTANTS,
        }
    }

    /// Whether readers hold the lock.
    pub(super) fn is_shared(&self) -> bool {
        let lock = self.lock.as_ref();
        lock.is_some_and(|lock| is_marker(&lock.owner))
    }

    /// Sets the marker of readers, of whom the last expires after this time; `None`: there are none
    /// left.
    pub(super) fn mark(&mut self, marker: &[u8], longest: Option<Duration>) {
        self.set_lock(longest.map(|longest| Lock::new(marker, None, longest)));
    }

    /// Sets the fence after the grant of a shared claim.
    pub(super) fn set_shared_fence(&mut self, token: u64, fence: u64, written: u64) {
        let kept = self.lock.as_ref().and_then(|lock| lock.remaining);
        (self.fence, self.write_fence) = (Some(fence), Some(written));
        self.grants = Some(token);
        self.fence_ttl = Some(CONSTANTS.fence_ttl(kept.unwrap_or_default()));
    }

    /// Applies the write of a rule, except about readers.
    pub(super) fn apply(&mut self, write: Write, claim: &Claim) {
        let (lock, ttl, fence) = match write {
            Write::Nothing | Write::Share { .. } | Write::Unshare { .. } => return,
            Write::Lock { fence, remaining } => {
                let holders = process::describe(&claim.holders());
                let lock = Lock::new(claim.owner(), holders, remaining);
                self.grants = claim.is_fenced().then(|| claim.token());
                (Some(lock), remaining, fence)
            }
            Write::Unlock { fence } => (None, Duration::ZERO, fence),
            Write::Keep {
                value,
                remaining,
                fence,
            } => (Some(Lock::new(&value, None, remaining)), remaining, fence),
        };
        self.set_lock(lock);
        if fence.is_some() {
            // Rule: an exclusive grant, or a raise, removes W.
            (self.fence, self.write_fence) = (fence, None);
        }
        self.fence_ttl = Some(CONSTANTS.fence_ttl(ttl));
    }

    /// Grants the lock to a waiter, as long as its process lives. A claim that has the lock already
    /// has left the line, so the known process stays.
    pub(super) fn grant(
        &mut self,
        owner: &[u8],
        holders: Option<String>,
        token: u64,
        time: Duration,
    ) {
        let lock = self.lock.take().filter(|lock| lock.owner == owner);
        let known = lock.and_then(|lock| lock.holders);
        self.set_lock(Some(Lock::new(owner, holders.or(known), time)));
        (self.fence, self.write_fence) = (Some(token), None);
        self.grants = Some(token);
        self.fence_ttl = Some(CONSTANTS.fence_ttl(time));
    }

    fn set_lock(&mut self, lock: Option<Lock>) {
        self.lock = lock;
        self.changed = true;
    }

    /// Writes the changes.
    pub(super) fn write(
        &self,
        connection: &Connection,
        name: &Name,
        had_line: bool,
        now: &Now,
    ) -> Result<(), Failure> {
        let fence_until = self.fence_ttl.map(|ttl| now.until(ttl));
        if self.changed {
            let lock = self.lock.as_ref();
            let remaining = lock.and_then(|lock| lock.remaining);
            let granted = match (self.grants, self.granted) {
                (Some(token), Some(known)) if known.0 == token => Some(known),
                (Some(token), _) => Some((token, now.wall_us)),
                (None, known) => known,
            };
            connection
                .prepare_cached(
                    "INSERT INTO names (name, owner, holders, clock, expires_boot_ns,
                                        expires_unix_us, fence, fence_until_us, line,
                                        granted_token, granted_unix_us, write_fence)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, coalesce(?8, ?10), ?9, ?11, ?12, ?13)
                     ON CONFLICT (name) DO UPDATE SET
                         owner = ?2, holders = ?3, clock = ?4, expires_boot_ns = ?5,
                         expires_unix_us = ?6, fence = ?7,
                         fence_until_us = coalesce(?8, fence_until_us), line = ?9,
                         granted_token = ?11, granted_unix_us = ?12, write_fence = ?13",
                )?
                .execute(params![
                    name.as_bytes(),
                    lock.map(|lock| &*lock.owner),
                    lock.and_then(|lock| lock.holders.as_deref()),
                    lock.and(Realm::here().clock.as_ref()),
                    remaining.map(|left| to_sql((now.boot + left).as_nanos())),
                    remaining.map(|left| now.until(left)),
                    self.fence.map(to_sql),
                    fence_until,
                    self.line,
                    to_sql(now.unix_us),
                    granted.map(|(token, _)| to_sql(token)),
                    granted.map(|(_, at_us)| to_sql(at_us)),
                    self.write_fence.map(to_sql),
                ])?;
        } else if self.line != had_line {
            connection
                .prepare_cached(
                    "INSERT INTO names (name, fence_until_us, line) VALUES (?1, ?2, ?3)
                     ON CONFLICT (name) DO UPDATE SET line = ?3",
                )?
                .execute(params![name.as_bytes(), to_sql(now.unix_us), self.line])?;
        }
        Ok(())
    }
}

impl Lock {
    fn new(owner: &[u8], holders: Option<String>, time: Duration) -> Self {
        Self {
            owner: owner.to_vec(),
            holders,
            remaining: Some(time),
        }
    }

    fn is_live(&self) -> bool {
        let expired = self.remaining == Some(Duration::ZERO);
        !expired && !self.holders.as_deref().is_some_and(process::all_dead)
    }
}

/// Returns the time until the lock expires; `None`: it never expires.
pub(super) fn remaining(
    row: &rusqlite::Row<'_>,
    now: &Now,
) -> Result<Option<Duration>, rusqlite::Error> {
    let clock: Option<String> = row.get(2)?;
    let (boot_ns, unix_us): (Option<i64>, Option<i64>) = (row.get(3)?, row.get(4)?);
    Ok(if clock.is_some() && clock == Realm::here().clock {
        boot_ns.map(|ns| Moment::from_nanos(from_sql(ns)).saturating_duration_since(now.boot))
    } else {
        // Written in another boot or time namespace, or by another program.
        unix_us.map(|us| Duration::from_micros(from_sql(us).saturating_sub(now.unix_us)))
    })
}

/// Numbers in SQLite are signed. Tokens and times are far below the limit.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_grant_keeps_the_process() {
        let (mut row, time) = (Row::default(), Duration::from_secs(2));
        let holders = |row: &Row| row.lock.as_ref().and_then(|lock| lock.holders.clone());
        row.grant(b"one", Some("its process".into()), 16, time);
        row.grant(b"one", None, 16, time);
        assert_eq!(holders(&row).as_deref(), Some("its process"));
        row.grant(b"two", None, 32, time);
        assert_eq!(holders(&row), None);
    }
}
