//! What the handles of all primitives with one name have in common.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Want, acquire};
use crate::Lease;
use crate::base::error::{Error, Invalid};
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{Options, Wait};

/// A client, a name, and the options of the calls.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    /// The key on the nodes.
    pub(crate) key: Result<Name, Invalid>,
    pub(crate) options: Options,
}

impl Handle {
    pub(crate) fn new(core: Arc<Core>, key: Result<Name, Invalid>) -> Self {
        let options = core.options.clone();
        Self { core, key, options }
    }

    pub(crate) fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.options = change(self.options);
        self
    }

    /// The options of a call that waits for at most `timeout`.
    pub(crate) fn waiting_for(&self, timeout: Duration) -> Options {
        self.options.clone().wait(Wait::For(timeout)).attempts(None)
    }

    /// The options of a call that does not wait.
    pub(crate) fn without_waiting(&self) -> Options {
        self.options.clone().wait(Wait::No)
    }

    /// Acquires the lock with these options. The future owns everything that it needs.
    pub(crate) fn acquire(
        &self,
        mode: Mode,
        options: Options,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        let (core, name) = (Arc::clone(&self.core), self.key.clone());
        async move {
            let want = Want { name: name?, mode };
            let acquired = acquire(&core, &want, &options).await;
            acquired.map_err(|error| core.explain(error))
        }
    }
}

/// Turns "another client held the lock for as long as the call could wait" into `None`.
pub(crate) fn unless_held<T>(acquired: Result<T, Error>) -> Result<Option<T>, Error> {
    match acquired {
        Ok(acquired) => Ok(Some(acquired)),
        Err(Error::Held(_) | Error::TimedOut { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for Handle {
    /// Shows the name as the caller gave it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Ok(key) => self.core.name_of(key).fmt(f),
            Err(invalid) => invalid.fmt(f),
        }
    }
}
