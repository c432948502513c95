//! The open file: voting in transactions, and listing locks.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;

use super::failure::Failure;
use super::line;
use super::name_record::{NameRecord, Transaction};
use super::notify::{Notification, Notifications};
use super::open::FileId;
use super::permits::Permits;
use super::readers;
use super::rows::{Now, Row, from_sql};
use crate::base::clock::Clock;
use crate::base::name::Name;
use crate::node::rules::{self, Constants, Write};
use crate::node::{Call, Sighting, Verb, Vote, vote, vote_on_permit};

/// All clients are on one machine and share one clock. A token is ahead of it only if clients
/// propose tokens faster than it advances, or if it was set back.
pub(super) const CONSTANTS: Constants = Constants {
    skew: super::SKEW,
    fence_retention: Duration::from_secs(24 * 3600),
    restart_guard: None,
};

/// An open file.
pub(super) struct Store {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) file: FileId,
    pub(super) clock: Clock,
    pub(super) floor: u64,
    /// Whether the last call was refused because the lock is held.
    pub(super) refused: bool,
}

/// The result of a transaction.
pub(super) struct Outcome {
    pub(super) votes: Vec<Vote>,
    /// Notifications to send.
    pub(super) outgoing: Vec<Notification>,
    /// The processes that hold the locks for which calls wait.
    pub(super) holders: Vec<(Name, Vec<u32>)>,
}

impl Store {
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Votes on all calls in one transaction. Either all of them take effect, or none.
    pub(super) fn vote(
        &mut self,
        calls: &[Call],
        notifications: &Notifications,
    ) -> Result<Outcome, Failure> {
        // Checking without a lock first only pays off if the calls are likely to be refused.
        if std::mem::take(&mut self.refused)
            && calls.iter().all(|call| call.verb() == Verb::Acquire)
            && let Some(outcome) = self.refuse(calls)?
        {
            return Ok(outcome);
        }
        let sql = SqlTransaction::begin(&self.connection)?;
        let at_least_us = clock_at_least(&self.connection, &self.clock, self.floor, calls)?;
        let transaction = Transaction {
            connection: &self.connection,
            now: Now::new(&self.clock, at_least_us),
            floor: self.floor,
            notifications,
            outgoing: RefCell::default(),
        };
        let mut votes = Vec::with_capacity(calls.len());
        let mut holders = Vec::new();
        for call in calls {
            let (verb, claim) = (call.verb(), call.claim());
            if let Some(seat) = claim.seat() {
                let mut semaphore = Permits::open(&transaction, claim, seat)?;
                let vote = vote_on_permit(&mut semaphore, verb, claim, seat);
                if let (Verb::Wait, Vote::Held { .. }) = (verb, &vote) {
                    let living = semaphore.living_holders();
                    holders.push((seat.semaphore().clone(), living));
                }
                semaphore.close()?;
                votes.push(vote);
                continue;
            }
            let mut record = NameRecord::open(&transaction, claim)?;
            let vote = vote(&mut record, verb, claim);
            if let (Verb::Wait, Vote::Held { .. }) = (verb, &vote)
                && let Some(living) = record.living_holders()
            {
                holders.push((claim.name().clone(), living));
            }
            record.close()?;
            votes.push(vote);
        }
        let outgoing = transaction.outgoing.into_inner();
        sql.commit()?;
        self.refused = matches!(votes.last(), Some(Vote::Held { .. }));
        Ok(Outcome {
            votes,
            outgoing,
            holders,
        })
    }

