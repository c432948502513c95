//! Files that may contain passwords.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

/// The size of the longest file that is read.
const LONGEST: u64 = 1 << 20;

/// A file that was opened once, so that its mode is that of the text.
pub(crate) struct OpenFile {
    file: File,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    /// Not a device or a pipe.
    pub(crate) is_regular: bool,
    pub(crate) is_pipe: bool,
}

impl OpenFile {
    /// Opens a file that was named. It may be a pipe: then this waits for a writer.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        Self::of(File::open(path)?)
    }

    /// Opens a file that was not named. A pipe that lies there would have no writer.
    pub(crate) fn open_regular(path: &Path) -> std::io::Result<Self> {
        let mut options = File::options();
        // Does not wait for the writer of a pipe. It has no effect on a regular file.
        let options = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = Self::of(options.open(path)?)?;
        match file.is_regular {
            true => Ok(file),
            false => Err(std::io::Error::other(
                "it is not a regular file; name it with --config if it is meant to be read",
            )),
        }
    }

    fn of(file: File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(nix::errno::Errno::EISDIR.into());
        }
        Ok(Self {
            file,
            mode: metadata.mode() & 0o7777,
            owner: metadata.uid(),
            is_regular: metadata.is_file(),
            is_pipe: metadata.file_type().is_fifo(),
        })
    }

    /// Whether another process that opens this path reads the same text.
    pub(crate) fn is_lasting(&self, path: &Path) -> bool {
        // These directories have the open files of each process.
        let is_of_process = ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir));
        self.is_regular && !is_of_process
    }

    /// Reads all of it, up to a limit: a device may have no end.
    pub(crate) fn read(self) -> std::io::Result<String> {
        let mut text = String::new();
        self.file.take(LONGEST + 1).read_to_string(&mut text)?;
        match text.len() as u64 > LONGEST {
            true => Err(std::io::Error::other("it is longer than 1 MiB")),
            false => Ok(text),
        }
    }
}

/// Refuses a file with passwords to which other users have access. `what` names the file and says
/// what it contains.
pub(crate) fn refuse_access_of_others(path: &Path, mode: u32, what: &str) -> Result<(), String> {
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(format!(
            "{what} but other users have access to it (mode {mode:04o}); run `chmod 600 {}`",
            path.display()
        )),
    }
}
