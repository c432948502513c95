//! A directory for one test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new directory, removed with everything in it when dropped.
///
/// ```
/// let dir = leasehold_testkit::TempDir::new();
/// std::fs::write(dir.path().join("file"), "text").unwrap();
/// ```
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes one.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    #[allow(clippy::new_without_default)] // it is made on disk, not defaulted
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // What a process with the same id left behind.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