    /// Refuses ACQUIREs without locking the file, if all of them must be refused. Clients that poll
    /// must not block clients that hold or release locks. Nothing else needs to be done: waiters
    /// are served when the holder releases the lock or dies.
    fn refuse(&mut self, calls: &[Call]) -> Result<Option<Outcome>, Failure> {
        let now = Now::new(&self.clock, 0);
        let mut votes = Vec::with_capacity(calls.len());
        for call in calls {
            let row = Row::read(&self.connection, call.claim().name(), &now)?;
            if row.is_shared() || call.claim().seat().is_some() {
                // Its readers may be dead; or it is a reader that asks. Or another permit is free.
                return Ok(None);
            }
            let view = row.view(self.floor, now.unix_us);
            match rules::acquire(&view, call.claim()) {
                (vote @ Vote::Held { .. }, Write::Nothing) => votes.push(vote),
                _ => return Ok(None),
            }
        }
        self.refused = true;
        Ok(Some(Outcome {
            votes,
            outgoing: Vec::new(),
            holders: Vec::new(),
        }))
    }

    pub(super) fn sightings(
        &self,
        of: Option<&Name>,
        notifications: &Notifications,
    ) -> Result<Vec<Sighting>, Failure> {
        self.remove_dead_waiters(of, notifications)?;
        let names: Vec<Vec<u8>> = match of {
            Some(name) => vec![name.as_bytes().to_vec()],
            None => self
                .connection
                .prepare_cached("SELECT name FROM names WHERE owner IS NOT NULL ORDER BY name")?
                .query_map([], |row| row.get(0))?
                .collect::<Result<_, _>>()?,
        };
        let now = Now::new(&self.clock, 0);
        let mut seen = Vec::new();
        for name in names.iter().filter_map(|name| Name::from_key(name)) {
            let row = Row::read(&self.connection, &name, &now)?;
            let semaphore = name.as_permit().map(|(semaphore, _)| semaphore);
            let line = semaphore.as_ref().unwrap_or(&name);
            let waiting = line::living(&self.connection, line, &now)?;
            let holders: Vec<_> = match (row.is_shared(), row.lock) {
                (false, lock) => lock.map(|l| (l.owner, l.remaining)).into_iter().collect(),
                (true, _) => {
                    let readers = readers::all(&self.connection, &name, &now)?.into_iter();
                    let living = readers.filter(|reader| !reader.is_dead());
                    living.map(|r| (r.owner, Some(r.remaining))).collect()
                }
            };
            for (owner, remaining) in holders {
                let sighting = Sighting::new(name.clone(), owner, remaining);
                let sighting = sighting.with_fence(row.fence).with_granted(row.granted);
                seen.push(sighting.with_waiters(waiting));
            }
        }
        Ok(seen)
    }

    /// Removes waiters whose process is dead.
    pub(super) fn remove_dead_waiters(
        &self,
        of: Option<&Name>,
        notifications: &Notifications,
    ) -> Result<(), Failure> {
        for socket in line::sockets(&self.connection, of)? {
            if notifications.is_dead(&socket) {
                line::remove_at_socket(&self.connection, &socket)?;
            }
        }
        Ok(())
    }
}

/// A transaction that locks out all other writers. Rolled back if dropped. (That of `rusqlite`
/// parses its SQL each time.)
pub(super) struct SqlTransaction<'a> {
    connection: &'a Connection,
}

impl<'a> SqlTransaction<'a> {
    pub(super) fn begin(connection: &'a Connection) -> Result<Self, Failure> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(Self { connection })
    }

    pub(super) fn commit(self) -> Result<(), Failure> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

impl Drop for SqlTransaction<'_> {
    fn drop(&mut self) {
        // It may be committed already, or rolled back by an error.
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

/// Returns the least time that the node's clock may show. It does not go back: if the machine's
/// clock was set back, the largest token granted or the floor replaces it. This is looked up only
/// if a token of the calls is ahead of the machine's clock.
fn clock_at_least(
    connection: &Connection,
    clock: &Clock,
    floor: u64,
    calls: &[Call],
) -> Result<u64, Failure> {
    let cap = clock.unix_us().saturating_add(CONSTANTS.skew_us());
    if calls.iter().all(|call| call.claim().token() <= cap) {
        return Ok(0);
    }
    let highest: Option<i64> =
        connection.query_row("SELECT max(fence) FROM names", [], |row| row.get(0))?;
    Ok(highest.map_or(0, from_sql).max(floor))
}
