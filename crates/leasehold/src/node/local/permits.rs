//! A semaphore during a vote: a [`SemaphoreRecord`] on the rows of the file.
//!
//! A permit is a row of a name like any other. The semaphore is a row, too, of which only the number of
//! permits and the line are used.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Failure;
use super::name_record::{NameLine, Transaction};
use super::rows::{Row, to_sql};
use super::store::CONSTANTS;
use crate::base::holder::Holder;
use crate::base::name::Name;
use crate::node::rules::{self, Constants};
use crate::node::seat::Seat;
use crate::node::{Claim, SemaphoreRecord, Verb, Vote};

pub(super) struct Permits<'a> {
    transaction: &'a Transaction<'a>,
    seat: &'a Seat,
    row: Row,
    line: NameLine<'a>,
}

impl<'a> Permits<'a> {
    pub(super) fn open(
        transaction: &'a Transaction<'a>,
        claim: &'a Claim,
        seat: &'a Seat,
    ) -> Result<Self, Failure> {
        let name = seat.semaphore();
        let row = Row::read(transaction.connection, name, &transaction.now)?;
        Ok(Self {
            line: NameLine::new(transaction, claim, name, row.line),
            transaction,
            seat,
            row,
        })
    }

    /// The processes that hold permits and can be watched.
    pub(super) fn living_holders(&self) -> Vec<u32> {
        let permits = self.seat.searched();
        let rows = permits.map(|permit| self.read(&self.seat.semaphore().permit(permit)));
        let locks = rows.filter_map(|row| row.lock);
        locks.flat_map(|lock| lock.living_holders()).collect()
    }

    fn read(&self, name: &Name) -> Row {
        let now = &self.transaction.now;
        self.line.query(|file| Row::read(file, name, now))
    }

    /// Writes the changes of the vote.
    pub(super) fn close(self) -> Result<(), Failure> {
        let Self {
            transaction,
            seat,
            mut row,
            line,
        } = self;
        let had_line = row.line;
        row.line = line.close()?;
        let now = &transaction.now;
        row.write(transaction.connection, seat.semaphore(), had_line, now)
    }
}

impl<'a> SemaphoreRecord for Permits<'a> {
    type Line = NameLine<'a>;

    fn line(&mut self) -> &mut NameLine<'a> {
        &mut self.line
    }

    fn permits(&mut self) -> Option<u32> {
        let name = self.seat.semaphore();
        self.line.query(|file| permits(file, name))
    }

    fn set_permits(&mut self, permits: u32) {
        let (name, now) = (self.seat.semaphore(), &self.transaction.now);
        let until = now.until(CONSTANTS.fence_ttl(Duration::ZERO));
        self.line
            .query(|file| set_permits(file, name, permits, until));
    }

    fn lock_of(&mut self, permit: u32) -> Option<(Holder, Option<Duration>)> {
        let lock = self.read(&self.seat.semaphore().permit(permit)).lock?;
        Some((Holder::parse(&lock.owner), lock.remaining))
    }

    fn vote(&mut self, verb: Verb, claim: &Claim) -> Vote {
        let mut row = self.read(claim.name());
        let Transaction { floor, now, .. } = self.transaction;
        let view = row.view(*floor, now.unix_us);
        let (vote, write) = rules::vote(&view, verb, claim);
        row.apply(write, claim);
        let line = row.line;
        self.line
            .query(|file| row.write(file, claim.name(), line, now));
        vote
    }

    fn clock(&self) -> (u64, u64, Constants) {
        let Transaction { floor, now, .. } = self.transaction;
        (*floor, now.unix_us, CONSTANTS)
    }
}

/// The number of permits on record.
fn permits(connection: &Connection, name: &Name) -> Result<Option<u32>, Failure> {
    let mut statement = connection.prepare_cached("SELECT permits FROM names WHERE name = ?")?;
    let permits = statement.query_row([name.as_bytes()], |row| row.get(0));
    Ok(permits.optional()?.flatten())
}

fn set_permits(
    connection: &Connection,
    name: &Name,
    permits: u32,
    until_us: i64,
) -> Result<(), Failure> {
    connection
        .prepare_cached(
            "INSERT INTO names (name, permits, fence_until_us) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET permits = ?2, fence_until_us = ?3",
        )?
        .execute(params![name.as_bytes(), to_sql(permits.into()), until_us])?;
    Ok(())
}
