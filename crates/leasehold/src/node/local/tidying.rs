//! Tidying up: forgetting names, striking the dead, and writing back what has piled up in the
//! log beside the file. That waits for the disk, so it has a thread and a connection of its
//! own, and those who work go on meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::params;

use super::bells::Bells;
use super::failure::Failure;
use super::line;
use super::post::Post;
use super::process::Realm;
use super::rows::{Now, to_sql};
use super::store::Store;
use crate::base::clock::Clock;

/// What may pile up beside the file while it is in use, in bytes.
const MUCH: u64 = 4 << 20;
/// Those who work all the time never let the log end: then they have to wait.
const TOO_MUCH: u64 = 8 * MUCH;
/// How long tidying up may wait for others.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// Tidies up in the background.
pub(super) struct Tidier {
    path: PathBuf,
    clock: Clock,
    bells: Arc<Bells>,
    at_work: Arc<AtomicBool>,
    /// When the log is longer than this, it is time.
    due_at: u64,
}

/// How far to write back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// What is there when nobody is kept out.
    Part,
    /// Everything, and begin the log anew unless somebody reads it. What the log still has
    /// counts as not written back to the first process that opens the file after the last has
    /// closed it, so without that it would grow from process to process.
    All,
}

impl Tidier {
    pub(super) fn new(path: &Path, clock: Clock, bells: Arc<Bells>) -> Self {
        Self {
            path: path.to_owned(),
            clock,
            bells,
            at_work: Arc::default(),
            due_at: MUCH,
        }
    }

    /// Begins to tidy up if the log is so long that it is time.
    pub(super) fn look(&mut self, log_size: u64) {
        if log_size < MUCH {
            self.due_at = MUCH;
        }
        if log_size < self.due_at || self.at_work.swap(true, Ordering::AcqRel) {
            return;
        }
        let reach = match log_size > TOO_MUCH {
            true => Reach::All,
            false => Reach::Part,
        };
        // If it cannot be begun anew for now, not every time.
        self.due_at = log_size * 2;
        let (path, clock) = (self.path.clone(), self.clock.clone());
        let (bells, at_work) = (Arc::clone(&self.bells), Arc::clone(&self.at_work));
        let thread = std::thread::Builder::new().name("leasehold-tidy".into());
        let begun = thread.spawn(move || {
            report(tidy(&path, &clock, bells, reach));
            at_work.store(false, Ordering::Release);
        });
        if begun.is_err() {
            self.at_work.store(false, Ordering::Release);
        }
    }
}

fn tidy(path: &Path, clock: &Clock, bells: Arc<Bells>, reach: Reach) -> Result<(), Failure> {
    // Not one that nobody has any more.
    if !path.exists() {
        return Ok(());
    }
    let store = Store::open(path, clock, PATIENCE)?;
    store.connection.busy_timeout(PATIENCE)?;
    store.tidy(&Post::new(path, bells), reach)
}

pub(super) fn report(tidied: Result<(), Failure>) {
    if let Err(failure) = tidied {
        tracing::debug!(why = %failure.into_error(), "cannot tidy up the store");
    }
}

impl Store {
    /// How much has piled up beside the file, in bytes.
    pub(super) fn log_size(&self) -> u64 {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        std::fs::metadata(log).map_or(0, |log| log.len())
    }

    pub(super) fn tidy(&self, post: &Post, reach: Reach) -> Result<(), Failure> {
        let now = Now::new(&self.clock, 0);
        self.strike_the_dead(None, post)?;
        line::tidy(&self.connection, &now)?;
        self.forget(&now)?;
        self.write_back("passive")?;
        match reach {
            Reach::Part => Ok(()),
            // Little is left to do now while others are kept out.
            Reach::All => self.write_back("truncate"),
        }
    }

    /// Forgets names that nobody has used for so long that a missing fence means the same.
    fn forget(&self, now: &Now) -> Result<(), Failure> {
        const STEP: u32 = 1000;
        // A lock is timed as in `rows`: the wall clock may have been set.
        const OVERDUE: &str = "fence_until_us < ?1 AND line = 0 AND (owner IS NULL
             OR CASE WHEN clock IS NOT NULL AND clock = ?2 THEN expires_boot_ns <= ?3
                     ELSE expires_unix_us <= ?1 END)";
        let (unix_us, boot_ns) = (to_sql(now.unix_us), to_sql(now.boot.as_nanos()));
        let clock = &Realm::here().clock;
        // Looked for while others work; only what is found keeps them out.
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
