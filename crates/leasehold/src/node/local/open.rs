//! Opening the file: creating it if it does not exist, checking its schema, and starting its epoch.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use super::failure::{Failure, damaged};
use super::process;
use super::rows::{from_sql, to_sql};
use super::store::{CONSTANTS, Store};
use crate::base::clock::Clock;
use crate::node::NodeError;

/// Marks a file as a store of leasehold: "lhld".
const APPLICATION_ID: i32 = 0x6c68_6c64;
const SCHEMA_VERSION: i32 = 5;
const PAGE: i32 = 1024;
const SCHEMA: &str = include_str!("schema.sql");

/// Identifies a file. A file that was deleted and created again has another identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl Store {
    /// Opens the file. Any number of processes may do so at the same time.
    pub(super) fn open(path: &Path, clock: &Clock, patience: Duration) -> Result<Self, Failure> {
        let started = clock.now();
        loop {
            let opened = Self::try_open(path, clock.clone(), patience);
            let again = matches!(opened, Err(Failure::Moved | Failure::Busy));
            if !again || clock.now().saturating_duration_since(started) > patience {
                return opened;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn try_open(path: &Path, clock: Clock, patience: Duration) -> Result<Self, Failure> {
        let before = create_private(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(patience)?;
        // Otherwise the last of many short-lived processes would write the whole log back each
        // time.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let mut store = Self {
            connection,
            path: path.to_owned(),
            file: before,
            clock,
            floor: 0,
            refused: false,
        };
        store.prepare()?;
        if !store.is_current() {
            return Err(Failure::Moved);
        }
        store.floor = store.begin_epoch()?;
        // The engine retries in its own way.
        store.connection.busy_timeout(Duration::ZERO)?;
        Ok(store)
    }

    /// Creates the schema of a new file, checks that of an existing one, and configures the
    /// connection.
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
                    "the file system of {} does not support a store that processes share (is \
                     it a network file system?); use a file on a local disk, with `local:/path`",
                    self.path.display()
                );
                return Err(NodeError::Unusable { why }.into());
            }
        }
        // A crash of the machine may lose the last commits; a crash of a process does not. A new
        // boot starts a new epoch, which compensates for that.
        self.connection
            .pragma_update(None, "synchronous", "normal")?;
        // Votes do not wait for checkpoints. A background thread makes them.
        self.connection
            .pragma_update(None, "wal_autocheckpoint", 0)?;
        // SQLite truncates a large log when it starts the log anew.
        self.connection
            .pragma_update_and_check(None, "journal_size_limit", 1 << 20, |_| Ok(()))?;
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
                         supports {SCHEMA_VERSION}); update this one"
                    );
                    Err(NodeError::Unusable { why }.into())
                }
                (APPLICATION_ID, older @ 1..SCHEMA_VERSION) => {
                    let why = format!(
                        "the store was written by an older leasehold (format {older}, this one \
                         needs {SCHEMA_VERSION}); stop all programs that use it and move it away; \
                         leasehold then creates a new store"
                    );
                    Err(NodeError::Unusable { why }.into())
                }
                (0, 0) => Ok(false),
                _ => Err(damaged("it is a database, but not a store of leasehold").into()),
            }
        };
        // One transaction reads both numbers. Otherwise one could be from before another process
        // created the store, and the other from after.
        let transaction = self.connection.transaction()?;
        if ours(&transaction)? {
            return Ok(());
        }
        drop(transaction);
        // A vote writes one or two pages. (This has no effect on a file that has pages.)
        self.connection.pragma_update(None, "page_size", PAGE)?;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have created it in the meantime.
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

    /// Rule: a node that may have lost its memory at T grants no token up to `T + S`. It may have
    /// lost it if this is another file (deleted, restored), or if the machine crashed, which can
    /// lose the last commits.
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
                        // If the clock has gone back since an earlier epoch began, the floor of
                        // that epoch still applies. Earlier epochs stay, so that processes that see
                        // different boot ids (as containers may) do not end each other's epochs.
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

    /// Whether the path still names this file. If not, other processes use another file, and the
    /// content of this one does not count.
    pub(super) fn is_current(&self) -> bool {
        file_id(&self.path).is_ok_and(|id| id == self.file)
    }
}

fn epoch_of(connection: &Connection, identity: &str) -> Result<Option<i64>, Failure> {
    let sql = "SELECT max(began_us) FROM epoch WHERE identity = ?";
    Ok(connection.query_row(sql, [identity], |row| row.get(0))?)
}

/// Creates the file if it does not exist, readable only by its owner: owner values are secrets. An
/// existing file is not opened here, because closing it would release the locks that another
/// connection of this process has on it.
fn create_private(path: &Path) -> Result<FileId, Failure> {
    if !path.exists() {
        create(path).map_err(|error| {
            let why = format!("cannot create the store {}: {error}", path.display());
            Failure::Error(NodeError::Unusable { why })
        })?;
    }
    file_id(path).map_err(|_| Failure::Moved)
}

/// Creates the file, one process at a time. If only the file itself was deleted, SQLite would take
/// the log of the earlier file for that of the new one, so this removes it.
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
    let lock = private.open(beside(".lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
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
