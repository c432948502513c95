//! The guard of a lease.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::acquire::local_queue::LocalTurn;
use crate::base::backoff::{Backoff, Pauses};
use crate::base::clock::Moment;
use crate::base::error::{Error, Invalid, Loss};
use crate::base::holder::kept_result;
use crate::base::mode::Mode;
use crate::base::past_lease::LeaseEnd;
use crate::client::core::Core;
use crate::client::options::{MAX_TTL, Options, between};
use crate::lease::detached::Detached;
use crate::lease::downgrade::downgrade;
use crate::lease::grant::Won;
use crate::lease::holding::{Ending, Holding};
use crate::lease::janitor::PendingRelease;
use crate::lease::state::{Held, Progress, Purpose};
use crate::node::{Holders, Verb};
use crate::observe::End;
use crate::quorum::round::Decision;
use crate::quorum::{Broadcast, Question};

/// The pauses before a name that is to be kept is released again, if too few nodes confirmed.
const KEEP_RETRIES: Pauses =
    Pauses::doubling(Duration::from_millis(20), Duration::from_millis(500));
/// For how long.
const KEEP_PATIENCE: Duration = Duration::from_secs(5);

/// A lock that is held until it expires. Released when dropped.
///
/// The client renews the lease in the background every third of its TTL. The lease ends when it is
/// [released](Lease::release), dropped, or [lost](Lease::lost). Code that is called by the holder can
/// hold it [again](Lease::again).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::in_memory();
/// let lease = client.mutex("orders/42").lock().await?;
/// println!("token {} for the next {:?}", lease.token(), lease.remaining());
/// assert_eq!(lease.release().await, Released::Released);
/// # Ok(()) }
/// ```
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    pub(super) core: Arc<Core>,
    pub(super) held: Arc<Held>,
    /// Whether this guard still counts; see [`Held::remove_guard`].
    counts: bool,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The lease was still held, and was released. The lock is free on nodes that confirmed. On
    /// other nodes it becomes free as soon as the client reaches them, or after its TTL. With
    /// `min_hold`, the name stays taken until that time is over.
    Released,
    /// The lease had been lost before. Another client may have held the lock since.
    WasLost,
    /// The lease has other guards ([`Lease::again`]) and is still held. The last guard releases it.
    StillHeld,
}

impl Lease {
    pub(crate) fn new(
        core: &Arc<Core>,
        won: Won,
        options: &Options,
        turn: Option<LocalTurn>,
        holding: Option<Box<Holding>>,
    ) -> Self {
        Self::keep(core, Held::new(core, won, options, turn, holding))
    }

    /// Enters a lease into the keeper's schedule.
    pub(super) fn keep(core: &Arc<Core>, held: Held) -> Self {
        let held = Arc::new(held);
        core.keeper.keep(&held);
        if let Some(recorder) = &core.recorder {
            recorder.begun(&held);
        }
        Self {
            core: Arc::clone(core),
            held,
            counts: true,
        }
    }

    /// Returns another guard of the same lease, with the same token. Sends no request. The lease is
    /// released when its last guard is released or dropped.
    ///
    /// A lock is not reentrant by itself: a task that holds it and calls [`lock`](crate::Mutex::lock)
    /// waits for itself. Pass the lease to the code that needs it, and hold it again there.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Lease, Released};
    ///
    /// async fn transfer(lease: &Lease) -> Result<(), leasehold::Error> {
    ///     let held = lease.again()?;
    ///     // … work that may outlive the caller's guard …
    ///     assert_eq!(held.release().await, Released::StillHeld);
    ///     Ok(())
    /// }
    ///
    /// let client = Client::in_memory();
    /// let lease = client.mutex("accounts").lock().await?;
    /// transfer(&lease).await?;
    /// assert_eq!(lease.release().await, Released::Released);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost.
    pub fn again(&self) -> Result<Self, Error> {
        if self.held.is_lost_at(self.core.clock.now()) {
            return Err(self.held.lost_error());
        }
        self.held.add_guard();
        Ok(Self {
            core: Arc::clone(&self.core),
            held: Arc::clone(&self.held),
            counts: true,
        })
    }

