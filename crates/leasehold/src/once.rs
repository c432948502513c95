//! Work that is done once per period, and whose result all callers get.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use thiserror::Error as ThisError;

use crate::acquire::look::look;
use crate::acquire::{Handle, Want, acquire_alone};
use crate::base::clock::Moment;
use crate::base::done::Done;
use crate::base::error::{Error, Invalid, Refusal};
use crate::base::holder::Holder;
use crate::client::core::Core;
use crate::client::options::{Goal, MAX_DURATION, Options, Wait, between};
use crate::client::shared_runs::{First, Joined, Outcome};
use crate::lease::guard::{Lease, Released};
use crate::planted;

/// The longest result.
pub(crate) const MAX_RESULT: usize = 64 * 1024;
const MIN_PERIOD: Duration = Duration::from_millis(10);

/// Work that is done once per period, and whose result all callers get: on many machines, or in many
/// tasks. This is a cheap handle: create one wherever it is needed.
///
/// The first caller runs the work and stores its result on the nodes. Until the period is over, which
/// counts from the end of the work, every other call returns the stored result: callers that come
/// later, after one round trip, and callers that waited meanwhile, as soon as it is stored.
///
/// If the work fails, nothing is stored, and the next caller in line runs its own. If the process
/// that does the work dies, the next one runs after the TTL.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn fetch() -> Result<Vec<u8>, std::io::Error> { Ok(b"1.09".to_vec()) }
/// # let client = leasehold::Client::in_memory();
/// use std::time::Duration;
///
/// let rates = client.once("rates", Duration::from_secs(300));
/// let first = rates.run(async |_| fetch().await).await?;
/// let again = rates.run(async |_| fetch().await).await?;
/// assert!(first.ran_here && !again.ran_here);
/// assert_eq!((again.bytes, again.token), (first.bytes, first.token));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Once {
    handle: Handle,
    period: Duration,
    running: IfRunning,
}

/// What to do while another caller runs the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfRunning {
    Wait,
    Skip,
}

/// Why a call of [`Once::run`] has no result.
#[derive(Clone, Debug, ThisError)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The work failed. Nothing was stored, and the next caller in line runs its own.
    #[error("the work failed: {0}")]
    Work(E),
    /// Another caller runs the work, and this one does not wait for it ([`Once::skip`]).
    #[error("{0} is running it")]
    Running(Box<Holder>),
    /// The lock could not be acquired, was lost before the end of the work, or the result could not
    /// be stored on a majority of the nodes.
    #[error(transparent)]
    Lease(#[from] Error),
}

impl Once {
    pub(crate) fn new(handle: Handle, period: Duration) -> Self {
        Self {
            handle,
            period,
            running: IfRunning::Wait,
        }
    }

