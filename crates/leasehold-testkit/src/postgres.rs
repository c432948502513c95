//! A real PostgreSQL server.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::TempDir;

/// How long a server may take to start on a slow machine.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The user `nobody`. PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// A running PostgreSQL server with an empty database, which listens on a Unix socket. Killed, and its
/// files removed, when dropped.
pub struct PostgresServer {
    child: Child,
    dir: TempDir,
}

impl PostgresServer {
    /// Starts a server.
    ///
    /// # Panics
    /// If PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a directory");
        let is_root = dir.path().metadata().expect("created").uid() == 0;
        if is_root {
            for path in [dir.path(), &data] {
                std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may chown");
            }
        }
        let log = || std::fs::File::create(dir.path().join("log")).expect("a log file");
        let command = |name: &str| {
            let mut command = Command::new(program(name));
            command.current_dir(dir.path()).stdin(Stdio::null());
            command.stdout(log()).stderr(log());
            if is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        let created = command("initdb")
            .args(["--username=test", "--auth=trust", "--no-sync", "-D"])
            .arg(&data)
            .status();
        assert!(
            created.is_ok_and(|status| status.success()),
            "initdb failed"
        );
        let child = command("postgres")
            .args(["-F", "-c", "listen_addresses=", "-k"])
            .arg(dir.path())
            .arg("-D")
            .arg(&data)
            .spawn()
            .expect("postgres starts");
        let server = Self { child, dir };
        server.until_ready();
        server
    }

    /// The directory of the Unix socket, which is the host to connect to. The user is `test`, the
    /// database is `postgres`.
    #[must_use]
    pub fn host(&self) -> &Path {
        self.dir.path()
    }

    /// A connection string for `tokio-postgres` and `libpq`.
    #[must_use]
    pub fn config(&self) -> String {
        format!("host={} user=test dbname=postgres", self.host().display())
    }

    fn until_ready(&self) {
        let start = Instant::now();
        let ready = || {
            let mut command = Command::new(program("pg_isready"));
            command.arg("-q").arg("-h").arg(self.host());
            command.status().is_ok_and(|status| status.success())
        };
        while !ready() {
            assert!(start.elapsed() < START_WITHIN, "postgres does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of PostgreSQL: the newest version in Debian's directories, or else that on the path.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let installed = versions
        .flatten()
        .map(|version| version.path().join("bin").join(name));
    let newest = installed.filter(|path| path.exists()).max();
    newest.unwrap_or_else(|| name.into())
}
