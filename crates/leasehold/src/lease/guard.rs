//! The guard of a lease.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::local_queue::LocalTurn;
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::client::core::Core;
use crate::client::options::{MAX_TTL, Options, between};
use crate::lease::detached::Detached;
use crate::lease::grant::Won;
use crate::lease::janitor::Return;
use crate::lease::state::{Held, Loss, Progress};
use crate::node::Holders;
use crate::quorum::Broadcast;
use crate::quorum::round::Decision;

/// A lock that is held until it expires. Released when dropped.
///
/// The client renews the lease in the background every third of its TTL. The lease ends when it is
/// [released](Lease::release), dropped, or [lost](Lease::lost).
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
    core: Arc<Core>,
    held: Arc<Held>,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease was still held, and was released. The lock is free on nodes that confirmed. On
    /// other nodes it becomes free as soon as the client reaches them, or after its TTL. With
    /// `min_hold`, the name stays taken until that time is over.
    Released,
    /// The lease had been lost before. Another client may have held the lock since.
    WasLost,
}

impl Lease {
    pub(crate) fn new(
        core: &Arc<Core>,
        won: Won,
        options: &Options,
        turn: Option<LocalTurn>,
    ) -> Self {
        let held = Arc::new(Held::new(core, won, options, turn));
        core.keeper.keep(&held);
        Self {
            core: Arc::clone(core),
            held,
        }
    }

    /// Returns the fencing token, which is larger than that of every earlier lease of this name.
    /// Pass it to the resource, and let the resource refuse a token smaller than the largest that
    /// it has seen. 0 if [fencing is off](Options::without_fencing).
    ///
    /// Tokens are below 2⁵³ (9 007 199 254 740 992), so signed 64-bit integers and doubles
    /// (JavaScript, Lua, JSON) represent them exactly.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
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

