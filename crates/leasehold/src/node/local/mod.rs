//! The embedded store: a node for all processes of one machine, in a file (SQLite). The only
//! module that names the `rusqlite` crate.

mod bells;
mod desk;
mod engine;
mod failure;
mod line;
mod opening;
mod post;
mod process;
mod rows;
mod sockets;
mod store;
mod thread;
mod tidying;
mod waking;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Call, Claim, Flush, Node, NodeError, NodeSettings, Notifier, Survey, Watch};
use crate::base::name::Name;
use bells::Bells;
use engine::Engine;
use failure::Failure;
use thread::Works;

/// How far a token may be ahead of the store's clock, which all its clients have in common.
pub(crate) const SKEW: Duration = Duration::from_millis(100);

const FORMS: &str = "expected `local:` (a store in this user's state directory) or \
                     `local:/path/to/file.db`";

/// A node in a file, for all processes of one machine.
pub(crate) struct LocalNode {
    label: String,
    works: Works,
    status: Arc<Status>,
    bells: Arc<Bells>,
}

/// What is known of the file, for those who do not ask it.
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

/// The file that a `local:` URL names. Its directory is made if it is the default one.
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
            "the directory of {} does not exist; make it first",
            path.display()
        )
    })
}

/// Without symbolic links: what belongs to a file lies beside it, not beside the link.
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
                "this user has no home directory for a store; set XDG_STATE_HOME, or name a file \
                 with `local:/path/to/file.db`",
            )?
            .join(".local/state"),
    };
    let dir = state.join("leasehold");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| format!("cannot make the directory {}: {error}", dir.display()))?;
    Ok(dir.join("locks.db"))
}

impl LocalNode {
    /// Starts to open the file, in a thread that lives as long as this node.
    pub(crate) fn start(path: &Path, settings: &NodeSettings) -> Self {
        let status = Arc::new(Status::default());
        let bells = Arc::new(Bells::default());
        let (status_of, bells_of) = (Arc::clone(&status), Arc::clone(&bells));
        let engine = Engine::new(path.to_owned(), settings, status_of, bells_of);
        let (works, started) = Works::start(engine);
        if let Err(error) = started {
            let why = format!("cannot start a thread for the store: {error}");
            *status.state() = Some(Err(NodeError::Unreachable { why }));
        }
        Self {
            label: format!("local:{}", path.display()),
            works,
            status,
            bells,
        }
    }
}

impl Node for LocalNode {
    fn label(&self) -> &str {
        &self.label
    }

    fn submit(&self, call: Call) {
        self.works.vote(call);
    }

    fn status(&self) -> Option<Result<(), NodeError>> {
        self.status.state().clone()
    }

    fn floor(&self) -> u64 {
        self.status.floor.load(Ordering::Relaxed)
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.bells.watch(claim, notifier))
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let answer = self.works.survey(name.cloned());
        Box::pin(async move { answer.await.unwrap_or(Err(NodeError::Unanswered)) })
    }

    fn frees_the_locks_of_the_dead(&self) -> bool {
        true
    }

    fn flush(&self) -> Flush {
        let done = self.works.flush();
        Box::pin(async move {
            let _ = done.await;
        })
    }
}
