//! The rows of waiters, ordered by ticket. Every function uses an index, and reads no more rows
//! than it removes or counts.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::failure::Failure;
use super::process::{self, Realm};
use super::rows::{Now, from_sql, to_sql};
use crate::base::name::Name;
use crate::node::line::{place, ticket_at};
use crate::node::{Claim, DEAD_AFTER, Holders};

/// The largest number of waiters ahead that is counted.
const MAX_COUNTED: i64 = 100;

/// A waiter.
#[derive(Clone)]
pub(super) struct Waiter {
    pub(super) owner: Box<[u8]>,
    pub(super) ticket: u64,
    /// The process of the waiter.
    pub(super) holders: Option<String>,
    pub(super) address: Address,
}

/// Where to notify a waiter.
#[derive(Clone, Default)]
pub(super) struct Address {
    /// Empty: the waiter cannot be notified and only polls.
    pub(super) socket: String,
    pub(super) id: i64,
}

/// Adds a waiter, or records its heartbeat. (An owner value never changes its ticket.)
pub(super) fn join(
    connection: &Connection,
    claim: &Claim,
    address: &Address,
    now: &Now,
) -> Result<(), Failure> {
    connection
        .prepare_cached(
            "INSERT INTO waiters (name, owner, ticket, clock, asked_boot_ns, asked_unix_us,
                                  holders, socket, id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (name, owner) DO UPDATE SET
                 clock = ?4, asked_boot_ns = ?5, asked_unix_us = ?6, socket = ?8, id = ?9",
        )?
        .execute(params![
            claim.name().as_bytes(),
            claim.owner(),
            to_sql(place(claim.token(), claim.owner())),
            our_clock(),
            to_sql(now.boot.as_nanos()),
            to_sql(now.wall_us),
            process::describe(&Holders::ThisProcess),
            address.socket,
            address.id,
        ])?;
    Ok(())
}

pub(super) fn leave(connection: &Connection, name: &Name, owner: &[u8]) -> Result<(), Failure> {
    connection
        .prepare_cached("DELETE FROM waiters WHERE name = ? AND owner = ?")?
        .execute(params![name.as_bytes(), owner])?;
    Ok(())
}

/// Removes waiters that have been silent for this time. Of waiters with another clock, only the
/// [first] is checked.
pub(super) fn remove_silent(
    connection: &Connection,
    name: &Name,
    silence: Duration,
    now: &Now,
) -> Result<(), Failure> {
    let Some(clock) = &Realm::here().clock else {
        return Ok(());
    };
    let before = now.boot.saturating_sub(silence);
    connection
        .prepare_cached("DELETE FROM waiters WHERE name = ? AND clock = ? AND asked_boot_ns < ?")?
        .execute(params![name.as_bytes(), clock, to_sql(before.as_nanos())])?;
    Ok(())
}

/// Returns the first in line.
pub(super) fn first(
    connection: &Connection,
    name: &Name,
    now: &Now,
) -> Result<Option<Waiter>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, ticket, holders, socket, id, clock, asked_unix_us FROM waiters
         WHERE name = ? ORDER BY ticket, owner LIMIT 1",
    )?;
    loop {
        let first = statement.query_row([name.as_bytes()], |row| {
            let clock: String = row.get(5)?;
            Ok((
                waiter(row)?,
                is_foreign_and_silent(&clock, row.get(6)?, now),
            ))
        });
        let Some((waiter, silent)) = first.optional()? else {
            return Ok(None);
        };
        if !silent {
            return Ok(Some(waiter));
        }
        leave(connection, name, &waiter.owner)?;
    }
}

/// Returns the owner values of the first in line, in order.
pub(super) fn front(
    connection: &Connection,
    name: &Name,
    at_most: usize,
) -> Result<Vec<Box<[u8]>>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT owner FROM waiters WHERE name = ? ORDER BY ticket, owner LIMIT ?",
    )?;
    let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
    let owners = statement.query_map(params![name.as_bytes(), at_most], |row| {
        Ok(row.get::<_, Vec<u8>>(0)?.into())
    })?;
    Ok(owners.collect::<Result<_, _>>()?)
}

pub(super) fn find(
    connection: &Connection,
    name: &Name,
    owner: &[u8],
) -> Result<Option<Waiter>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, ticket, holders, socket, id FROM waiters WHERE name = ? AND owner = ?",
    )?;
    let found = statement.query_row(params![name.as_bytes(), owner], waiter);
    Ok(found.optional()?)
}

