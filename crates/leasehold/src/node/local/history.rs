//! The history of names: a table that exists once a client has recorded a lease.

use rusqlite::{Connection, OptionalExtension, params};

use super::failure::Failure;
use super::rows::{Now, to_sql};
use super::store::{SqlTransaction, Store};
use crate::base::name::Name;
use crate::node::{HISTORY_ENTRIES, HISTORY_KEPT, HistoryEntry};

/// Versions without a history ignore the table, so it needs no new version of the schema.
const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS history (
        id         INTEGER PRIMARY KEY,
        name       BLOB NOT NULL,
        written_us INTEGER NOT NULL,  -- microseconds since 1970
        entry      BLOB NOT NULL
    );
    CREATE INDEX IF NOT EXISTS history_of_name ON history (name, id);
    CREATE INDEX IF NOT EXISTS history_by_time ON history (written_us);";

impl Store {
    /// Adds entries, and deletes those that are too old or too many.
    pub(super) fn write_history(&mut self, entries: &[HistoryEntry]) -> Result<(), Failure> {
        let now = Now::new(&self.clock, 0);
        let connection = &self.connection;
        let mut exists = has_table(connection)?;
        if !exists && entries.iter().any(HistoryEntry::begins_history) {
            connection.execute_batch(TABLE)?;
            exists = true;
        }
        if !exists {
            return Ok(());
        }
        let sql = SqlTransaction::begin(connection)?;
        for entry in entries {
            let name = entry.name().as_bytes();
            if !entry.begins_history() && !has_entries(connection, name)? {
                continue;
            }
            connection
                .prepare_cached(
                    "INSERT INTO history (name, written_us, entry) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![name, to_sql(now.unix_us), entry.text()])?;
            connection
                .prepare_cached(
                    "DELETE FROM history WHERE name = ?1 AND id <= (SELECT id FROM history
                     WHERE name = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                )?
                .execute(params![name, HISTORY_ENTRIES as i64])?;
        }
        connection
            .prepare_cached("DELETE FROM history WHERE written_us < ?1")?
            .execute(params![oldest(&now)])?;
        sql.commit()
    }

    /// Returns the entries of a name, the latest first.
    pub(super) fn read_history(&self, name: &Name) -> Result<Vec<HistoryEntry>, Failure> {
        if !has_table(&self.connection)? {
            return Ok(Vec::new());
        }
        let mut statement = self.connection.prepare_cached(
            "SELECT entry FROM history WHERE name = ?1 AND written_us >= ?2 ORDER BY id DESC",
        )?;
        let oldest = oldest(&Now::new(&self.clock, 0));
        let texts = statement.query_map(params![name.as_bytes(), oldest], |row| row.get(0))?;
        let texts: Vec<Vec<u8>> = texts.collect::<Result<_, _>>()?;
        let entry = |text| HistoryEntry::new(name.clone(), text);
        Ok(texts.into_iter().map(entry).collect())
    }
}

/// The time before which entries are too old.
fn oldest(now: &Now) -> i64 {
    to_sql(now.unix_us.saturating_sub(HISTORY_KEPT.as_micros() as u64))
}

fn has_table(connection: &Connection) -> Result<bool, Failure> {
    let found = connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE name = 'history_by_time'")?
        .query_row([], |_| Ok(()))
        .optional()?;
    Ok(found.is_some())
}

fn has_entries(connection: &Connection, name: &[u8]) -> Result<bool, Failure> {
    let found = connection
        .prepare_cached("SELECT 1 FROM history WHERE name = ?1 LIMIT 1")?
        .query_row([name], |_| Ok(()))
        .optional()?;
    Ok(found.is_some())
}
