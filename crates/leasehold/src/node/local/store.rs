//! The file: votes, in transactions, and a look at what it holds.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;

use super::desk::{Desk, Office};
use super::failure::Failure;
use super::line;
use super::opening::FileId;
use super::post::{Letter, Post};
use super::rows::{Now, Row, from_sql};
use crate::base::clock::Clock;
use crate::base::name::Name;
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
                    .with_granted(row.granted)
                    .with_waiters(waiting),
            );
        }
        Ok(seen)
    }

    /// Strikes those who waited in processes that are dead.
    pub(super) fn strike_the_dead(&self, of: Option<&Name>, post: &Post) -> Result<(), Failure> {
        for socket in line::sockets(&self.connection, of)? {
            if post.is_dead(&socket) {
                line::strike(&self.connection, &socket)?;
            }
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
