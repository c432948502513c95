//! The file: votes, in transactions, and a look at what it holds.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::desk::{Desk, Office};
use super::failure::Failure;
use super::line;
use super::opening::FileId;
use super::post::{Letter, Post};
use super::process::Realm;
use super::rows::{Now, Row, from_sql, to_sql};
use crate::clock::Clock;
use crate::name::Name;
use crate::node::rules::{self, Constants, Write};
use crate::node::{Call, Sighting, Verb, Vote, vote};

/// All clients are on one machine and so have one clock. A token is ahead of it only if
/// clients overtake it, or if it was set back.
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
    /// The last who asked for a lock was refused.
    pub(super) refused: bool,
}

/// What became of calls.
pub(super) struct Outcome {
    pub(super) votes: Vec<Vote>,
    /// Whom to tell.
    pub(super) letters: Vec<Letter>,
    /// The processes that hold what is waited for.
    pub(super) holders: Vec<(Name, Vec<u32>)>,
}

impl Store {
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Votes on all calls in one transaction: all of it counts, or nothing.
    pub(super) fn vote(&mut self, calls: &[Call], post: &Post) -> Result<Outcome, Failure> {
        // Looking first costs those who are not refused.
        if std::mem::take(&mut self.refused)
            && calls.iter().all(|call| call.verb() == Verb::Acquire)
            && let Some(outcome) = self.refuse(calls)?
        {
            return Ok(outcome);
        }
        let transaction = Transaction::begin(&self.connection)?;
        let at_least_us = clock_at_least(&self.connection, &self.clock, self.floor, calls)?;
        let office = Office {
            connection: &self.connection,
            now: Now::new(&self.clock, at_least_us),
            floor: self.floor,
            post,
            letters: RefCell::default(),
        };
        let mut votes = Vec::with_capacity(calls.len());
        let mut holders = Vec::new();
        for call in calls {
            let (verb, claim) = (call.verb(), call.claim());
            let mut desk = Desk::open(&office, claim)?;
            let vote = vote(&mut desk, verb, claim);
            let lock = desk.close()?.lock;
            if let (Verb::Wait, Vote::Held { .. }, Some(lock)) = (verb, &vote, lock) {
                holders.push((claim.name().clone(), lock.living_holders()));
            }
            votes.push(vote);
        }
        let letters = office.letters.into_inner();
        transaction.commit()?;
        self.refused = matches!(votes.last(), Some(Vote::Held { .. }));
        Ok(Outcome {
            votes,
            letters,
            holders,
        })
    }

    /// Refuses acquires without a lock on the file, if all of them are to be refused: those
    /// who try must not stand in the way of those who work. Whoever stands in line for a lock
    /// that somebody has is served when that one gives it back or dies.
    fn refuse(&mut self, calls: &[Call]) -> Result<Option<Outcome>, Failure> {
        let now = Now::new(&self.clock, 0);
        let mut votes = Vec::with_capacity(calls.len());
        for call in calls {
            let row = Row::read(&self.connection, call.claim().name(), &now)?;
            let view = row.view(self.floor, now.unix_us);
            match rules::acquire(&view, call.claim()) {
                (vote @ Vote::Held { .. }, Write::Nothing) => votes.push(vote),
                _ => return Ok(None),
            }
        }
        self.refused = true;
        Ok(Some(Outcome {
            votes,
            letters: Vec::new(),
            holders: Vec::new(),
        }))
    }

    pub(super) fn sightings(
        &self,
        of: Option<&Name>,
        post: &Post,
    ) -> Result<Vec<Sighting>, Failure> {
        self.strike_the_dead(of, post)?;
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
        for name in names.iter().filter_map(|name| Name::new(name).ok()) {
            let row = Row::read(&self.connection, &name, &now)?;
            let Some(lock) = row.lock else { continue };
            let waiting = line::living(&self.connection, &name, &now)?;
            seen.push(
                Sighting::new(name, lock.owner, lock.remaining)
                    .with_fence(row.fence)
                    .with_waiters(waiting),
            );
        }
        Ok(seen)
    }

    /// Strikes those who waited in processes that are dead.
    fn strike_the_dead(&self, of: Option<&Name>, post: &Post) -> Result<(), Failure> {
        for socket in line::sockets(&self.connection, of)? {
            if post.is_dead(&socket) {
                line::strike(&self.connection, &socket)?;
            }
        }
        Ok(())
    }

    /// How much has piled up beside the file, in bytes.
    pub(super) fn log_size(&self) -> u64 {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        std::fs::metadata(log).map_or(0, |log| log.len())
    }

    /// Forgets names that nobody has used for so long that a missing fence means the same,
    /// strikes the dead, and writes back what has piled up beside the file.
    pub(super) fn tidy(&mut self, post: &Post) -> Result<(), Failure> {
        let now = Now::new(&self.clock, 0);
        self.strike_the_dead(None, post)?;
        line::tidy(&self.connection, &now)?;
        // A lock is timed as in `rows`: the wall clock may have been set.
        self.connection.execute(
            "DELETE FROM names WHERE fence_until_us < ?1 AND line = 0 AND (owner IS NULL
                 OR CASE WHEN clock IS NOT NULL AND clock = ?2 THEN expires_boot_ns <= ?3
                         ELSE expires_unix_us <= ?1 END)",
            params![
                to_sql(now.unix_us),
                Realm::here().clock,
                to_sql(now.boot.as_nanos())
            ],
        )?;
        self.write_back()
    }

    /// Writes everything back, and begins the log anew if nobody reads it at the moment. What
    /// the log still has counts as not written back to the first process that opens the file
    /// after the last has closed it, so without that it would grow from process to process.
    fn write_back(&mut self) -> Result<(), Failure> {
        // Those who work are not to wait for this: nearly everything is written, and waited
        // for, without keeping them out; then little is left to do while they are.
        for how in ["passive", "truncate"] {
            self.connection
                .pragma(None, "wal_checkpoint", how, |_| Ok(()))?;
        }
        Ok(())
    }
}

/// A transaction that keeps all other writers out. Rolled back if dropped. (That of `rusqlite`
/// has its words parsed each time.)
struct Transaction<'a> {
    connection: &'a Connection,
}

impl<'a> Transaction<'a> {
    fn begin(connection: &'a Connection) -> Result<Self, Failure> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(Self { connection })
    }

    fn commit(self) -> Result<(), Failure> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // Committed, or some error has rolled it back already.
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

/// The node's clock does not go back: if the machine's was set back, the highest token
/// granted, or the floor, takes its place. Looked for only when a token says that this may be
/// so.
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
