//! A lease in the hand: the guard.

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
use crate::lease::janitor::Return;
use crate::lease::state::{Held, Loss, Progress, Won};
use crate::node::Holders;
use crate::quorum::Broadcast;
use crate::quorum::round::Decision;

/// A lock that is held, for a time. Released when dropped.
///
/// The lease is renewed in the background every third of its TTL. It is over when it is
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

/// What became of a lease that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was still held, and has been given back: free now where nodes confirmed, and
    /// elsewhere as soon as they can be reached, or after its TTL. (Or taken until its
    /// `min_hold` is over.)
    Released,
    /// It had been lost before: another may have held the lock meanwhile.
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

    /// The fencing token: larger than that of every earlier lease of this name. Pass it
    /// to the resource and let that refuse a smaller one than it has seen. 0 if
    /// [fencing is off](Options::without_fencing).
    ///
    /// Tokens are below 2⁵³ (9 007 199 254 740 992), so every language and database can keep
    /// them exactly: as a signed 64-bit integer, and as a double (JavaScript, Lua, JSON).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// A short name for the claim behind this lease, as other clients see it in
    /// [`Holder::owner_id`](crate::Holder::owner_id). No other claim has it. Not a secret.
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
        crate::base::holder::owner_id(self.held.claim.owner())
    }

    /// The lock's name, without the client's prefix: as [`Client::mutex`](crate::Client::mutex),
    /// [`inspect`](crate::Client::inspect) and [`break_lock`](crate::Client::break_lock) take it.
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

    /// The key of the lock on the nodes: the client's [prefix](crate::Builder::prefix) and the
    /// name.
    #[must_use]
    pub fn key(&self) -> &crate::Name {
        &self.held.claim.name
    }

    /// Until when the lease is valid, as far as is known now. Renewal moves it.
    ///
    /// A lease that was waited for may begin with less than its TTL, and is renewed some
    /// milliseconds later.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.held.deadline()
    }

    /// How long the lease is valid yet; zero if it is over. Local, no I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.held.is_open() {
            return Duration::ZERO;
        }
        let now = self.core.clock.now();
        self.held.deadline().saturating_duration_since(now)
    }

    /// Whether the lease is valid now. Local, no I/O, and right also after the process
    /// was stopped or the machine suspended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when the lease is lost, a little before its deadline can pass. Never
    /// resolves for a lease that is released in time.
    ///
    /// Every poll compares the deadline with a clock that counts suspend. In a `select!` that
    /// is `biased` and has this branch first, the other branches are therefore not polled again
    /// once the deadline has passed, even if the process was stopped for longer than the TTL.
    /// [`Mutex::with`](crate::Mutex::with) does that.
    ///
    /// Cancel safety: leaves nothing behind; may be called again.
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

    /// Why the lease was lost, once it is. [`Error::Lost`] also says what the nodes answered.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.held.loss()
    }

    /// Ties the lease to processes of this machine instead of this one: nodes that free the
    /// locks of dead processes at once (the embedded store) do so when all of these are
    /// dead. Renews the lease.
    ///
    /// # Errors
    /// As [`extend`](Lease::extend).
    ///
    /// Cancel safety: if dropped, the next renewal does it.
    pub async fn bind_to_processes(&self, pids: &[u32]) -> Result<(), Error> {
        self.held.claim.set_holders(Holders::Processes(pids.into()));
        self.extend().await
    }

    /// Takes the lease out of the guard's hands: it is neither renewed nor released any
    /// more, but ends with its TTL unless somebody extends it.
    ///
    /// # Errors
    /// As [`extend`](Lease::extend), which it may have to do; the lease is released then.
    ///
    /// Cancel safety: if dropped, the lease is released in the background.
    pub async fn detach(self) -> Result<Detached, Error> {
        if self.held.claim.holders() != Holders::Nobody {
            self.held.claim.set_holders(Holders::Nobody);
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

    /// A token that is cancelled when the lease is lost. It is a child: cancelling it affects
    /// neither the lease nor the other tokens of this lease.
    ///
    /// The token is cancelled by the background task that renews leases, or by a
    /// [`lost`](Lease::lost) that is polled first. It does not read the clock itself: when a
    /// process was stopped, a task that only looks at the token may run before that. Use
    /// [`lost`](Lease::lost), [`is_valid`](Lease::is_valid) or
    /// [`Mutex::with`](crate::Mutex::with) where that matters.
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

    /// Renews the lease now, for another TTL. Renewal in the background goes on as well.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease is over. [`Error::NoMajority`] if not enough nodes
    /// answered: the old deadline stands.
    ///
    /// Cancel safety: if dropped, the nodes may keep the lock longer than the deadline
    /// says, by up to one TTL.
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
                core.refused(&held.claim, &extension.broadcast.round()),
            ))),
        }
    }

    /// Gives the lease back and tells whether it was still held. Waits for a majority
    /// to confirm, at most the node timeout; nodes that fail are asked again in the
    /// background until the lock has expired there.
    ///
    /// Cancel safety: once polled, the release is under way and goes on if this is
    /// dropped; before that, dropping it drops the lease, which releases it too.
    pub async fn release(self) -> Released {
        if self.held.is_lost_at(self.core.clock.now()) {
            return Released::WasLost;
        }
        if self.pass_on() {
            return Released::Released;
        }
        let Some(broadcast) = self.give_back(None) else {
            return Released::WasLost;
        };
        match broadcast.decided().await {
            Decision::Refuted => Released::WasLost,
            Decision::Carried | Decision::Failed => Released::Released,
        }
    }

    /// Releases the lease and keeps the name taken for another `period`, owned by nobody: the
    /// work is not to be repeated before that. Call it when the work has succeeded, and
    /// [`release`](Lease::release) when it has failed and may be repeated at once. At most 24 h.
    /// If [`Options::min_hold`] asks for longer, that counts.
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
    /// [`Error::Lost`] if the lease was over: nothing is kept. [`Error::NoMajority`] if not
    /// enough nodes confirmed: they are asked again in the background, and the name is free at
    /// the latest after the TTL where that fails. [`Error::Invalid`] for a period that is too
    /// long: the lease is released.
    ///
    /// Cancel safety: once polled, the release is under way and goes on if this is dropped.
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
        let Some(broadcast) = self.give_back(Some(now + period)) else {
            return Err(held.lost_error());
        };
        match broadcast.decided().await {
            Decision::Carried => Ok(()),
            Decision::Refuted => Err(held.lost_error()),
            Decision::Failed => {
                let refusal = core.refused(&held.claim, &broadcast.round());
                Err(core.explain(Error::NoMajority(Box::new(refusal))))
            }
        }
    }

    /// Sends the release, and lets the next task of this process try. `None` if the lease was
    /// over already.
    fn give_back(&self, keep_until: Option<Moment>) -> Option<Arc<Broadcast>> {
        let item = self.close(keep_until)?;
        let broadcast = self.core.janitor.give_back(item);
        self.held.end_turn();
        Some(broadcast)
    }

    /// Releases the lease, and returns what was `done` under it if it was held until then.
    pub(crate) async fn finish<T>(self, done: Option<T>) -> Result<T, Error> {
        let held = Arc::clone(&self.held);
        match (done, self.release().await) {
            (Some(value), Released::Released) => Ok(value),
            _ => Err(held.lost_error()),
        }
    }

    /// Passes the claim on to another of this process who waits for it, if that is possible.
    fn pass_on(&self) -> bool {
        let passed = self.held.pass_on(self.core.clock.now()).is_some();
        if passed {
            self.core.keeper.leave(&self.held);
        }
        passed
    }

    /// Takes the lease out of the keeper's hands. `None` if it was over already, in
    /// which case it is being given back.
    fn close(&self, keep_until: Option<Moment>) -> Option<Return> {
        let item = self.held.close(keep_until)?;
        self.core.keeper.leave(&self.held);
        Some(item)
    }
}

