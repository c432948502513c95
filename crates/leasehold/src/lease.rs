//! A lease in the hand: the guard.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::core::Core;
use crate::detached::Detached;
use crate::error::Error;
use crate::held::{Held, Loss, Progress, Won};
use crate::janitor::Return;
use crate::node::Holders;
use crate::options::Options;
use crate::quorum::round::Decision;
use crate::turnstile::Turn;

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
    pub(crate) fn new(core: &Arc<Core>, won: Won, options: &Options, turn: Option<Turn>) -> Self {
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
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.token
    }

    /// The lock's name, as it stands on the nodes.
    #[must_use]
    pub fn name(&self) -> &crate::Name {
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
    /// Cancel safety: leaves nothing behind; may be asked for again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # async fn work() {}
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("x").lock().await?;
    /// tokio::select! {
    ///     () = work() => println!("done"),
    ///     () = lease.lost() => println!("lost; stop at once"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let held = Arc::clone(&self.held);
        async move {
            loop {
                let mut lost = std::pin::pin!(held.lost.notified());
                lost.as_mut().enable();
                if held.loss().is_some() {
                    return;
                }
                lost.await;
            }
        }
    }

    /// Why the lease was lost, once it is.
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
        match self.close() {
            Some(_) => {
                self.held.end_turn();
                Ok(Detached::of_lease(&self.core, &self.held))
            }
            None => Err(self.held.lost_error()),
        }
    }

    /// A token that is cancelled when the lease is lost.
    #[cfg(feature = "cancellation")]
    #[must_use]
    pub fn cancellation_token(&self) -> tokio_util::sync::CancellationToken {
        self.held.cancellation.clone()
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
        if !self.is_valid() {
            held.lose(held.loss_at_deadline());
            return Err(held.lost_error());
        }
        let Some(extension) = held.start_extension(&core.nodes, &core.clock) else {
            return Err(held.lost_error());
        };
        extension.canvass.decided().await;
        match held.finish_extension(&extension, &core.clock) {
            Progress::Extended => Ok(()),
            Progress::Over => Err(held.lost_error()),
            Progress::Unknown => Err(Error::NoMajority(Box::new(
                core.refused(&held.claim, &extension.canvass),
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
        let valid = self.is_valid();
        if self.pass_on() {
            return Released::Released;
        }
        let Some(item) = self.close() else {
            return Released::WasLost;
        };
        let canvass = self.core.janitor.give_back(item);
        self.held.end_turn();
        let decision = canvass.decided().await;
        let refuted = decision == Decision::Failed && canvass.with_round(|r| r.is_refuted());
        if valid && !refuted {
            Released::Released
        } else {
            Released::WasLost
        }
    }

    /// Takes the lease out of the keeper's hands. `None` if it was over already, in
    /// which case it is being given back.
    /// Passes the claim on to another of this process who waits for it, if that is possible.
    fn pass_on(&self) -> bool {
        let passed = self.held.pass_on(self.core.clock.now()).is_some();
        if passed {
            self.core.keeper.leave(&self.held);
        }
        passed
    }

    fn close(&self) -> Option<Return> {
        let item = self.held.close()?;
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
        if let Some(item) = self.close() {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use crate::held::Progress;
    use crate::{Client, MemoryNode, Moment, TimeSource};

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
}
