//! Replaces a file in one step, so that no reader sees a part of it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// How long to wait for another process that updates the file. It takes milliseconds, unless the process
/// is stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// The longest name of a file, in bytes.
const LONGEST_NAME: usize = 255;

/// A file that several processes may update.
pub(super) struct SharedFile {
    path: PathBuf,
    /// The new text is written to this file in the same directory, which then replaces the file. It is
    /// also the lock of the writers. Its name does not end in `.prom`, so collectors ignore it.
    temporary: PathBuf,
}

impl SharedFile {
    pub(super) fn new(path: &Path) -> Option<Self> {
        let name = path.file_name()?.as_bytes();
        // Of a name that is nearly too long, only the beginning. Files that have the same one wait for
        // each other.
        let room = LONGEST_NAME - ".".len() - ".tmp".len();
        let is_inside = |at: &usize| name.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
        let mut end = name.len().min(room);
        while is_inside(&end) {
            end -= 1;
        }
        let temporary = [b".", &name[..end], b".tmp"].concat();
        Some(Self {
            path: path.to_owned(),
            temporary: path.with_file_name(OsStr::from_bytes(&temporary)),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the text with what `new` makes of it. Other processes that update the file wait. Fails
    /// with [`ErrorKind::WouldBlock`] if another one does not finish.
    pub(super) fn update(&self, new: impl FnOnce(&str) -> String) -> Result<()> {
        let file = self.lock()?;
        let replaced = self.replace(&file, new);
        if replaced.is_err() {
            // The lock is still held. Waiters notice that the file is gone.
            let _ = std::fs::remove_file(&self.temporary);
        }
        replaced
    }

    fn replace(&self, mut file: &File, new: impl FnOnce(&str) -> String) -> Result<()> {
        let text = new(&self.read()?);
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        // Collectors run as another user, whatever the umask is.
        file.set_permissions(Permissions::from_mode(0o644))?;
        std::fs::rename(&self.temporary, &self.path)
    }

    /// The text of the file. Empty if it does not exist.
    fn read(&self) -> Result<String> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_file() => {}
            Ok(found) if found.is_symlink() => return Err(not_regular("a symbolic link")),
            Ok(found) if found.is_dir() => return Err(not_regular("a directory")),
            Ok(_) => return Err(not_regular("a pipe, a socket or a device")),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
            Err(error) => return Err(error),
        }
        let text = std::fs::read(&self.path)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Opens the temporary file and locks it.
    fn lock(&self) -> Result<Flock<File>> {
        let start = Instant::now();
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(&self.temporary)?;
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EWOULDBLOCK)) if start.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(LOCK_RETRY);
                    continue;
                }
                Err((_, Errno::EWOULDBLOCK)) => {
                    let why = format!("another process has had it locked for {LOCK_TIMEOUT:?}");
                    return Err(Error::new(ErrorKind::WouldBlock, why));
                }
                Err((_, error)) => return Err(error.into()),
            };
            // Another process may have renamed or removed this file before the lock was free.
            let opened = file.metadata()?;
            match std::fs::symlink_metadata(&self.temporary) {
                Ok(found) if (found.dev(), found.ino()) == (opened.dev(), opened.ino()) => {
                    return Ok(file);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn not_regular(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("it is {what}, not a regular file"),
    )
}

/// What to do about an error of the first update.
pub(super) fn advice(error: &Error) -> &'static str {
    match (error.kind(), error.raw_os_error().map(Errno::from_raw)) {
        (_, Some(Errno::ENAMETOOLONG)) => "use a shorter name",
        (ErrorKind::InvalidInput, None) => "name a regular file, or one that does not exist yet",
        (ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied, _) => {
            "name a file in a directory that exists and that this user can write to"
        }
        _ => "name a file in another directory, or leave --metrics-file out",
    }
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::TempDir;

    use super::*;

    #[test]
    fn no_update_is_lost() {
        const UPDATES: usize = 200;
        let dir = TempDir::new();
        let path = dir.path().join("a.prom");
        let writer = || {
            let file = SharedFile::new(&path).expect("a name");
            for _ in 0..UPDATES {
                file.update(|text| format!("{text}x")).expect("updated");
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(writer);
            }
        });
        let text = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(text.len(), 4 * UPDATES);
        let left = std::fs::read_dir(dir.path()).expect("a directory");
        assert_eq!(left.count(), 1);
    }
}