impl Drop for Lease {
    /// Posts the claim to the janitor; does not wait.
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

    /// A renewal that comes late must not bring a lock back that was given back.
    #[tokio::test]
    async fn nothing_is_extended_after_the_end() {
        let client = Client::in_memory();
        let lease = client.mutex("a").lock().await.unwrap();
        let (core, held) = (lease.core.clone(), lease.held.clone());
        assert!(held.start_extension(&core.nodes, &core.clock).is_some());
        lease.release().await;
        assert!(held.start_extension(&core.nodes, &core.clock).is_none());
        assert!(client.mutex("a").try_lock().await.unwrap().is_some());
    }

    /// A clock that goes on when told to, as after a suspend: no timer has noticed yet.
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

    /// Past the deadline the lease is lost, also if nothing but the clock says so yet, and
    /// whatever a server says.
    #[tokio::test]
    async fn an_extend_is_not_believed_past_the_deadline() {
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

    /// A node that renews nothing.
    struct Unrenewed(MemoryNode);

    impl Node for Unrenewed {
        fn label(&self) -> &str {
            "unrenewed"
        }

        fn submit(&self, call: Call) {
            let why = "on strike".into();
            match call.verb() {
                Verb::Extend => call.answer(Err(NodeError::Refused { why })),
                _ => self.0.submit(call),
            }
        }
    }

    #[tokio::test]
    async fn a_lease_that_could_not_be_renewed_says_what_the_nodes_said() {
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
            text.contains("without a renewal [unrenewed: on strike]"),
            "{text}"
        );
    }

    /// After a stop or a suspend, tasks may run before the keeper has noticed the deadline.
    /// No task of the runtime runs here, so only the clock can end the work.
    #[tokio::test]
    async fn work_is_not_polled_again_past_the_deadline() {
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
        assert_eq!(polls.load(Ordering::SeqCst), 1, "the work went on");
    }
}
