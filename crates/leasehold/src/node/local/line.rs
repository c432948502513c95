//! The rows of those who wait for a name, in the order of their tickets. Everything here
//! goes by an index and looks at no more rows than it removes, or counts.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::failure::Failure;
use super::process::{self, Realm};
use super::rows::{Now, from_sql, to_sql};
use crate::base::name::Name;
use crate::node::{Claim, DEAD_AFTER, Holders};

/// Who stands before somebody is counted up to here.
const FAR: i64 = 100;

/// Somebody who waits.
#[derive(Clone)]
pub(super) struct Waiter {
    pub(super) owner: Box<[u8]>,
    pub(super) ticket: u64,
    /// The process that waits.
    pub(super) holders: Option<String>,
    pub(super) address: Address,
}

/// Where to tell somebody who waits.
#[derive(Clone, Default)]
pub(super) struct Address {
    /// Empty: nowhere, it only asks.
    pub(super) socket: String,
    pub(super) id: i64,
}

/// Enters somebody, or that it has asked now. (An owner value has one ticket for ever.)
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
            to_sql(claim.token()),
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

/// Removes those who have not asked for so long. Of those whose clock is not this one's only
/// the [first] is judged.
pub(super) fn bury(
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

/// The first in line.
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
            Ok((waiter(row)?, is_foreign_and_dead(&clock, row.get(6)?, now)))
        });
        let Some((waiter, dead)) = first.optional()? else {
            return Ok(None);
        };
        if !dead {
            return Ok(Some(waiter));
        }
        leave(connection, name, &waiter.owner)?;
    }
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
    Ok(Waiter {
        owner: row.get::<_, Vec<u8>>(0)?.into(),
        ticket: from_sql(row.get(1)?),
        holders: row.get(2)?,
        address: Address {
            socket: row.get(3)?,
            id: row.get(4)?,
        },
    })
}

/// How many stand before this one; 100 are as good as more.
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
    let before = params![name.as_bytes(), to_sql(ticket), owner, FAR];
    Ok(statement.query_row(before, |row| row.get(0))?)
}

/// How many wait and have asked lately.
pub(super) fn living(connection: &Connection, name: &Name, now: &Now) -> Result<usize, Failure> {
    let mut statement = connection
        .prepare_cached("SELECT clock, asked_boot_ns, asked_unix_us FROM waiters WHERE name = ?")?;
    let oldest = to_sql(now.boot.saturating_sub(DEAD_AFTER).as_nanos());
    let mut rows = statement.query([name.as_bytes()])?;
    let mut living = 0;
    while let Some(row) = rows.next()? {
        let clock: String = row.get(0)?;
        let late = is_ours(&clock) && row.get::<_, i64>(1)? < oldest;
        let dead = late || is_foreign_and_dead(&clock, row.get(2)?, now);
        living += usize::from(!dead);
    }
    Ok(living)
}

/// The sockets of all who wait for a name, or for anything.
pub(super) fn sockets(connection: &Connection, of: Option<&Name>) -> Result<Vec<String>, Failure> {
    let mut statement = connection
        .prepare_cached("SELECT DISTINCT socket FROM waiters WHERE ?1 IS NULL OR name = ?1")?;
    let sockets = statement.query_map([of.map(Name::as_bytes)], |row| row.get(0))?;
    Ok(sockets.collect::<Result<_, _>>()?)
}

/// Strikes all who waited at a socket.
pub(super) fn strike(connection: &Connection, socket: &str) -> Result<(), Failure> {
    let sql = "DELETE FROM waiters WHERE socket = ?";
    connection.prepare_cached(sql)?.execute([socket])?;
    Ok(())
}

/// Strikes all the dead, and notes where nobody is left.
pub(super) fn tidy(connection: &Connection, now: &Now) -> Result<(), Failure> {
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

/// Whether somebody of another boot or time namespace has not asked for too long. Only wall
/// clocks can be compared, and they may have been set: who asked in the future is not to live
/// until then, and who is struck wrongly asks again a second later and has its old place.
fn is_foreign_and_dead(clock: &str, asked_us: i64, now: &Now) -> bool {
    let apart = Duration::from_micros(from_sql(asked_us).abs_diff(now.wall_us));
    !is_ours(clock) && apart > DEAD_AFTER
}
