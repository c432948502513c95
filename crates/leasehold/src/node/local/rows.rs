//! The rows of the file: reading and writing one name by the rules.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Failure;
use super::process::{self, Realm};
use super::store::CONSTANTS;
use crate::clock::{Clock, Moment};
use crate::name::Name;
use crate::node::rules::{self, View, Write};
use crate::node::{Call, Verb, Vote};

/// A lock as it stands in the file.
pub(super) struct Row {
    pub(super) owner: Option<Vec<u8>>,
    /// `None`: never.
    pub(super) remaining: Option<Duration>,
    holders: Option<String>,
    pub(super) fence: Option<u64>,
}

/// Somebody who waits for a lock.
#[derive(Clone)]
pub(super) struct Waiter {
    pub(super) id: i64,
    pub(super) socket: String,
}

/// Both clocks at one moment.
pub(super) struct Now {
    pub(super) unix_us: u64,
    pub(super) boot: Moment,
}

impl Now {
    pub(super) fn new(clock: &Clock, at_least_us: u64) -> Self {
        Self {
            unix_us: clock.unix_us().max(at_least_us),
            boot: clock.now(),
        }
    }
}

pub(super) fn judge(row: &Row, call: &Call, floor: u64, now: u64) -> (Vote, Write) {
    let view = View {
        lock: row.owner.as_deref(),
        remaining: row.remaining,
        fence: row.fence,
        floor,
        now,
        constants: CONSTANTS,
    };
    match call.verb() {
        Verb::Acquire => rules::acquire(&view, call.claim()),
        Verb::Extend => rules::extend(&view, call.claim()),
        Verb::Release { keep } => rules::release(&view, call.claim(), keep),
    }
}

/// Reads a name's row. A lock that has expired, or whose holders are dead, is none.
pub(super) fn read(connection: &Connection, name: &Name, now: &Now) -> Result<Row, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, holders, clock, expires_boot_ns, expires_unix_us, fence
         FROM names WHERE name = ?",
    )?;
    let row = statement
        .query_row([name.as_bytes()], |row| {
            let clock: Option<String> = row.get(2)?;
            let (boot_ns, unix_us): (Option<i64>, Option<i64>) = (row.get(3)?, row.get(4)?);
            let remaining = if clock.is_some() && clock == Realm::here().clock {
                boot_ns
                    .map(|ns| Moment::from_nanos(from_sql(ns)).saturating_duration_since(now.boot))
            } else {
                // Written in another boot or time namespace, or by hand.
                unix_us.map(|us| Duration::from_micros(from_sql(us).saturating_sub(now.unix_us)))
            };
            Ok(Row {
                owner: row.get(0)?,
                holders: row.get(1)?,
                remaining,
                fence: row.get::<_, Option<i64>>(5)?.map(from_sql),
            })
        })
        .optional()?;
    let mut row = row.unwrap_or(Row {
        owner: None,
        remaining: None,
        holders: None,
        fence: None,
    });
    let expired = row.remaining == Some(Duration::ZERO);
    if row.owner.is_some() && (expired || row.holders.as_deref().is_some_and(process::all_dead)) {
        row.owner = None;
        row.remaining = None;
    }
    Ok(row)
}

pub(super) fn write(
    connection: &Connection,
    call: &Call,
    change: &Write,
    now: &Now,
) -> Result<(), Failure> {
    let claim = call.claim();
    let (owner, ttl, holders, fence) = match change {
        Write::Nothing => return Ok(()),
        Write::Lock { fence } => {
            let holders = process::describe(&claim.holders());
            (Some(claim.owner()), claim.ttl(), holders, Some(*fence))
        }
        Write::Unlock { fence } => (None, Duration::ZERO, None, *fence),
        Write::Keep {
            value,
            remaining,
            fence,
        } => (Some(&**value), *remaining, None, *fence),
    };
    let until = |from: u64, ttl: Duration| {
        to_sql(from.saturating_add(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)))
    };
    connection
        .prepare_cached(
            "INSERT INTO names (name, owner, holders, clock, expires_boot_ns, expires_unix_us,
                                fence, fence_until_us)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (name) DO UPDATE SET
                 owner = ?2, holders = ?3, clock = ?4, expires_boot_ns = ?5,
                 expires_unix_us = ?6, fence = coalesce(?7, fence), fence_until_us = ?8",
        )?
        .execute(params![
            claim.name().as_bytes(),
            owner,
            holders,
            owner.and(Realm::here().clock.as_ref()),
            owner.map(|_| to_sql((now.boot + ttl).as_nanos())),
            owner.map(|_| until(now.unix_us, ttl)),
            fence.map(to_sql),
            until(now.unix_us, CONSTANTS.fence_ttl(ttl)),
        ])?;
    Ok(())
}

pub(super) fn waiters(connection: &Connection, name: &Name) -> Result<Vec<Waiter>, Failure> {
    const FIRST: i64 = 16;
    let mut statement = connection
        .prepare_cached("SELECT id, socket FROM waiters WHERE name = ? ORDER BY id LIMIT ?")?;
    let waiters = statement.query_map(params![name.as_bytes(), FIRST], |row| {
        Ok(Waiter {
            id: row.get(0)?,
            socket: row.get(1)?,
        })
    })?;
    Ok(waiters.collect::<Result<_, _>>()?)
}

pub(super) fn living_holders(row: &Row) -> Option<Vec<u32>> {
    row.owner.as_ref()?;
    Some(
        row.holders
            .as_deref()
            .map(process::living)
            .unwrap_or_default(),
    )
}

/// Numbers in SQLite are signed. Tokens and times are far below.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