    /// Binds the lease to other processes of this machine instead of this process, and renews it.
    /// Nodes that free the locks of dead processes (the embedded store) then free the lock when all
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
        self.extend().await
    }

    /// Detaches the lease from its guard: the client neither renews nor releases it any more. It
    /// expires after its TTL unless a holder of its [owner value](Detached::owner) extends it.
    ///
    /// # Errors
    /// Those of [`extend`](Lease::extend), which this may have to call. After an error, the lease
    /// is released.
    ///
    /// Cancel safety: if the future is dropped, the client releases the lease in the background.
    pub async fn detach(self) -> Result<Detached, Error> {
        if self.held.claim().holders() != Holders::Nobody {
            self.held.claim().set_holders(Holders::Nobody);
            self.extend().await?;
        }
        match self.close(None) {
            Some(_) => {
                self.held.end_turn();
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
        let (held, core) = (&self.held, &self.core);
        if held.is_lost_at(core.clock.now()) {
            return Err(held.lost_error());
        }
        let Some(extension) = held.start_extension(&core.nodes, &core.clock) else {
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
    pub async fn release(self) -> Released {
        if self.held.is_lost_at(self.core.clock.now()) {
            return Released::WasLost;
        }
        if self.pass_on() {
            return Released::Released;
        }
        let Some(broadcast) = self.send_release(None) else {
            return Released::WasLost;
        };
        match broadcast.decided().await {
            Decision::Refuted => Released::WasLost,
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
    /// few nodes confirmed: the client repeats the release in the background, and on nodes where
    /// that fails the name is free after the TTL. [`Error::Invalid`] for a period that is too long:
    /// the lease is released.
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
        let (held, core) = (Arc::clone(&self.held), Arc::clone(&self.core));
        let now = core.clock.now();
        if held.is_lost_at(now) {
            return Err(held.lost_error());
        }
        let Some(broadcast) = self.send_release(Some(now + period)) else {
            return Err(held.lost_error());
        };
        match broadcast.decided().await {
            Decision::Carried => Ok(()),
            Decision::Refuted => Err(held.lost_error()),
            Decision::Failed => {
                let refusal = core.refused(held.claim(), &broadcast.round());
                Err(core.explain(Error::NoMajority(Box::new(refusal))))
            }
        }
    }

    /// Sends the release, and lets the next task of this process try. `None` if the lease had
    /// already ended.
    fn send_release(&self, keep_until: Option<Moment>) -> Option<Arc<Broadcast>> {
        let item = self.close(keep_until)?;
        let broadcast = self.core.janitor.give_back(item);
        self.held.end_turn();
        Some(broadcast)
    }

    /// Releases the lease, and returns the result of the work if the lease was held until then.
    pub(crate) async fn finish<T>(self, done: Option<T>) -> Result<T, Error> {
        let held = Arc::clone(&self.held);
        match (done, self.release().await) {
            (Some(value), Released::Released) => Ok(value),
            _ => Err(held.lost_error()),
        }
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
    fn close(&self, keep_until: Option<Moment>) -> Option<Return> {
        let item = self.held.close(keep_until)?;
        self.core.keeper.leave(&self.held);
        Some(item)
    }
}

impl Drop for Lease {
    /// Queues the claim for release by the janitor. Does not wait.
    fn drop(&mut self) {
        if self.pass_on() {
            return;
        }
        if let Some(item) = self.close(None) {
            self.core.janitor.post(item);
        }
        self.held.end_turn();
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
mod tests {
    use std::future::{Future, poll_fn};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use crate::lease::state::{Loss, Progress};
    use crate::node::{Call, Node, NodeError, Verb};
    use crate::{Client, Error, MemoryNode, Moment, TimeSource};

    /// A late renewal must not bring back a lock that was released.
    #[tokio::test]
    async fn no_extend_is_sent_after_the_release() {
        let client = Client::in_memory();
        let lease = client.mutex("a").lock().await.unwrap();
        let (core, held) = (lease.core.clone(), lease.held.clone());
        assert!(held.start_extension(&core.nodes, &core.clock).is_some());
        lease.release().await;
        assert!(held.start_extension(&core.nodes, &core.clock).is_none());
        assert!(client.mutex("a").try_lock().await.unwrap().is_some());
    }

    /// A clock that the test moves, as after a suspend: timers have not noticed yet.
    #[derive(Clone, Default)]
    struct Jumping(Arc<AtomicU64>);

    impl TimeSource for Jumping {
        fn now(&self) -> Moment {
            Moment::from_origin(Duration::from_millis(self.0.load(Ordering::SeqCst)))
        }

        fn unix_us(&self) -> u64 {
            1_800_000_000_000_000 + self.0.load(Ordering::SeqCst) * 1000
        }
    }

    /// After the deadline the lease is lost, even if only the clock shows it, and whatever a node
    /// answers.
    #[tokio::test]
    async fn an_extend_after_the_deadline_does_not_count() {
        let clock = Jumping::default();
        let node = MemoryNode::with_time_source("memory", Arc::new(clock.clone()));
        clock.0.store(1, Ordering::SeqCst);
        let builder = Client::builder().time_source(clock.clone());
        let client = builder.custom_node(node).build().unwrap();
        let lease = client.mutex("a").lock().await.unwrap();
        let (core, deadline) = (lease.core.clone(), lease.deadline());
        let extension = lease
            .held
            .start_extension(&core.nodes, &core.clock)
            .unwrap();
        clock.0.store(9_950, Ordering::SeqCst);
        assert!(!lease.is_valid());
        let progress = lease.held.finish_extension(&extension, &core.clock);
        assert_eq!(progress, Progress::Over);
        assert_eq!(lease.deadline(), deadline);
        lease.lost().await;
    }

    /// A node that refuses every EXTEND.
    struct Unrenewed(MemoryNode);

    impl Node for Unrenewed {
        fn label(&self) -> &str {
            "unrenewed"
        }

        fn submit(&self, call: Call) {
            let why = "no renewals".into();
            match call.verb() {
                Verb::Extend => call.answer(Err(NodeError::Refused { why })),
                _ => self.0.submit(call),
            }
        }
    }

    #[tokio::test]
    async fn a_lost_lease_reports_what_the_nodes_answered() {
        let builder = Client::builder().custom_node(Unrenewed(MemoryNode::new("memory")));
        let client = builder.build().unwrap();
        let ttl = Duration::from_millis(200);
        let mutex = client.mutex("a").with_options(|o| o.ttl(ttl));
        let outcome = mutex.with(async |_| std::future::pending::<()>().await);
        let error = outcome.await.unwrap_err();
        let Error::Lost { why, nodes, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*why, nodes.len()), (Loss::NotRenewed, 1));
        let text = error.to_string();
        assert!(
            text.contains("without a renewal [unrenewed: no renewals]"),
            "{text}"
        );
    }

    /// After a stop or a suspend, tasks may run before the keeper has noticed the deadline.
    /// No task of the runtime runs here, so only the clock can end the work.
    #[tokio::test]
    async fn work_is_not_polled_again_after_the_deadline() {
        let clock = Jumping::default();
        let node = MemoryNode::with_time_source("memory", Arc::new(clock.clone()));
        clock.0.store(1, Ordering::SeqCst);
        let builder = Client::builder().time_source(clock.clone());
        let client = builder.custom_node(node).build().unwrap();
        let polls = AtomicU64::new(0);
        let mutex = client.mutex("a");
        let mut with = std::pin::pin!(mutex.with(async |_| {
            poll_fn(|_| {
                polls.fetch_add(1, Ordering::SeqCst);
                Poll::<()>::Pending
            })
            .await;
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(with.as_mut().poll(&mut cx).is_pending());
        assert_eq!(polls.load(Ordering::SeqCst), 1);
        clock.0.store(9_950, Ordering::SeqCst);
        let Poll::Ready(Err(Error::Lost { .. })) = with.as_mut().poll(&mut cx) else {
            panic!("the lease is lost by its deadline");
        };
        assert_eq!(polls.load(Ordering::SeqCst), 1, "the work was polled again");
    }
}