    /// Returns this handle with changed options. [`Options::wait`] limits how long a call waits for
    /// a result or for its turn to run the work. The work always has a fencing token.
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.handle = self.handle.with_options(change);
        self
    }

    /// Returns this handle with calls that do not wait for a run in progress. Their error is
    /// [`OnceError::Running`]. A result that is stored is returned as otherwise.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use leasehold::OnceError;
    /// use std::time::Duration;
    ///
    /// let report = client.once("report", Duration::from_secs(60));
    /// let _running = client.mutex("report").lock().await?;
    /// let skipped = report.skip().run(async |_| Ok::<_, ()>(vec![])).await;
    /// assert!(matches!(skipped, Err(OnceError::Running(_))));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn skip(mut self) -> Self {
        self.running = IfRunning::Skip;
        self
    }

    /// Returns the result of the current period, and runs `work` to get it if there is none. While
    /// another caller runs its work, the call waits in line for the result or for its turn.
    ///
    /// A result is at most 64 KiB long, and the period 10 ms to 366 days. If the lease is lost while
    /// `work` runs, `work` is dropped, and is not polled again after the deadline. Tasks of one client
    /// that call this for the same name share one place in line. Do not call it for a name within
    /// the work of that name: the call would wait for itself.
    ///
    /// # Errors
    /// [`OnceError::Work`] if `work` failed. [`OnceError::Running`] after [`skip`](Self::skip).
    /// [`OnceError::Lease`] with the errors of [`Mutex::lock`](crate::Mutex::lock); with
    /// [`Error::Lost`] if the lease was lost before the result was stored, so the work may be
    /// repeated; with [`Error::NoMajority`] if too few nodes confirmed the result, so it may or may
    /// not be stored; with [`Error::Invalid`] for a period or a result out of range.
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped, and the client leaves the line or
    /// releases the lease in the background. If the result was being stored, that goes on.
    pub fn run<E, W>(&self, work: W) -> impl Future<Output = Result<Done, OnceError<E>>> + use<E, W>
    where
        W: AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    {
        let once = self.clone();
        async move {
            match once.begin().await? {
                OnceStart::Stored(done) => Ok(done),
                OnceStart::Running(holder) => Err(OnceError::Running(holder)),
                OnceStart::Turn(turn) => {
                    let result = turn.lease.work(work).await;
                    turn.end(result).await
                }
            }
        }
    }

    /// Returns the stored result, if a majority of nodes has one. Does not wait, and runs nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = leasehold::Client::in_memory();
    /// let once = client.once("rates", std::time::Duration::from_secs(300));
    /// assert!(once.peek().await?.is_none());
    /// once.run(async |_| Ok::<_, std::io::Error>(b"1.09".to_vec())).await?;
    /// assert_eq!(&*once.peek().await?.unwrap().bytes, b"1.09");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered to tell. [`Error::Invalid`] for an invalid
    /// name.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn peek(&self) -> Result<Option<Done>, Error> {
        let Handle { core, key, options } = &self.handle;
        let key = key.as_ref().map_err(Clone::clone)?;
        let found = look(core, key, options).await?;
        Ok(
            found
                .and_then(|found| Some(Done::stored(&found.holder, found.holder.result.as_ref()?))),
        )
    }

    /// Deletes the stored result, so that the next caller runs its work. Returns whether there was
    /// one. Deletes only the result that it finds, never one that is stored later, and does not
    /// disturb a run in progress.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = leasehold::Client::in_memory();
    /// let once = client.once("rates", std::time::Duration::from_secs(300));
    /// once.run(async |_| Ok::<_, std::io::Error>(vec![1])).await?;
    /// assert!(once.clear().await?);
    /// assert!(once.run(async |_| Ok::<_, std::io::Error>(vec![2])).await?.ran_here);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered. [`Error::Invalid`] for an invalid name.
    ///
    /// Cancel safety: if the future is dropped, the result may have been deleted on any of the nodes.
    pub async fn clear(&self) -> Result<bool, Error> {
        let Handle { core, key, .. } = &self.handle;
        let key = key.as_ref().map_err(Clone::clone)?;
        core.shared_runs.forget(key);
        core.clear_results(key).await
    }

    /// Begins a call whose work does not fit into a closure: returns the result of the current period,
    /// or the turn to do the work. While another caller has the turn, the call waits in line.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use leasehold::OnceStart;
    ///
    /// let done = match client.once("rates", std::time::Duration::from_secs(300)).begin().await? {
    ///     OnceStart::Turn(turn) => turn.store(b"1.09").await?,
    ///     OnceStart::Stored(done) => done,
    ///     OnceStart::Running(_) => unreachable!("only after `skip`"),
    ///     _ => unreachable!("no others so far"),
    /// };
    /// assert_eq!(&*done.bytes, b"1.09");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock). [`Error::Invalid`] for a period out of range.
    ///
    /// Cancel safety: if the future is dropped, the client leaves the line in the background.
    pub async fn begin(&self) -> Result<OnceStart, Error> {
        let (core, name) = (&self.handle.core, self.handle.key.clone()?);
        between("the period", self.period, MIN_PERIOD, MAX_DURATION)?;
        let mut options = Options {
            goal: Goal::LockOrResult,
            ..self.handle.options.clone().with_fencing()
        };
        if self.running == IfRunning::Skip {
            options.wait = Wait::No;
        }
        // Before it is found to be invalid by a task that others wait for.
        options.validate(core.constants.restart_guard)?;
        let started = core.clock.now();
        let until = options.until(started);
        let mut announce = None;
        while options.wait != Wait::No && announce.is_none() {
            match core.shared_runs.join(&name) {
                Joined::First(first) => announce = Some(first),
                Joined::Behind(first) => {
                    tokio::select! {
                        biased;
                        outcome = first.outcome() => match outcome {
                            Some(Outcome::Done(done)) => return Ok(OnceStart::Stored(done)),
                            Some(Outcome::NoMajority(error)) => return Err(error),
                            // Its work failed, or it gave up: the next one tries.
                            None => {}
                        },
                        () = core.until_shut_down() => return Err(core.explain(Error::ShutDown)),
                        () = core.clock.sleep_until(until), if until < Moment::FAR => break,
                    }
                }
            }
            if let Wait::For(wait) = &mut options.wait {
                *wait = until.saturating_duration_since(core.clock.now());
            }
        }
        if announce.is_none() {
            // The time is up, so one attempt tells whether there is a result, and who is running it.
            options.wait = Wait::No;
        }
        let acquired = acquire_alone(core, &Want::exclusive(name), &options).await;
        let acquired = acquired.map_err(|error| core.explain(error));
        match acquired {
            Ok(lease) => Ok(OnceStart::Turn(OnceTurn {
                lease,
                announce,
                period: self.period,
                core: Arc::clone(core),
            })),
            Err(error) => match stored(&error) {
                Some(done) => {
                    announce.inspect(|first| first.end(Outcome::Done(done.clone())));
                    Ok(OnceStart::Stored(done))
                }
                None => {
                    if let (Error::NoMajority(_), Some(first)) = (&error, &announce) {
                        first.end(Outcome::NoMajority(error.clone()));
                    }
                    self.refused(error, started)
                }
            },
        }
    }

    /// What becomes of a call that found no result. The time that it waited for other tasks counts.
    fn refused(&self, error: Error, started: Moment) -> Result<OnceStart, Error> {
        let waited = self
            .handle
            .core
            .clock
            .now()
            .saturating_duration_since(started);
        let is_over = matches!(self.handle.options.wait, Wait::For(wait) if waited >= wait);
        match error {
            Error::Held(refusal) if self.running == IfRunning::Skip => {
                let holder = refusal.holder().cloned().unwrap_or_default();
                Ok(OnceStart::Running(Box::new(holder)))
            }
            Error::Held(refusal) | Error::TimedOut { refusal, .. } if is_over => {
                Err(Error::TimedOut { waited, refusal })
            }
            error => Err(error),
        }
    }
}

