//! The stdout of a command, passed through and kept.

use std::io::Read;
use std::process::ChildStdout;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::report::print_stdout;

/// The longest output that can be stored, and one byte more: the library refuses that.
const LONGEST: usize = 64 * 1024 + 1;

/// How long to wait for output after the command has ended. Processes that it left running may have
/// its stdout open for ever.
const DRAIN: Duration = Duration::from_secs(1);

/// The output of a command.
#[derive(Default)]
pub(super) struct Kept {
    /// All of the output, or more of it than can be stored.
    pub(super) bytes: Vec<u8>,
    /// Why a part of it could not be written to stdout.
    pub(super) error: Option<std::io::Error>,
}

/// A thread that copies the output.
pub(super) struct Captured {
    kept: Arc<Mutex<Kept>>,
    ended: oneshot::Receiver<()>,
}

impl Captured {
    /// Copies the output to stdout from now on. A thread of its own, because a reader of stdout that
    /// has stopped reading must not keep this process from renewing the lease.
    pub(super) fn start(mut output: ChildStdout) -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let (done, ended) = oneshot::channel();
        let copy = Arc::clone(&kept);
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let mut kept = copy.lock().unwrap_or_else(PoisonError::into_inner);
                let room = LONGEST.saturating_sub(kept.bytes.len()).min(count);
                kept.bytes.extend_from_slice(&buffer[..room]);
                drop(kept);
                // A reader that has closed the pipe does not want it; others may.
                if let Err(error) = print_stdout(&buffer[..count]) {
                    let mut kept = copy.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.error.get_or_insert(error);
                }
            }
            let _ = done.send(());
        });
        Self { kept, ended }
    }

    /// The output, when the command has ended.
    pub(super) async fn end(self) -> Kept {
        let _ = tokio::time::timeout(DRAIN, self.ended).await;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut kept)
    }
}
