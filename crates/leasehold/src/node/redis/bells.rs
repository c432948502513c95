//! Hearing from a server whose turn it is: one subscription for all who wait in this process,
//! made when the first of them comes and kept while there is one, and a while longer.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_core::Stream;
use redis::aio::{PubSubSink, PubSubStream};

use crate::clock::Clock;
use crate::name::Name;
use crate::node::{Bell, Claim, News, Watch};

/// What the channels begin with; see prelude.lua.
const CHANNEL_PREFIX: &str = "leasehold:bell:";
/// How often a silent server is asked whether it is there.
const PING: Duration = Duration::from_secs(5);
/// How long the subscription is kept when nobody waits any more.
const IDLE: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Who waits: the name, and the beginning of the owner value, which is random.
type Waiter = (Name, Box<[u8]>);

/// How much of an owner value is told: enough to be no other's, and too little to be a secret.
const TOLD: usize = 16;

/// The bells of all who wait for something on one server.
pub(super) struct Bells {
    client: redis::Client,
    clock: Clock,
    timeout: Duration,
    /// The name of the channel.
    id: String,
    subscribed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<Waiter, Bell>,
    /// Whether a task listens, or tries to.
    listening: bool,
}

impl Bells {
    pub(super) fn new(client: redis::Client, clock: Clock, timeout: Duration) -> Self {
        Self {
            client,
            clock,
            timeout,
            id: format!("{:016x}", fastrand::u64(..)),
            subscribed: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// The channel over which those who wait can be told; empty while there is none.
    pub(super) fn channel(&self) -> &str {
        match self.subscribed.load(Ordering::Acquire) {
            true => &self.id,
            false => "",
        }
    }

    pub(super) fn watch(self: &Arc<Self>, claim: &Claim, bell: &Bell) -> Watch {
        let told = claim.owner().get(..TOLD).unwrap_or(claim.owner());
        let key = (claim.name().clone(), Box::from(told));
        let mut state = self.state();
        state.waiting.insert(key.clone(), bell.clone());
        if !std::mem::replace(&mut state.listening, true) {
            tokio::spawn(listen(Arc::downgrade(self)));
        }
        drop(state);
        Watch::new(Unwatch {
            bells: Arc::downgrade(self),
            key,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings for a message: the news, the beginning of the owner value, a space, the name.
    fn hear(&self, message: &[u8]) {
        let Some((head, name)) = message.split_first_chunk::<1>().and_then(|(head, rest)| {
            let space = rest.iter().position(|&b| b == b' ')?;
            Some(((head[0], &rest[..space]), &rest[space + 1..]))
        }) else {
            return;
        };
        let news = match head.0 {
            b'T' => News::YourTurn,
            b'G' => News::Granted,
            b'A' => News::AskAgain,
            _ => return,
        };
        let Ok(name) = Name::new(name) else {
            return;
        };
        let bell = self.state().waiting.get(&(name, head.1.into())).cloned();
        if let Some(bell) = bell {
            bell.ring(news);
        }
    }

    /// From now on the server can tell; or it cannot any more. Who waits asks again, and so
    /// makes that known to the server and learns what it was not told meanwhile.
    fn set_subscribed(&self, subscribed: bool) {
        if self.subscribed.swap(subscribed, Ordering::AcqRel) != subscribed {
            let bells: Vec<_> = self.state().waiting.values().cloned().collect();
            for bell in bells {
                bell.ring(News::AskAgain);
            }
        }
    }

    /// Whether to stop listening, because nobody waits.
    fn is_over(&self) -> bool {
        let mut state = self.state();
        state.listening = !state.waiting.is_empty();
        !state.listening
    }
}

/// Ends a watch when dropped.
struct Unwatch {
    bells: Weak<Bells>,
    key: Waiter,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        if let Some(bells) = self.bells.upgrade() {
            bells.state().waiting.remove(&self.key);
        }
    }
}

/// Ends the subscription of a task that ends, whatever ends it.
struct Listening(Weak<Bells>);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(bells) = self.0.upgrade() {
            bells.subscribed.store(false, Ordering::Release);
        }
    }
}

/// Subscribes, listens, and does so again when the connection breaks, as long as anybody waits.
async fn listen(bells: Weak<Bells>) {
    let _listening = Listening(Weak::clone(&bells));
    let mut failures = 0_u32;
    while let Some(here) = bells.upgrade() {
        let (clock, timeout) = (here.clock.clone(), here.timeout);
        let subscribed = tokio::time::timeout(timeout, subscribe(&here)).await;
        match subscribed {
            Ok(Ok((sink, stream))) => {
                let since = clock.now();
                here.set_subscribed(true);
                drop(here);
                if hear_all(&bells, &clock, timeout, sink, stream).await {
                    return;
                }
                if let Some(here) = bells.upgrade() {
                    here.set_subscribed(false);
                }
                if clock.now().saturating_duration_since(since) > LONGEST_RETRY {
                    failures = 0;
                    continue;
                }
            }
            Ok(Err(_)) | Err(_) => {
                let over = here.is_over();
                drop(here);
                if over {
                    return;
                }
            }
        }
        // It failed, or did not last: a server that hangs up on all who listen must not be
        // pestered, nor those who wait be told again and again.
        failures = failures.saturating_add(1);
        let pause = FIRST_RETRY.saturating_mul(1 << failures.min(10));
        clock.sleep(pause.min(LONGEST_RETRY)).await;
    }
}

async fn subscribe(bells: &Bells) -> redis::RedisResult<(PubSubSink, PubSubStream)> {
    let mut subscription = bells.client.get_async_pubsub().await?;
    let channel = format!("{CHANNEL_PREFIX}{}", bells.id);
    subscription.subscribe(channel).await?;
    Ok(subscription.split())
}

/// Rings for all messages until the connection breaks (`false`) or nobody listens (`true`).
async fn hear_all(
    bells: &Weak<Bells>,
    clock: &Clock,
    timeout: Duration,
    mut sink: PubSubSink,
    mut stream: PubSubStream,
) -> bool {
    let mut idle = std::pin::pin!(clock.sleep(IDLE));
    let mut ping = std::pin::pin!(clock.sleep(PING));
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut stream).poll_next(cx));
        tokio::select! {
            biased;
            message = next => {
                let Some(here) = bells.upgrade() else { return true };
                let Some(message) = message else { return false };
                here.hear(message.get_payload_bytes());
            }
            () = &mut ping => {
                let answer = tokio::time::timeout(timeout, sink.ping::<redis::Value>()).await;
                if !matches!(answer, Ok(Ok(_))) {
                    return false;
                }
                ping.set(clock.sleep(PING));
            }
            () = &mut idle => {
                let Some(here) = bells.upgrade() else { return true };
                if here.is_over() {
                    return true;
                }
                idle.set(clock.sleep(IDLE));
            }
        }
    }
}
