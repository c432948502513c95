//! An election: one of many processes leads, and all can see which.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::look::{Found, look};
use crate::acquire::{Handle, Want, acquire_alone};
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::holder::Holder;
use crate::client::options::{Goal, Options};
use crate::lease::guard::Lease;

/// How often an observer looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// An election: one of many candidates leads at a time, and everybody can see which, and under which
/// value, for example its address. This is a cheap handle: create one wherever it is needed.
///
/// The leader is the holder of the lock of this name. A leader that fails is followed by the candidate
/// that waits longest, after the TTL at most.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let election = client.election("scheduler");
/// let lease = election.campaign("10.0.0.7:80").await?;
/// let leader = election.leader().await?.expect("this process leads");
/// assert_eq!((&*leader.value, leader.token), ("10.0.0.7:80", lease.token()));
/// lease.release().await; // resigns
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Election {
    handle: Handle,
}

/// The leader of an [`Election`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value with which it campaigned.
    pub value: String,
    /// Its fencing token, which is larger than that of every earlier leader.
    pub token: u64,
    /// Its process.
    pub holder: Holder,
}

impl Election {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Returns this election with changed options. The value of a candidate replaces
    /// [`Options::label`], and a leader always has a fencing token.
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.handle = self.handle.with_options(change);
        self
    }

    /// Waits until this candidate leads, as [`Options::wait`] says, by default forever. It leads
    /// until the lease is released, dropped or [lost](Lease::lost). Standing by logs no
    /// [warning](crate::Builder::warn_slow_acquire).
    ///
    /// `value` is what others see of it, at most 256 bytes without control characters.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock). [`Error::Invalid`] for an invalid value.
    ///
    /// Cancel safety: if the future is dropped, the candidate leaves the line, or resigns, in the
    /// background.
    pub fn campaign(
        &self,
        value: &str,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        let Handle { core, key, options } = self.handle.clone();
        let options = Options {
            goal: Goal::Lead,
            ..options.label(value).with_fencing()
        };
        async move {
            // Alone, because a claim that tasks pass on shows only the token of the first of them.
            let acquired = acquire_alone(&core, &Want::exclusive(key?), &options).await;
            acquired.map_err(|error| core.explain(error))
        }
    }

    /// Waits until this candidate leads, runs `work`, and resigns. If the lease is lost before the
    /// work ends, `work` is dropped and the error is [`Error::Lost`]. `work` is not polled again
    /// after the deadline of the lease, so not after another candidate can lead.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let election = client.election("scheduler");
    /// let token = election.lead("web-1", async |lease| lease.token()).await?;
    /// assert!(token > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`campaign`](Self::campaign), and [`Error::Lost`].
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped and the candidate resigns in the
    /// background.
    pub fn lead<T, W>(
        &self,
        value: &str,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Lease) -> T,
    {
        let campaign = self.campaign(value);
        async move { campaign.await?.run(work).await }
    }

    /// Returns the leader that a majority of nodes names, or `None` if there is none.
    ///
    /// The answer may be out of date when it arrives. Whoever acts on it should pass the leader's
    /// token on, so that resources can refuse an earlier leader.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered to tell. [`Error::Invalid`] for an invalid
    /// name.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(self.seen().await?.map(|(leader, _)| leader))
    }

    /// Returns an observer of the leader. It sends one request per second to each node.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let election = client.election("scheduler");
    /// let mut observer = election.observe();
    /// assert!(observer.changed().await?.is_none());
    /// let _lease = election.campaign("web-1").await?;
    /// assert_eq!(observer.changed().await?.unwrap().value, "web-1");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer {
            election: self.clone(),
            known: None,
            next_look: Moment::from_nanos(0),
        }
    }

    /// The leader, and how long its lease lasts unless it is renewed.
    async fn seen(&self) -> Result<Option<(Leader, Option<Duration>)>, Error> {
        let Handle { core, key, options } = &self.handle;
        let key = key.as_ref().map_err(Clone::clone)?;
        let found = look(core, key, options).await?;
        // A name that is kept taken, that another library has locked, or that readers share, has no
        // leader.
        let leads = found.filter(|Found { holder, .. }| {
            !holder.kept && !holder.shared && holder.token.is_some()
        });
        Ok(leads.map(|Found { holder, remaining }| {
            let leader = Leader {
                value: holder.label.clone().unwrap_or_default(),
                token: holder.token.unwrap_or_default(),
                holder,
            };
            (leader, remaining)
        }))
    }
}

/// Observes the leader of an [`Election`].
pub struct Observer {
    election: Election,
    /// What [`changed`](Observer::changed) returned last: `None` before the first time.
    known: Option<Option<Leader>>,
    next_look: Moment,
}

impl Observer {
    /// Waits until the leader is another than the last time, and returns it: `None` if there is none.
    /// The first call returns the present leader. Another lease of the same process counts as
    /// another leader.
    ///
    /// Looks once per second, and when the lease of the leader expires. A leader that comes and goes
    /// in between is not seen. While too few nodes answer, the leader counts as unchanged.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name. [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: dropping the future loses nothing. The method can be called again.
    pub async fn changed(&mut self) -> Result<Option<Leader>, Error> {
        let core = Arc::clone(&self.election.handle.core);
        loop {
            tokio::select! {
                biased;
                () = core.until_shut_down() => return Err(core.explain(Error::ShutDown)),
                () = core.clock.sleep_until(self.next_look) => {}
            }
            let looked_at = core.clock.now();
            let seen = self.election.seen().await;
            self.next_look = looked_at + INTERVAL;
            let leader = match seen {
                Err(Error::NoMajority(_)) => continue,
                Err(error) => return Err(error),
                Ok(None) => None,
                Ok(Some((leader, remaining))) => {
                    if let Some(left) = remaining {
                        let expiry = core.clock.now() + left + Duration::from_millis(1);
                        self.next_look = self.next_look.min(expiry);
                    }
                    Some(leader)
                }
            };
            let id = |leader: &Option<Leader>| leader.as_ref().map(|leader| leader.token);
            if self.known.as_ref().map(id) != Some(id(&leader)) {
                self.known = Some(leader.clone());
                return Ok(leader);
            }
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.handle)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("election", &self.election)
            .field("leader", &self.known)
            .finish_non_exhaustive()
    }
}
