//! The file: its schema, and the rules applied to it in transactions.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use super::failure::{Failure, damaged};
use super::process::{self, Realm};
use super::rows::{Now, Waiter, from_sql, judge, living_holders, read, to_sql, waiters, write};
use crate::clock::Clock;
use crate::name::Name;
use crate::node::Sighting;
use crate::node::rules::{Constants, Write};
use crate::node::{Call, NodeError, Verb, Vote};

/// Says that a file is one of ours: "lhld".
const APPLICATION_ID: i32 = 0x6c68_6c64;
const SCHEMA_VERSION: i32 = 1;
const SCHEMA: &str = include_str!("schema.sql");

/// All clients are on one machine and so have one clock. A token is ahead of it only if
/// clients overtake it, or if it was set back.
pub(super) const CONSTANTS: Constants = Constants {
    skew: Duration::from_millis(100),
    fence_retention: Duration::from_secs(24 * 3600),
    restart_guard: None,
};

/// An open file.
pub(super) struct Store {
    connection: Connection,
    path: PathBuf,
    file: FileId,
    clock: Clock,
    floor: u64,
}

/// Which file it is: one that was deleted and made anew is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    inode: u64,
}

/// What became of a call.
pub(super) struct Outcome {
    pub(super) vote: Vote,
    /// The name is free now, and these wait for it, first come first.
    pub(super) freed_for: Vec<Waiter>,
}

impl Store {
    pub(super) fn open(path: &Path, clock: Clock, patience: Duration) -> Result<Self, Failure> {
        let before = create_private(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(patience)?;
        // Or the last of many short-lived processes would write everything back each time.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let mut store = Self {
            connection,
            path: path.to_owned(),
            file: before,
            clock,
            floor: 0,
        };
        store.prepare()?;
        if !store.is_current() {
            return Err(Failure::Moved);
        }
        store.floor = store.begin_epoch()?;
        Ok(store)
    }

    /// Brings a new file into shape, and makes sure that an old one has ours.
    fn prepare(&mut self) -> Result<(), Failure> {
        self.check_schema()?;
        let mode: String = self
            .connection
            .pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        if mode != "wal" {
            let mode: String =
                self.connection
                    .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
            if mode != "wal" {
                let why = format!(
                    "the file system of {} cannot share a store between processes (is it a \
                     network file system?); name a file on a local disk with `local:/path`",
                    self.path.display()
                );
                return Err(NodeError::Unusable { why }.into());
            }
        }
        // The last commits may be lost when the machine goes down, not when a process does.
        // A new boot begins a new epoch, which makes up for it.
        self.connection
            .pragma_update(None, "synchronous", "normal")?;
        // Whatever runs in the background of others, votes do not wait for it.
        self.connection
            .pragma_update(None, "wal_autocheckpoint", 0)?;
        self.connection.set_prepared_statement_cache_capacity(32);
        Ok(())
    }

