//! Files that may contain passwords.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::exit::Failure;

/// The size of the longest file that is read.
const LONGEST: u64 = 1 << 20;

/// A file that was opened once, so that its mode is that of the text.
pub(crate) struct OpenFile {
    file: File,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    /// Not a directory, a device or a pipe.
    pub(crate) is_regular: bool,
}

impl OpenFile {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            file,
            mode: metadata.mode() & 0o7777,
            owner: metadata.uid(),
            is_regular: metadata.is_file(),
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
pub(crate) fn refuse_access_of_others(path: &Path, mode: u32, what: &str) -> Result<(), Failure> {
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(Failure::usage(format!(
            "{what} but other users have access to it (mode {mode:04o}); run `chmod 600 {}`",
            path.display()
        ))),
    }
}
