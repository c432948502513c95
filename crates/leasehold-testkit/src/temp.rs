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
    /// Creates a directory.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    #[must_use]
    #[allow(clippy::new_without_default)] // it creates a directory
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A process with the same id may have left files behind.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// The path of the directory.
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