    fn check_schema(&mut self) -> Result<(), Failure> {
        let pragma = |connection: &Connection, name: &str| {
            connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0))
        };
        let ours = |connection: &Connection| -> Result<bool, Failure> {
            let (application, version) = (
                pragma(connection, "application_id")?,
                pragma(connection, "user_version")?,
            );
            match (application, version) {
                (APPLICATION_ID, SCHEMA_VERSION) => Ok(true),
                (APPLICATION_ID, newer) if newer > SCHEMA_VERSION => {
                    let why = format!(
                        "the store was written by a newer leasehold (format {newer}, this one \
                         knows {SCHEMA_VERSION}); update this one"
                    );
                    Err(NodeError::Unusable { why }.into())
                }
                (0, 0) => Ok(false),
                _ => Err(damaged("it is a database, but not a store of leasehold").into()),
            }
        };
        // Both numbers are of one moment, or one could be from before another process made the
        // store and the other from after.
        let transaction = self.connection.transaction()?;
        if ours(&transaction)? {
            return Ok(());
        }
        drop(transaction);
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have been quicker.
        if !ours(&transaction)? {
            let tables: i64 =
                transaction
                    .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if tables > 0 {
                return Err(damaged("it is a database, but not a store of leasehold").into());
            }
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Rule: a node that may have lost its memory grants no token up to `T + S`. It may have
    /// if the file is another (deleted, restored), or if the machine went down, which can
    /// take the last commits with it.
    fn begin_epoch(&mut self) -> Result<u64, Failure> {
        let FileId { device, inode } = self.file;
        let boot = process::boot_id().unwrap_or_default();
        let identity = format!("{boot} {device}:{inode}");
        let known = epoch_of(&self.connection, &identity)?;
        let began = match known {
            Some(began) => began,
            None => {
                let transaction = self
                    .connection
                    .transaction_with_behavior(TransactionBehavior::Immediate)?;
                let began = match epoch_of(&transaction, &identity)? {
                    Some(began) => began,
                    None => {
                        // If the clock has gone back since an earlier epoch began, that one's
                        // floor holds on. Earlier ones stay: readers that are told different
                        // boots (containers can be) do not end each other's.
                        transaction.execute(
                            "INSERT INTO epoch (identity, began_us) VALUES (?1, max(?2,
                                 coalesce((SELECT max(fence) FROM names), 0),
                                 coalesce((SELECT max(began_us) FROM epoch), 0)))",
                            params![identity, to_sql(self.clock.unix_us())],
                        )?;
                        epoch_of(&transaction, &identity)?.unwrap_or(i64::MAX)
                    }
                };
                transaction.commit()?;
                began
            }
        };
        Ok(from_sql(began).saturating_add(CONSTANTS.skew_us()))
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether the path still leads to this file. If not, others use another one by now, and
    /// nothing that this one says is worth anything.
    pub(super) fn is_current(&self) -> bool {
        file_id(&self.path).is_ok_and(|id| id == self.file)
    }

    pub(super) fn set_patience(&self, patience: Duration) -> Result<(), Failure> {
        Ok(self.connection.busy_timeout(patience)?)
    }

    /// Votes on all calls in one transaction: all of it counts, or nothing.
    pub(super) fn vote(&mut self, calls: &[Call]) -> Result<Vec<Outcome>, Failure> {
        if calls.iter().all(|call| call.verb() == Verb::Acquire)
            && let Some(outcomes) = self.refuse(calls)?
        {
            return Ok(outcomes);
        }
        let now = Now::new(&self.clock, self.clock_at_least(calls)?);
        let floor = self.floor;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut outcomes = Vec::with_capacity(calls.len());
        for call in calls {
            let row = read(&transaction, call.claim().name(), &now)?;
            let (vote, change) = judge(&row, call, floor, now.unix_us);
            write(&transaction, call, &change, &now)?;
            let freed = matches!(change, Write::Unlock { .. });
            let freed_for = match freed {
                true => waiters(&transaction, call.claim().name())?,
                false => Vec::new(),
            };
            outcomes.push(Outcome { vote, freed_for });
        }
        transaction.commit()?;
        Ok(outcomes)
    }

    /// Refuses acquires without a lock on the file, if all of them are to be refused: those
    /// who wait must not stand in the way of those who work.
    fn refuse(&mut self, calls: &[Call]) -> Result<Option<Vec<Outcome>>, Failure> {
        let now = Now::new(&self.clock, 0);
        let mut outcomes = Vec::with_capacity(calls.len());
        for call in calls {
            let row = read(&self.connection, call.claim().name(), &now)?;
            match judge(&row, call, self.floor, now.unix_us) {
                (vote @ Vote::Held { .. }, Write::Nothing) => outcomes.push(Outcome {
                    vote,
                    freed_for: Vec::new(),
                }),
                _ => return Ok(None),
            }
        }
        Ok(Some(outcomes))
    }

    /// The node's clock does not go back: if the machine's was set back, the highest token
    /// granted, or the floor, takes its place. Looked for only when a token says that this may
    /// be so.
    fn clock_at_least(&self, calls: &[Call]) -> Result<u64, Failure> {
        let cap = self.clock.unix_us().saturating_add(CONSTANTS.skew_us());
        if calls.iter().all(|call| call.claim().token() <= cap) {
            return Ok(0);
        }
        let highest: Option<i64> =
            self.connection
                .query_row("SELECT max(fence) FROM names", [], |row| row.get(0))?;
        Ok(highest.map_or(0, from_sql).max(self.floor))
    }

    /// Enters somebody who waits for a name. Who they wait for: the living holders, or `None`
    /// if the name is free.
    pub(super) fn enter_waiter(
        &mut self,
        name: &Name,
        socket: &str,
    ) -> Result<(i64, Option<Vec<u32>>), Failure> {
        let now = Now::new(&self.clock, 0);
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction
            .prepare_cached("INSERT INTO waiters (name, socket) VALUES (?, ?)")?
            .execute(params![name.as_bytes(), socket])?;
        let id = transaction.last_insert_rowid();
        let holders = living_holders(&read(&transaction, name, &now)?);
        transaction.commit()?;
        Ok((id, holders))
    }

    /// The living holders of a name, or `None` if it is free.
    pub(super) fn holders(&self, name: &Name) -> Result<Option<Vec<u32>>, Failure> {
        let now = Now::new(&self.clock, 0);
        Ok(living_holders(&read(&self.connection, name, &now)?))
    }

    /// Strikes waiters. If the name is free, whoever is next is returned: the one who was
    /// told so may be among those who left.
    pub(super) fn strike_waiters(
        &mut self,
        name: &Name,
        gone: &[Waiter],
    ) -> Result<Vec<Waiter>, Failure> {
        let now = Now::new(&self.clock, 0);
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for Waiter { id, socket } in gone {
            // Ids begin anew in a new file.
            transaction
                .prepare_cached("DELETE FROM waiters WHERE id = ? AND socket = ?")?
                .execute(params![id, socket])?;
        }
        let next = match read(&transaction, name, &now)?.owner {
            None => waiters(&transaction, name)?,
            Some(_) => Vec::new(),
        };
        transaction.commit()?;
        Ok(next)
    }

    /// The sockets of all who wait.
    pub(super) fn sockets(&self) -> Result<Vec<String>, Failure> {
        let mut statement = self
            .connection
            .prepare("SELECT DISTINCT socket FROM waiters")?;
        let sockets = statement.query_map([], |row| row.get(0))?;
        Ok(sockets.collect::<Result<_, _>>()?)
    }

    /// Strikes all who waited at a socket.
    pub(super) fn strike_socket(&self, socket: &str) -> Result<(), Failure> {
        let sql = "DELETE FROM waiters WHERE socket = ?";
        self.connection.execute(sql, [socket])?;
        Ok(())
    }

    /// Whether it is time to [tidy](Self::tidy).
    pub(super) fn is_untidy(&self) -> bool {
        const MUCH: u64 = 1 << 20;
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        std::fs::metadata(log).is_ok_and(|log| log.len() > MUCH)
    }

    pub(super) fn sightings(&self, of: Option<&Name>) -> Result<Vec<Sighting>, Failure> {
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
            let row = read(&self.connection, &name, &now)?;
            let Some(owner) = row.owner else { continue };
            let waiting: i64 = self
                .connection
                .prepare_cached("SELECT count(*) FROM waiters WHERE name = ?")?
                .query_row([name.as_bytes()], |row| row.get(0))?;
            seen.push(
                Sighting::new(name, owner, row.remaining)
                    .with_fence(row.fence)
                    .with_waiters(usize::try_from(waiting).unwrap_or(0)),
            );
        }
        Ok(seen)
    }

    /// Forgets names that nobody has used for so long that a missing fence means the same,
    /// and writes back what has piled up beside the file.
    pub(super) fn tidy(&mut self) -> Result<(), Failure> {
        let now = Now::new(&self.clock, 0);
        // A lock is timed as in `rows::read`: the wall clock may have been set.
        self.connection.execute(
            "DELETE FROM names WHERE fence_until_us < ?1 AND (owner IS NULL
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
        let patience: u32 = self
            .connection
            .pragma_query_value(None, "busy_timeout", |row| row.get(0))?;
        // Those who work are not to wait for this: nearly everything is written, and waited
        // for, without keeping them out; then little is left to do while they are.
        self.connection.busy_timeout(Duration::ZERO)?;
        let written = ["passive", "truncate"].into_iter().try_for_each(|how| {
            self.connection
                .pragma(None, "wal_checkpoint", how, |_| Ok(()))
        });
        self.connection
            .busy_timeout(Duration::from_millis(patience.into()))?;
        Ok(written?)
    }
}