fn waiter(row: &Row<'_>) -> Result<Waiter, rusqlite::Error> {
    let owner: Box<[u8]> = row.get::<_, Vec<u8>>(0)?.into();
    Ok(Waiter {
        ticket: ticket_at(from_sql(row.get(1)?), &owner),
        owner,
        holders: row.get(2)?,
        address: Address {
            socket: row.get(3)?,
            id: row.get(4)?,
        },
    })
}

/// Returns how many waiters are ahead of this one, counted up to 100.
pub(super) fn before(
    connection: &Connection,
    name: &Name,
    ticket: u64,
    owner: &[u8],
) -> Result<u32, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM waiters
             WHERE name = ? AND (ticket, owner) < (?, ?) LIMIT ?)",
    )?;
    let place = to_sql(place(ticket, owner));
    let before = params![name.as_bytes(), place, owner, MAX_COUNTED];
    Ok(statement.query_row(before, |row| row.get(0))?)
}

/// Returns how many waiters are not silent.
pub(super) fn living(connection: &Connection, name: &Name, now: &Now) -> Result<usize, Failure> {
    let mut statement = connection
        .prepare_cached("SELECT clock, asked_boot_ns, asked_unix_us FROM waiters WHERE name = ?")?;
    let oldest = to_sql(now.boot.saturating_sub(DEAD_AFTER).as_nanos());
    let mut rows = statement.query([name.as_bytes()])?;
    let mut living = 0;
    while let Some(row) = rows.next()? {
        let clock: String = row.get(0)?;
        let late = is_ours(&clock) && row.get::<_, i64>(1)? < oldest;
        let silent = late || is_foreign_and_silent(&clock, row.get(2)?, now);
        living += usize::from(!silent);
    }
    Ok(living)
}

/// Returns the sockets of all waiters of a name, or of all names.
pub(super) fn sockets(connection: &Connection, of: Option<&Name>) -> Result<Vec<String>, Failure> {
    let mut statement = connection
        .prepare_cached("SELECT DISTINCT socket FROM waiters WHERE ?1 IS NULL OR name = ?1")?;
    let sockets = statement.query_map([of.map(Name::as_bytes)], |row| row.get(0))?;
    Ok(sockets.collect::<Result<_, _>>()?)
}

/// Removes all waiters of a socket.
pub(super) fn remove_at_socket(connection: &Connection, socket: &str) -> Result<(), Failure> {
    let sql = "DELETE FROM waiters WHERE socket = ?";
    connection.prepare_cached(sql)?.execute([socket])?;
    Ok(())
}

/// Removes all silent waiters, and marks lines that are empty.
pub(super) fn clean_up(connection: &Connection, now: &Now) -> Result<(), Failure> {
    let silence = u64::try_from(DEAD_AFTER.as_micros()).unwrap_or(u64::MAX);
    connection.execute(
        "DELETE FROM waiters WHERE CASE WHEN clock <> '' AND clock = ?1
             THEN asked_boot_ns < ?2 ELSE asked_unix_us NOT BETWEEN ?3 AND ?4 END",
        params![
            our_clock(),
            to_sql(now.boot.saturating_sub(DEAD_AFTER).as_nanos()),
            to_sql(now.wall_us.saturating_sub(silence)),
            to_sql(now.wall_us.saturating_add(silence)),
        ],
    )?;
    connection.execute(
        "UPDATE names SET line = 0 WHERE line <> 0
             AND NOT EXISTS (SELECT 1 FROM waiters WHERE waiters.name = names.name)",
        [],
    )?;
    Ok(())
}

fn our_clock() -> &'static str {
    Realm::here().clock.as_deref().unwrap_or_default()
}

fn is_ours(clock: &str) -> bool {
    !clock.is_empty() && clock == our_clock()
}

/// Whether a waiter of another boot or time namespace has been silent for too long. Only wall
/// clocks can be compared, and they may have been set. A time in the future therefore counts as
/// silence, too. A waiter that is removed wrongly sends WAIT again about a second later and gets
/// its old place.
fn is_foreign_and_silent(clock: &str, asked_us: i64, now: &Now) -> bool {
    let apart = Duration::from_micros(from_sql(asked_us).abs_diff(now.wall_us));
    !is_ours(clock) && apart > DEAD_AFTER
}
