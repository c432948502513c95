//! Cleanup: deletes unused names and dead waiters, and writes the log beside the file back
//! (checkpoint). This waits for the disk, so it has its own thread and connection, and votes go on
//! meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::params;

use super::failure::Failure;
use super::line;
use super::local_waiters::LocalWaiters;
use super::notify::Notifications;
use super::process::Realm;
use super::readers;
use super::rows::{Now, to_sql};
use super::store::Store;
use crate::base::clock::Clock;

/// The size of the log, in bytes, at which a cleanup starts.
const LOG_LARGE: u64 = 4 << 20;
/// The size of the log, in bytes, at which a cleanup locks writers out. Under constant load, the
/// log never starts anew otherwise.
const LOG_TOO_LARGE: u64 = 8 * LOG_LARGE;
/// How long a cleanup may wait for other processes.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// Starts cleanups in the background.
pub(super) struct Cleaner {
    path: PathBuf,
    clock: Clock,
    waiters: Arc<LocalWaiters>,
    is_running: Arc<AtomicBool>,
    /// The size of the log at which the next cleanup starts.
    due_at: u64,
}

/// How much of the log to write back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Checkpoint {
    /// As much as possible without locking anyone out.
    Part,
    /// Everything, and start the log anew unless another process reads it. The first process that
    /// opens the file after the last has closed it does not know how much was written back, so
    /// without this the log would grow from process to process.
    All,
}

impl Cleaner {
    pub(super) fn new(path: &Path, clock: Clock, waiters: Arc<LocalWaiters>) -> Self {
        Self {
            path: path.to_owned(),
            clock,
            waiters,
            is_running: Arc::default(),
            due_at: LOG_LARGE,
        }
    }

    /// Starts a cleanup if the log is large enough.
    pub(super) fn start_if_due(&mut self, log_size: u64) {
        if log_size < LOG_LARGE {
            self.due_at = LOG_LARGE;
        }
        if log_size < self.due_at || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let reach = match log_size > LOG_TOO_LARGE {
            true => Checkpoint::All,
            false => Checkpoint::Part,
        };
        // If the log cannot start anew for now, do not try each time.
        self.due_at = log_size * 2;
        let (path, clock) = (self.path.clone(), self.clock.clone());
        let (waiters, is_running) = (Arc::clone(&self.waiters), Arc::clone(&self.is_running));
        let thread = std::thread::Builder::new().name("leasehold-cleanup".into());
        let started = thread.spawn(move || {
            report(clean_up(&path, &clock, waiters, reach));
            is_running.store(false, Ordering::Release);
        });
        if started.is_err() {
            self.is_running.store(false, Ordering::Release);
        }
    }
}

fn clean_up(
    path: &Path,
    clock: &Clock,
    waiters: Arc<LocalWaiters>,
    reach: Checkpoint,
) -> Result<(), Failure> {
    // Do not create the file again if it was deleted.
    if !path.exists() {
        return Ok(());
    }
    let store = Store::open(path, clock, PATIENCE)?;
    store.connection.busy_timeout(PATIENCE)?;
    store.clean_up(&Notifications::new(path, waiters), reach)
}

pub(super) fn report(result: Result<(), Failure>) {
    if let Err(failure) = result {
        tracing::debug!(why = %failure.into_error(), "the cleanup of the store failed");
    }
}

impl Store {
    /// Returns the size of the log beside the file, in bytes.
    pub(super) fn log_size(&self) -> u64 {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        std::fs::metadata(log).map_or(0, |log| log.len())
    }

    pub(super) fn clean_up(
        &self,
        notifications: &Notifications,
        reach: Checkpoint,
    ) -> Result<(), Failure> {
        let now = Now::new(&self.clock, 0);
        self.remove_dead_waiters(None, notifications)?;
        line::clean_up(&self.connection, &now)?;
        self.delete_unused_names(&now)?;
        readers::clean_up(&self.connection)?;
        self.write_back("passive")?;
        match reach {
            Checkpoint::Part => Ok(()),
            // Little is left to write while other processes are locked out.
            Checkpoint::All => self.write_back("truncate"),
        }
    }

    /// Deletes names that have been unused for longer than fences are kept. Their fences are not
    /// above `now − F`, which a missing fence reads as.
    fn delete_unused_names(&self, now: &Now) -> Result<(), Failure> {
        const STEP: u32 = 1000;
        // Expiry is determined as in `rows`: the wall clock may have been set.
        const OVERDUE: &str = "fence_until_us < ?1 AND line = 0 AND (owner IS NULL
             OR CASE WHEN clock IS NOT NULL AND clock = ?2 THEN expires_boot_ns <= ?3
                     ELSE expires_unix_us <= ?1 END)";
        let (unix_us, boot_ns) = (to_sql(now.unix_us), to_sql(now.boot.as_nanos()));
        let clock = &Realm::here().clock;
        // The search does not lock other processes out. Only the deletes do.
        let sql = format!("SELECT rowid FROM names WHERE {OVERDUE} LIMIT {STEP}");
        let mut statement = self.connection.prepare(&sql)?;
        let overdue = statement.query_map(params![unix_us, clock, boot_ns], |row| row.get(0))?;
        let overdue: Vec<i64> = overdue.collect::<Result<_, _>>()?;
        let sql = format!("DELETE FROM names WHERE rowid = ?4 AND {OVERDUE}");
        let mut statement = self.connection.prepare(&sql)?;
        for id in overdue {
            statement.execute(params![unix_us, clock, boot_ns, id])?;
        }
        Ok(())
    }

    fn write_back(&self, how: &str) -> Result<(), Failure> {
        self.connection
            .pragma(None, "wal_checkpoint", how, |_| Ok(()))?;
        Ok(())
    }
}
