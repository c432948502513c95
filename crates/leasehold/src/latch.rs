//! A latch and a barrier for parties that are known by name.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use crate::acquire::Handle;
use crate::base::backoff::{Backoff, Pauses};
use crate::base::error::{Error, Invalid};
use crate::base::join;
use crate::base::name::Name;
use crate::client::options::Options;
use crate::once::{Once, OnceError};

/// How many parties a latch has at most: each is a name of its own.
const MAX_PARTIES: usize = 64;

/// How long an arrival counts, unless the caller says otherwise.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The pauses between two looks at the parties that are missing.
const PAUSES: Pauses = Pauses {
    first: Duration::from_millis(50),
    longest: Duration::from_secs(1),
    growth_percent: 100,
    jitter_percent: 20,
};

/// A latch: opens when every one of its parties has arrived. With
/// [`arrive_and_wait`](Latch::arrive_and_wait) it is a barrier. From
/// [`Client::latch`](crate::Client::latch).
///
/// The parties are known by name, at most 64. A party counts once however often it arrives, so a process
/// that crashed and was started again may arrive again. An arrival counts for a day, or as long as
/// [`kept_for`](Latch::kept_for) says. A latch does not close by itself before that: use a new name for
/// each round, or [`clear`](Latch::clear) it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let loaded = client.latch("import/2026-11-17", ["orders", "customers"]);
/// loaded.arrive("orders").await?;
/// assert_eq!(loaded.missing().await?.len(), 1);
/// loaded.arrive("customers").await?;
/// loaded.wait().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Latch {
    handle: Handle,
    parties: Result<Vec<Name>, Invalid>,
    kept: Duration,
}

impl Latch {
    pub(crate) fn new(handle: Handle, parties: Result<Vec<Name>, Invalid>) -> Self {
        let kept = KEPT;
        Self {
            handle,
            parties: parties.and_then(check),
            kept,
        }
    }

    /// Returns this latch with changed options. They apply to [`arrive`](Latch::arrive). During an
    /// outage, [`wait`](Latch::wait) goes on for [`Options::outage_patience`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.handle = self.handle.with_options(change);
        self
    }

    /// Returns this latch with arrivals that count for this time, 10 ms to 366 days.
    #[must_use]
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.kept = time;
        self
    }

    /// Notes that a party has arrived. If it has arrived before, that arrival stays.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock). [`Error::Invalid`] also if the latch has no such
    /// party, more than 64 or none, or one of them twice.
    ///
    /// Cancel safety: if the future is dropped, the party may have arrived or not. Call it again.
    pub async fn arrive(&self, party: impl AsRef<[u8]>) -> Result<(), Error> {
        let party = Name::new(party)?;
        if !self.parties()?.contains(&party) {
            return Err(Invalid::UnknownParty { party }.into());
        }
        let arrived = self
            .once(&party)?
            .run(async |_| Ok::<_, Infallible>(Vec::new()));
        match arrived.await {
            Ok(_) => Ok(()),
            Err(OnceError::Lease(error)) => Err(error),
            // Neither happens: the work does not fail, and the call waits for a run in progress.
            Err(OnceError::Work(never)) => match never {},
            Err(OnceError::Running(_)) => Ok(()),
        }
    }

    /// Returns the parties that have not arrived yet, in the order in which they were given.
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn missing(&self) -> Result<Vec<Name>, Error> {
        self.missing_of(self.parties()?).await
    }

    /// Waits until every party has arrived. Looks at those that are missing, at first after 50 ms, then
    /// less and less often, down to once a second. To limit the wait, use `tokio::time::timeout`.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answer for longer than [`Options::outage_patience`],
    /// [`Error::Invalid`], [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn wait(&self) -> Result<(), Error> {
        let core = &self.handle.core;
        let (mut missing, mut outage_since) = (self.parties()?.to_vec(), None);
        let mut backoff = Backoff::new(PAUSES, core.next_seed());
        loop {
            match self.missing_of(&missing).await {
                Ok(still) if still.is_empty() => return Ok(()),
                Ok(still) => (missing, outage_since) = (still, None),
                Err(error @ Error::NoMajority(_)) => {
                    let now = core.clock.now();
                    let since = *outage_since.get_or_insert(now);
                    let lasted = now.saturating_duration_since(since);
                    if lasted >= self.handle.options.outage_patience {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = core.until_shut_down() => return Err(core.explain(Error::ShutDown)),
                () = core.clock.sleep(backoff.pause()) => {}
            }
        }
    }

    /// Notes that a party has arrived, and waits for all others: a barrier.
    ///
    /// # Errors
    /// Those of [`arrive`](Latch::arrive) and [`wait`](Latch::wait).
    ///
    /// Cancel safety: like [`arrive`](Latch::arrive). An arrival stays.
    pub async fn arrive_and_wait(&self, party: impl AsRef<[u8]>) -> Result<(), Error> {
        self.arrive(party).await?;
        self.wait().await
    }

    /// Forgets all arrivals.
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: if the future is dropped, some arrivals may have been forgotten.
    pub async fn clear(&self) -> Result<(), Error> {
        let parties = self.all(self.parties()?)?;
        let cleared = join::all(parties.iter().map(|(_, once)| once.clear())).await;
        cleared.into_iter().collect::<Result<Vec<_>, _>>().map(drop)
    }

    fn parties(&self) -> Result<&[Name], Error> {
        let parties = self.parties.as_ref().map_err(Clone::clone)?;
        Ok(parties)
    }

    /// Those of these parties that have not arrived.
    async fn missing_of(&self, parties: &[Name]) -> Result<Vec<Name>, Error> {
        let parties = self.all(parties)?;
        let looks = join::all(parties.iter().map(|(_, once)| once.peek())).await;
        let mut missing = Vec::new();
        for ((party, _), look) in parties.into_iter().zip(looks) {
            if look?.is_none() {
                missing.push(party);
            }
        }
        Ok(missing)
    }

    fn all(&self, parties: &[Name]) -> Result<Vec<(Name, Once)>, Error> {
        let all = parties
            .iter()
            .map(|party| Ok((party.clone(), self.once(party)?)));
        all.collect()
    }

    /// The arrival of a party is a result without content, which is kept under a name of its own.
    fn once(&self, party: &Name) -> Result<Once, Error> {
        let key = self.handle.key.as_ref().map_err(Clone::clone)?;
        let handle = Handle {
            key: Ok(key.arrival(party)),
            ..self.handle.clone()
        };
        Ok(Once::new(handle, self.kept))
    }
}

/// Checks that there are 1 to 64 parties, and that all differ.
fn check(parties: Vec<Name>) -> Result<Vec<Name>, Invalid> {
    if !(1..=MAX_PARTIES).contains(&parties.len()) {
        return Err(Invalid::Number {
            option: "the number of parties",
            value: u64::try_from(parties.len()).unwrap_or(u64::MAX),
            min: 1,
            max: MAX_PARTIES as u64,
        });
    }
    let mut seen = std::collections::BTreeSet::new();
    match parties.iter().find(|party| !seen.insert(*party)) {
        Some(twice) => Err(Invalid::SameName {
            name: twice.clone(),
        }),
        None => Ok(parties),
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.handle)
            .field("parties", &self.parties)
            .finish_non_exhaustive()
    }
}
