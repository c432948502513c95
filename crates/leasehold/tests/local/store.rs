//! A store in a temporary directory, with direct access to its file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_testkit::TempDir;
use leasehold_testkit::setup::LONG;
use leasehold_testkit::setup::blocking::until;
use rusqlite::Connection;

pub struct Store {
    path: PathBuf,
    _dir: TempDir,
}

impl Store {
    pub fn new() -> Self {
        Self::within("")
    }

    /// A store in a directory below the temporary one.
    pub fn within(below: &str) -> Self {
        let dir = TempDir::new();
        let place = dir.path().join(below);
        std::fs::create_dir_all(&place).expect("a directory");
        Self {
            path: place.join("locks.db"),
            _dir: dir,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn dir(&self) -> &Path {
        self.path.parent().expect("a directory")
    }

    pub fn url(&self) -> String {
        format!("local:{}", self.path.display())
    }

    /// The file itself (`""`), or one beside it.
    pub fn beside(&self, end: &str) -> PathBuf {
        PathBuf::from(format!("{}{end}", self.path.display()))
    }

    pub fn sql(&self) -> Connection {
        let connection = Connection::open(&self.path).expect("the store");
        connection.busy_timeout(LONG).expect("a timeout");
        connection
    }

    /// Waits until tickets are in order of arrival. A new store grants only its lowest possible
    /// token for a while, so that waiters have equal tickets.
    pub fn until_in_order(&self) {
        assert!(self.path.exists(), "not opened yet");
        std::thread::sleep(Duration::from_millis(150));
    }

    pub fn waiters(&self) -> i64 {
        let count = "SELECT count(*) FROM waiters";
        let count = self.sql().query_row(count, [], |row| row.get(0));
        count.expect("a number")
    }

    pub fn until_waiters(&self, count: i64) {
        until(&format!("{count} wait"), || self.waiters() == count);
    }

    pub fn holders(&self, name: &str) -> Option<String> {
        let holders = "SELECT holders FROM names WHERE name = ?";
        let holders = self
            .sql()
            .query_row(holders, [name.as_bytes()], |row| row.get(0));
        holders.expect("a row")
    }

    /// The names of the sockets of present and former waiters.
    pub fn sockets(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.beside(".wake")) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

/// The median of the measured times.
pub fn median(mut measured: Vec<Duration>) -> Duration {
    measured.sort();
    measured[measured.len() / 2]
}