/// The stored result, if that is why the lock was refused.
fn stored(error: &Error) -> Option<Done> {
    let refusal: &Refusal = match error {
        Error::Held(refusal) | Error::TimedOut { refusal, .. } => refusal,
        _ => return None,
    };
    let (holder, result) = refusal.result()?;
    Some(Done::stored(&holder, &result))
}

/// How a call begins. See [`Once::begin`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceStart {
    /// There is a result.
    Stored(Done),
    /// Another caller runs the work, and this one does not wait for it ([`Once::skip`]).
    Running(Box<Holder>),
    /// It is this caller's turn to do the work.
    Turn(OnceTurn),
}

/// The turn to do the work. When dropped, nothing is stored, and the next caller in line has the turn.
#[must_use = "a turn that is dropped passes to the next caller"]
pub struct OnceTurn {
    core: Arc<Core>,
    pub(crate) lease: Lease,
    period: Duration,
    /// Other tasks of this client that wait for the result.
    announce: Option<First>,
}

impl OnceTurn {
    /// Returns the lease under which to do the work. If it is [lost](Lease::lost), another caller may
    /// have the turn.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Stores the result of the work, at most 64 KiB. The period begins now.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost before: nothing is stored. [`Error::NoMajority`] if too
    /// few nodes confirmed: the result may or may not be stored. A node that is out of memory does not
    /// store it, and releases the lock. [`Error::Invalid`] for a result that
    /// is too long: nothing is stored, and the next caller in line has the turn.
    ///
    /// Cancel safety: after the first poll, storing continues in the background if the future is
    /// dropped.
    pub async fn store(self, bytes: &[u8]) -> Result<Done, Error> {
        let Self {
            core,
            lease,
            period,
            announce,
        } = self;
        if bytes.len() > MAX_RESULT {
            lease.release().await;
            return Err(Error::Invalid(Invalid::Number {
                option: "the length of the result",
                value: bytes.len() as u64,
                min: 0,
                max: MAX_RESULT as u64,
            }));
        }
        let done = Done {
            token: lease.token(),
            at: UNIX_EPOCH + Duration::from_millis(core.clock.unix_us() / 1000),
            bytes: bytes.into(),
            ran_here: true,
        };
        lease.release_with_result(bytes, done.at, period).await?;
        if let Some(first) = &announce {
            first.end(Outcome::Done(Done {
                ran_here: false,
                ..done.clone()
            }));
        }
        Ok(done)
    }

    /// Gives the turn to the next caller in line, because the work failed. Returns whether the lease
    /// was still held.
    ///
    /// Cancel safety: as [`Lease::release`].
    pub async fn pass(self) -> Released {
        self.lease.release().await
    }

    /// Stores the result of the work. `None` if the lease was lost before the work ended.
    pub(crate) async fn end<E>(
        self,
        result: Option<Result<Vec<u8>, E>>,
    ) -> Result<Done, OnceError<E>> {
        match result {
            Some(Ok(bytes)) => Ok(self.store(&bytes).await?),
            Some(Err(error)) if planted::on(planted::Bug::FailureKeeps) => {
                let _ = self.store(b"").await;
                Err(OnceError::Work(error))
            }
            // Rule: work that fails keeps nothing, so that the next in line runs.
            Some(Err(error)) => {
                self.pass().await;
                Err(OnceError::Work(error))
            }
            None => Err(self.lease.lost_error().into()),
        }
    }
}

impl fmt::Debug for OnceTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceTurn")
            .field("lease", &self.lease)
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("name", &self.handle)
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