    /// Returns the fencing token, which is larger than that of every earlier lease of this name. (Of
    /// a [reader](Lease::is_shared): larger than that of every earlier writer, and smaller than that
    /// of every later one. Readers may have their tokens in any order.)
    ///
    /// Pass it to the resource, and let the resource refuse a token smaller than the largest that
    /// it has seen. 0 if [fencing is off](Options::without_fencing).
    ///
    /// Tokens are below 2⁵³ (9 007 199 254 740 992), so signed 64-bit integers and doubles
    /// (JavaScript, Lua, JSON) represent them exactly.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// Returns how the lease holds the lock.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.held.claim().mode()
    }

    /// Returns the short id of this lease's claim, which other clients see in
    /// [`Holder::owner_id`](crate::Holder::owner_id). No other claim has it. It is not a secret.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("orders").lock().await?;
    /// let inspection = client.inspect("orders").await?;
    /// assert_eq!(inspection.lock().unwrap().owner_id(), lease.owner_id());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn owner_id(&self) -> String {
        crate::base::holder::owner_id(self.held.claim().owner())
    }

    /// Returns the lock's name, without the client's prefix, as in
    /// [`Client::mutex`](crate::Client::mutex), [`inspect`](crate::Client::inspect) and
    /// [`break_lock`](crate::Client::break_lock).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, MemoryNode};
    ///
    /// let builder = Client::builder().custom_node(MemoryNode::new("memory"));
    /// let client = builder.prefix("billing/").build()?;
    /// let lease = client.mutex("orders").lock().await?;
    /// assert_eq!(lease.name().to_string(), "orders");
    /// assert_eq!(lease.key().to_string(), "billing/orders");
    /// assert!(client.inspect(lease.name()).await?.lock().is_some());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &crate::Name {
        &self.held.name
    }

    /// Returns the key of the lock on the nodes: the client's [prefix](crate::Builder::prefix)
    /// followed by the name.
    #[must_use]
    pub fn key(&self) -> &crate::Name {
        &self.held.claim().name
    }

    /// Whether this is the lease of a reader, which shares the lock with other readers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// assert!(client.rw_lock("a").read().await?.is_shared());
    /// assert!(!client.rw_lock("b").write().await?.is_shared());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.held.claim().mode() == Mode::Shared
    }

    /// Returns the number of the permit, counted from 0, if this is the lease of a permit of a
    /// [`Semaphore`](crate::Semaphore).
    #[must_use]
    pub fn permit(&self) -> Option<u32> {
        self.held.claim().seat()?.number()
    }

    /// Makes an exclusive lease shared: other readers can join, and no writer comes in between. The
    /// shared lease has a larger token. Its `min_hold` and `max_hold` count from when the exclusive
    /// lease was acquired. A lease that is shared already is returned as it is.
    ///
    /// There is no way back: two readers that both waited to become the writer would wait for each
    /// other forever. Release the lease and acquire another one with
    /// [`write`](crate::RwLock::write).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let catalog = client.rw_lock("catalog");
    /// let writing = catalog.write().await?;
    /// // … write, then read what was written while others read it, too …
    /// let reading = writing.downgrade().await?;
    /// assert!(reading.is_shared() && catalog.try_read().await?.is_some());
    /// assert!(catalog.try_write().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended, [`Error::NoMajority`] if too few nodes confirmed the
    /// shared lease, and [`Error::Invalid`] for a lease [without a token](Options::without_fencing) or of a permit.
    /// After an error, the lease is released.
    ///
    /// Cancel safety: if the future is dropped, the client releases the lease in the background.
    pub async fn downgrade(self) -> Result<Self, Error> {
        match self.is_shared() {
            _ if self.permit().is_some() => Err(Invalid::SharedPermit.into()),
            true => Ok(self),
            false => downgrade(self).await,
        }
    }

    /// Returns the time until which the lease is valid, as far as the client knows. Each renewal
    /// moves it.
    ///
    /// A lease for which the call waited in line may begin with less than its TTL. The client
    /// extends it about 10 ms later.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.held.deadline()
    }

    /// Returns how long the lease is still valid; zero if it has ended. Local, without I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.held.is_open() {
            return Duration::ZERO;
        }
        let now = self.core.clock.now();
        self.held.deadline().saturating_duration_since(now)
    }

    /// Whether the lease is valid now. Local, without I/O. The answer is right even after the
    /// process was stopped or the machine was suspended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when the lease is lost, shortly before its deadline. Never resolves if the lease is
    /// released in time.
    ///
    /// Every poll compares the deadline with a clock that counts suspend. In a `select!` that is
    /// `biased` and has this branch first, the other branches are therefore not polled again after
    /// the deadline, even if the process was stopped for longer than the TTL.
    /// [`Mutex::with`](crate::Mutex::with) does the same.
    ///
    /// Cancel safety: dropping the future has no effect. The method can be called again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # async fn work() {}
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("x").lock().await?;
    /// tokio::select! {
    ///     biased;
    ///     () = lease.lost() => println!("lost; stop at once"),
    ///     () = work() => println!("done"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let (held, clock) = (Arc::clone(&self.held), self.core.clock.clone());
        async move { held.lost(&clock).await }
    }

    /// Returns why the lease was lost, or `None` if it was not lost. [`Error::Lost`] also contains
    /// the answers of the nodes.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.held.loss()
    }

    /// Binds the lease to other processes of this machine instead of this process, and extends it.
    /// [Observers](crate::observe::Event::Renewal) and [statistics](crate::Client::stats) do not count
    /// this as a renewal. Nodes that free the locks of dead processes (the embedded store) then free the lock when all
    /// of these processes are dead.
    ///
    /// # Errors
    /// Those of [`extend`](Lease::extend).
    ///
    /// Cancel safety: if the future is dropped, the next renewal binds the lease.
    pub async fn bind_to_processes(&self, pids: &[u32]) -> Result<(), Error> {
        self.held
            .claim()
            .set_holders(Holders::Processes(pids.into()));
        self.extend_for(Purpose::NewHolders).await
    }

    /// Detaches the lease from its guard: the client neither renews nor releases it any more. It
    /// expires after its TTL unless a holder of its [owner value](Detached::owner) extends it.
    ///
    /// # Errors
    /// Those of [`extend`](Lease::extend), which this may have to call, and [`Error::Invalid`] if the
    /// lease has [other guards](Lease::again). After an error, this guard is released.
    ///
    /// Cancel safety: if the future is dropped, the client releases the lease in the background.
    pub async fn detach(self) -> Result<Detached, Error> {
        self.check_only_guard()?;
        if self.held.claim().holders() != Holders::Nobody {
            self.held.claim().set_holders(Holders::Nobody);
            self.extend_for(Purpose::NewHolders).await?;
        }
        match self.close(None) {
            Some(_) => {
                self.held.end_turn();
                drop(Ending::new(&self, End::Detached));
                self.held.record_end(&self.core, &LeaseEnd::StillHeld);
                Ok(Detached::of_lease(&self.core, &self.held))
            }
            None => Err(self.held.lost_error()),
        }
    }

    /// Returns a token that is cancelled when the lease is lost. It is a child token: cancelling it
    /// affects neither the lease nor other tokens of the lease.
    ///
    /// The background task that renews leases cancels the token, or a call of [`lost`](Lease::lost)
    /// that is polled first. The token does not read the clock: after a process was stopped, a task
    /// that only checks the token may run before it is cancelled. Where that matters, use
    /// [`lost`](Lease::lost), [`is_valid`](Lease::is_valid) or [`Mutex::with`](crate::Mutex::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("x").lock().await?;
    /// let cancelled = lease.cancellation_token();
    /// let work = tokio::spawn(async move { cancelled.run_until_cancelled(async { 42 }).await });
    /// assert_eq!(work.await.unwrap(), Some(42));
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "cancellation")]
    #[must_use]
    pub fn cancellation_token(&self) -> tokio_util::sync::CancellationToken {
        self.held.cancellation.child_token()
    }

    /// Renews the lease now, for another TTL. Renewal in the background continues.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended. [`Error::NoMajority`] if too few nodes answered: the
    /// deadline stays as it was.
    ///
    /// Cancel safety: if the future is dropped, nodes may keep the lock beyond the deadline, by up
    /// to one TTL.
    pub async fn extend(&self) -> Result<(), Error> {
        self.extend_for(Purpose::Renewal).await
    }

    async fn extend_for(&self, purpose: Purpose) -> Result<(), Error> {
        let (held, core) = (&self.held, &self.core);
        if held.is_lost_at(core.clock.now()) {
            return Err(held.lost_error());
        }
        let Some(extension) = held.start_extension(&core.nodes, &core.clock, purpose) else {
            return Err(held.lost_error());
        };
        extension.broadcast.decided().await;
        match held.finish_extension(&extension, &core.clock) {
            Progress::Extended => Ok(()),
            Progress::Over => Err(held.lost_error()),
            Progress::Unknown => Err(Error::NoMajority(Box::new(
                core.refused(held.claim(), &extension.broadcast.round()),
            ))),
        }
    }

    /// Releases the lease and returns whether it was still held. Waits until a majority has
    /// confirmed, at most the node timeout. On nodes that fail, the client repeats the release in
    /// the background until the lock has expired there.
    ///
    /// Cancel safety: after the first poll, the release continues in the background if the future
    /// is dropped. Before that, dropping the future drops the lease, which also releases it.
    pub async fn release(mut self) -> Released {
        let is_last = self.remove_guard();
        if self.held.is_lost_at(self.core.clock.now()) {
            return Released::WasLost;
        }
        if !is_last {
            return Released::StillHeld;
        }
        if self.pass_on() {
            drop(Ending::new(&self, End::Released));
            return Released::Released;
        }
        let Some(broadcast) = self.send_release(None) else {
            return Released::WasLost;
        };
        let mut ending = Ending::new(&self, End::Released);
        match broadcast.decided().await {
            Decision::Refuted => {
                self.record_taken_away(&mut ending);
                Released::WasLost
            }
            Decision::Carried | Decision::Failed => Released::Released,
        }
    }

    /// Releases the lease and keeps the name taken for another `period`, without an owner, so that
    /// the work is not repeated before that. Call this when the work has succeeded, and
    /// [`release`](Lease::release) when it has failed and may be repeated at once. At most 24 h. If
    /// [`Options::min_hold`] ends later, it applies instead.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # async fn report() -> bool { true }
    /// # let client = leasehold::Client::in_memory();
    /// use std::time::Duration;
    ///
    /// let mutex = client.mutex("reports/daily");
    /// let lease = mutex.lock().await?;
    /// match report().await {
    ///     true => lease.release_keeping(Duration::from_secs(3600)).await?,
    ///     false => drop(lease.release().await),
    /// }
    /// assert!(mutex.try_lock().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease had ended: the name is not kept. [`Error::NoMajority`] if too
    /// few nodes confirmed within 5 s, or before the lease would have expired:
    /// the client repeats the release in the background, and on nodes where
    /// that fails the name is free after the TTL. [`Error::Invalid`] for a period that is too long,
    /// and if the lease has [other guards](Lease::again): this guard is released.
    ///
    /// Cancel safety: after the first poll, the release continues in the background if the future
    /// is dropped.
    pub async fn release_keeping(self, period: Duration) -> Result<(), Error> {
        between(
            "the period to keep the name",
            period,
            Duration::ZERO,
            MAX_TTL,
        )?;
        self.keep_for(period).await
    }

    /// Releases the lease and keeps the name taken for `period`, with a result. A majority of nodes
    /// has stored the result if this succeeds.
    ///
    /// Cancel safety: as above.
    pub(crate) async fn release_with_result(
        self,
        bytes: &[u8],
        at: SystemTime,
        period: Duration,
    ) -> Result<(), Error> {
        self.check_only_guard()?;
        let claim = self.held.claim();
        claim.leave_behind(kept_result(claim.owner(), self.token(), at, bytes));
        self.keep_for(period).await
    }

    async fn keep_for(self, period: Duration) -> Result<(), Error> {
        self.check_only_guard()?;
        let (held, core) = (Arc::clone(&self.held), Arc::clone(&self.core));
        let now = core.clock.now();
        if held.is_lost_at(now) {
            return Err(held.lost_error());
        }
        let give_up_at = held.deadline().min(now + KEEP_PATIENCE).min(now + period);
        // A node that keeps the name already recognises only such a claim when the request is repeated.
        // It refuses a reader, and a lock without a token, although the first request took effect.
        let is_recognised = held.claim().is_fenced() && held.claim().mode() == Mode::Exclusive;
        let mut is_first = true;
        let Some(mut broadcast) = self.send_release(Some(now + period)) else {
            return Err(held.lost_error());
        };
        let mut ending = Ending::new(&self, End::Released);
        let mut backoff = Backoff::new(KEEP_RETRIES, core.next_seed());
        loop {
            let decision = broadcast.decided().await;
            match decision {
                Decision::Carried => return Ok(()),
                Decision::Refuted if is_first || is_recognised => {
                    self.record_taken_away(&mut ending);
                    return Err(held.lost_error());
                }
                Decision::Refuted | Decision::Failed => {}
            }
            is_first = false;
            let pause = backoff.pause();
            let at = core.clock.now() + pause;
            if decision == Decision::Refuted || at >= give_up_at || core.is_shut_down() {
                let refusal = core.refused(held.claim(), &broadcast.round());
                return Err(core.explain(Error::NoMajority(Box::new(refusal))));
            }
            core.clock.sleep(pause).await;
            // A node that has kept the name already recognises the request. The janitor repeats it,
            // too, but does not count the answers.
            let keep = Some((now + period).saturating_duration_since(at));
            let release = Verb::Release { keep };
            let question = Question::new(release, held.claim(), held.grant.timeout);
            broadcast = Broadcast::send(&core.nodes, question);
        }
    }

    /// Sends the release, and lets the next task of this process try. `None` if the lease had
    /// already ended.
    fn send_release(&self, keep_until: Option<Moment>) -> Option<Arc<Broadcast>> {
        let item = self.close(keep_until)?;
        let broadcast = self.core.janitor.release(item);
        self.held.end_turn();
        self.held.record_end(&self.core, &LeaseEnd::Released);
        Some(broadcast)
    }

    /// The nodes refused the release: the lease had been taken away. In the history, this counts more
    /// than the release, which was recorded when it was sent.
    fn record_taken_away(&self, ending: &mut Ending<'_>) {
        ending.lost(Loss::TakenAway);
        let end = LeaseEnd::of_loss(Loss::TakenAway);
        self.held.record_end(&self.core, &end);
    }

    /// Runs `work` and releases the lease. If the lease is lost before, `work` is dropped.
    pub(crate) async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        let done = self.work(work).await;
        // The lease did not protect a result that came after the deadline.
        self.finish(done).await
    }

    /// Runs `work`. `None` if the lease is lost before, and then `work` is dropped.
    pub(crate) async fn work<T>(&self, work: impl AsyncFnOnce(&Self) -> T) -> Option<T> {
        tokio::select! {
            biased;
            () = self.lost() => None,
            value = work(self) => Some(value),
        }
    }

    /// As [`Options::min_hold`](crate::Options::min_hold), for a lease that was acquired without.
    pub(crate) fn set_min_hold(&self, min_hold: Duration) {
        self.held.set_min_hold(min_hold);
    }

    /// Why the lease is over.
    pub(crate) fn lost_error(&self) -> Error {
        self.held.lost_error()
    }

    /// Releases the lease, and returns the result of the work if the lease was held until then.
    pub(crate) async fn finish<T>(self, done: Option<T>) -> Result<T, Error> {
        let held = Arc::clone(&self.held);
        match (done, self.release().await) {
            (Some(value), Released::Released | Released::StillHeld) => Ok(value),
            _ => Err(held.lost_error()),
        }
    }

    pub(super) fn check_only_guard(&self) -> Result<(), Error> {
        match self.held.has_one_guard() {
            true => Ok(()),
            false => Err(Invalid::OtherGuards.into()),
        }
    }

    /// Stops counting this guard. Returns whether it was the last of its lease.
    fn remove_guard(&mut self) -> bool {
        std::mem::take(&mut self.counts) && self.held.remove_guard()
    }

    /// Passes the claim on to another task of this process that waits for it, if possible.
    fn pass_on(&self) -> bool {
        let passed = self.held.pass_on(self.core.clock.now()).is_some();
        if passed {
            self.core.keeper.leave(&self.held);
        }
        passed
    }

    /// Removes the lease from the keeper. `None` if it had already ended; then its claim is already
    /// being released.
    pub(super) fn close(&self, keep_until: Option<Moment>) -> Option<PendingRelease> {
        let item = self.held.close(keep_until)?;
        self.core.keeper.leave(&self.held);
        Some(item)
    }
}

impl Drop for Lease {
    /// Queues the claim for release by the janitor. Does not wait.
    fn drop(&mut self) {
        if !self.remove_guard() {
            return;
        }
        if self.pass_on() {
            return drop(Ending::new(self, End::Dropped));
        }
        let item = self.close(None);
        let was_held = item.is_some();
        if let Some(item) = item {
            self.core.janitor.post(item);
            self.held.record_end(&self.core, &LeaseEnd::Released);
        }
        self.held.end_turn();
        if was_held {
            drop(Ending::new(self, End::Dropped));
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
