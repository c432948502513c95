//! The rows of readers.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Failure;
use super::process::{self, Realm};
use super::rows::{Now, remaining, to_sql};
use crate::base::name::Name;

/// A reader that has not expired.
pub(super) struct Reader {
    pub(super) owner: Vec<u8>,
    /// The processes that hold the claim, if the store can tell whether they live.
    pub(super) holders: Option<String>,
    pub(super) remaining: Duration,
}

impl Reader {
    pub(super) fn is_dead(&self) -> bool {
        self.holders.as_deref().is_some_and(process::all_dead)
    }
}

/// Returns how long a claim stays a reader, if it is one.
pub(super) fn find(
    connection: &Connection,
    name: &Name,
    owner: &[u8],
    now: &Now,
) -> Result<Option<Reader>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, holders, clock, expires_boot_ns, expires_unix_us FROM readers
         WHERE name = ? AND owner = ?",
    )?;
    let found = statement.query_row(params![name.as_bytes(), owner], |row| reader(row, now));
    Ok(found.optional()?.flatten())
}

/// Returns the readers of a name.
pub(super) fn all(connection: &Connection, name: &Name, now: &Now) -> Result<Vec<Reader>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, holders, clock, expires_boot_ns, expires_unix_us FROM readers
         WHERE name = ?",
    )?;
    let readers = statement.query_map([name.as_bytes()], |row| reader(row, now))?;
    let readers: Vec<Option<Reader>> = readers.collect::<Result<_, _>>()?;
    Ok(readers.into_iter().flatten().collect())
}

fn reader(row: &rusqlite::Row<'_>, now: &Now) -> Result<Option<Reader>, rusqlite::Error> {
    let remaining = remaining(row, now)?.unwrap_or_default();
    let reader = Reader {
        owner: row.get(0)?,
        holders: row.get(1)?,
        remaining,
    };
    Ok(Some(reader).filter(|_| !remaining.is_zero()))
}

/// Adds a reader, or lets it stay for this time.
pub(super) fn add(
    connection: &Connection,
    name: &Name,
    reader: &Reader,
    now: &Now,
) -> Result<(), Failure> {
    connection
        .prepare_cached(
            "INSERT INTO readers (name, owner, holders, clock, expires_boot_ns, expires_unix_us)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (name, owner) DO UPDATE SET
                 holders = ?3, clock = ?4, expires_boot_ns = ?5, expires_unix_us = ?6",
        )?
        .execute(params![
            name.as_bytes(),
            reader.owner,
            reader.holders,
            Realm::here().clock,
            to_sql((now.boot + reader.remaining).as_nanos()),
            now.until(reader.remaining),
        ])?;
    Ok(())
}

pub(super) fn remove(connection: &Connection, name: &Name, owner: &[u8]) -> Result<(), Failure> {
    connection
        .prepare_cached("DELETE FROM readers WHERE name = ? AND owner = ?")?
        .execute(params![name.as_bytes(), owner])?;
    Ok(())
}

/// Removes all readers of a name.
pub(super) fn clear(connection: &Connection, name: &Name) -> Result<(), Failure> {
    connection
        .prepare_cached("DELETE FROM readers WHERE name = ?")?
        .execute([name.as_bytes()])?;
    Ok(())
}

/// Removes the readers of names that have no lock.
pub(super) fn clean_up(connection: &Connection) -> Result<(), Failure> {
    connection.execute(
        "DELETE FROM readers WHERE NOT EXISTS (SELECT 1 FROM names
             WHERE names.name = readers.name AND names.owner IS NOT NULL)",
        [],
    )?;
    Ok(())
}
