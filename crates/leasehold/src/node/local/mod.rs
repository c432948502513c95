//! The embedded store: a node in a file (SQLite), for all processes of one machine. Only this
//! module uses the `rusqlite` crate.

mod cleanup;
mod engine;
#[cfg(feature = "doctor")]
pub(crate) mod examine;
mod failure;
mod history;
mod line;
mod listener;
mod local_waiters;
mod name_record;
mod notify;
mod open;
mod permits;
mod process;
mod readers;
mod rows;
mod sockets;
mod store;
mod thread;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Call, Claim, Flush, HistoryEntry, HistoryRead, HistoryWritten, Node, NodeError, NodeSettings,
    Notifier, Survey, Watch,
};
use crate::base::name::Name;
use engine::Engine;
use failure::Failure;
use local_waiters::LocalWaiters;
use thread::StoreThread;

/// How far a token may be ahead of the store's clock. All clients share this clock.
pub(crate) const SKEW: Duration = Duration::from_millis(100);

const FORMS: &str = "expected `local:` (a store in this user's state directory) or \
                     `local:/path/to/file.db`";

/// A node in a file, for all processes of one machine.
pub(crate) struct LocalNode {
    label: String,
    thread: StoreThread,
    status: Arc<Status>,
    waiters: Arc<LocalWaiters>,
}

/// The state of the file, readable without the store thread.
#[derive(Default)]
struct Status {
    state: Mutex<Option<Result<(), NodeError>>>,
    floor: AtomicU64,
}

impl Status {
    fn set(&self, opened: &Result<store::Store, Failure>) {
        let state = match opened {
            Ok(store) => {
                self.floor.store(store.floor(), Ordering::Relaxed);
                Ok(())
            }
            Err(failure) => Err(failure.clone().into_error()),
        };
        *self.state() = Some(state);
    }

    fn state(&self) -> MutexGuard<'_, Option<Result<(), NodeError>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the file that a `local:` URL names. Creates nothing.
pub(crate) fn path_of(url: &str) -> Result<PathBuf, String> {
    let rest = url.strip_prefix("local:").ok_or(FORMS)?;
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return default_path();
    }
    let path = PathBuf::from(path);
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(format!(
            "the path of a local store must be absolute; {FORMS}"
        ));
    }
    resolved(&path).ok_or_else(|| {
        format!(
            "the directory of {} does not exist; create it first",
            path.display()
        )
    })
}

/// Resolves symbolic links: SQLite's other files are beside the file, not beside the link.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let parent = path.parent()?.canonicalize().ok()?;
    Some(parent.join(path.file_name()?))
}

fn default_path() -> Result<PathBuf, String> {
    let state = match std::env::var_os("XDG_STATE_HOME").map(PathBuf::from) {
        Some(state) if state.is_absolute() => state,
        _ => std::env::home_dir()
            .filter(|home| home.is_absolute())
            .ok_or(
                "this user has no home directory; set XDG_STATE_HOME, or use a file with `local:/path/to/file.db`",
            )?
            .join(".local/state"),
    };
    Ok(state.join("leasehold/locks.db"))
}

/// Creates the directory of a store if nothing is there. Only that of the default file can be missing.
pub(crate) fn create_directory_of(path: &Path) -> Result<(), String> {
    let dir = path.parent().unwrap_or(path);
    if dir.exists() {
        return Ok(());
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| format!("cannot create the directory {}: {error}", dir.display()))
}

impl LocalNode {
    /// Starts a thread, which opens the file and lives as long as this node.
    pub(crate) fn start(path: &Path, settings: &NodeSettings) -> Self {
        let status = Arc::new(Status::default());
        let waiters = Arc::new(LocalWaiters::default());
        let (status_of, bells_of) = (Arc::clone(&status), Arc::clone(&waiters));
        let engine = Engine::new(path.to_owned(), settings, status_of, bells_of);
        let (thread, started) = StoreThread::start(engine);
        if let Err(error) = started {
            let why = format!("cannot start a thread for it: {error}");
            *status.state() = Some(Err(NodeError::StoreUnavailable { why }));
        }
        Self {
            label: format!("local:{}", path.display()),
            thread,
            status,
            waiters,
        }
    }
}

impl Node for LocalNode {
    fn label(&self) -> &str {
        &self.label
    }

    fn submit(&self, call: Call) {
        self.thread.vote(call);
    }

    fn status(&self) -> Option<Result<(), NodeError>> {
        self.status.state().clone()
    }

    fn floor(&self) -> u64 {
        self.status.floor.load(Ordering::Relaxed)
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.waiters.watch(claim, notifier))
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let answer = self.thread.survey(name.cloned());
        Box::pin(async move { answer.await.unwrap_or(Err(NodeError::Unanswered)) })
    }

    fn write_history(&self, entries: Vec<HistoryEntry>) -> HistoryWritten {
        let answer = self.thread.write_history(entries);
        Box::pin(async move { answer.await.unwrap_or(Err(NodeError::Unanswered)) })
    }

    fn read_history(&self, name: &Name) -> HistoryRead {
        let answer = self.thread.read_history(name.clone());
        Box::pin(async move { answer.await.unwrap_or(Err(NodeError::Unanswered)) })
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn frees_the_locks_of_the_dead(&self) -> bool {
        true
    }

    fn flush(&self) -> Flush {
        let done = self.thread.flush();
        Box::pin(async move {
            let _ = done.await;
        })
    }
}