fn epoch_of(connection: &Connection, identity: &str) -> Result<Option<i64>, Failure> {
    let sql = "SELECT max(began_us) FROM epoch WHERE identity = ?";
    Ok(connection.query_row(sql, [identity], |row| row.get(0))?)
}

/// Makes the file if there is none, so that only its owner can read it: owner values are
/// secrets. It is not opened if it is there, because closing it again would let go of the
/// locks that another connection of this process has on it.
fn create_private(path: &Path) -> Result<FileId, Failure> {
    if !path.exists() {
        create(path).map_err(|error| {
            let why = format!("cannot make the store {}: {error}", path.display());
            Failure::Told(NodeError::Unusable { why })
        })?;
    }
    file_id(path).map_err(|_| Failure::Moved)
}

/// One process at a time. What an earlier file of the same name has left beside it, when only
/// the file itself was deleted, would be taken for this one's.
fn create(path: &Path) -> std::io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    use std::os::unix::fs::OpenOptionsExt;
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let mut private = std::fs::OpenOptions::new();
    private.write(true).create(true).mode(0o600);
    let turn = private.open(beside(".lock"))?;
    flock(&turn, FlockOperation::LockExclusive)?;
    if path.exists() {
        return Ok(());
    }
    for end in ["-wal", "-shm", "-journal"] {
        match std::fs::remove_file(beside(end)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    private.create_new(true).open(path).map(drop)
}

fn file_id(path: &Path) -> std::io::Result<FileId> {
    let meta = std::fs::metadata(path)?;
    Ok(FileId {
        device: meta.dev(),
        inode: meta.ino(),
    })
}
