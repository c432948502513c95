//! A connection that has shaken hands: it knows the server's run and epoch.
//!
//! A restart always breaks the connection, so what the handshake learnt (the run id, the
//! floor, how long the server has been up) holds for as long as the connection does.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Value};

use super::reply::{Hello, connection_error, read_hello};
use super::roster::{Place, Roster};
use super::scripts::{By, Epoch, Scripts};
use super::{NodeSettings, Target};
use crate::clock::{Clock, Moment};
use crate::node::{Call, NodeError, Verb, Vote};

/// The replies to what was sent.
pub(super) type Sent = Pin<Box<dyn Future<Output = Result<Vec<Value>, RedisError>> + Send>>;

/// Makes sessions with one server.
pub(super) struct Connector {
    target: Target,
    scripts: Arc<Scripts>,
    guard: Option<Duration>,
    skew_us: u64,
    timeout: Duration,
    clock: Clock,
    roster: Arc<Roster>,
}

/// A connection that has shaken hands.
pub(super) struct Session {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
    epoch: Epoch,
    quarantine: Option<Quarantine>,
    _place: Place,
}

/// The node started at `since` and does not vote before `until`.
struct Quarantine {
    since: Moment,
    until: Moment,
}

impl Connector {
    pub(super) fn new(target: Target, settings: &NodeSettings, roster: Arc<Roster>) -> Self {
        let constants = &settings.constants;
        Self {
            target,
            scripts: Arc::new(Scripts::new(constants)),
            guard: constants.restart_guard.filter(|_| !settings.assume_fresh),
            skew_us: constants.skew_us(),
            timeout: settings.connect_timeout,
            clock: settings.clock.clone(),
            roster,
        }
    }

    pub(super) fn label(&self) -> &str {
        &self.target.label
    }

    /// Connects and shakes hands.
    ///
    /// Cancel safety: the connection is closed.
    pub(super) async fn connect(&self) -> Result<Session, NodeError> {
        let work = async {
            // Requests are timed by the link, all with one timer.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.timeout))
                .set_response_timeout(None);
            let mut connection = self
                .target
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| connection_error(&error))?;
            let hello = self.shake_hands(&mut connection).await?;
            let place = self
                .roster
                .enter(&hello.run_id, self.label())
                .map_err(|other| NodeError::SameServer { other })?;
            Ok(Session {
                connection,
                scripts: Arc::clone(&self.scripts),
                quarantine: self.quarantine(hello.up),
                epoch: self.epoch(hello),
                _place: place,
            })
        };
        tokio::time::timeout(self.timeout, work)
            .await
            .unwrap_or_else(|_| {
                let why = format!("it did not shake hands within {:?}", self.timeout);
                Err(NodeError::Unreachable { why })
            })
    }

    async fn shake_hands(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Hello, NodeError> {
        let handshake = self.scripts.handshake();
        let replies = connection
            .send_packed_commands(&handshake, 0, handshake.len())
            .await
            .map_err(|error| connection_error(&error))?;
        // A user without SCRIPT LOAD can do without it; see `By::Text`.
        let hello = replies.first().unwrap_or(&Value::Nil);
        read_hello(hello, self.scripts.constants())
    }

    fn epoch(&self, hello: Hello) -> Epoch {
        Epoch {
            floor: hello.began_us.saturating_add(self.skew_us),
            record: hello.record,
        }
    }

    /// The restart guard: no vote until the node has been up for the longest TTL in use.
    /// By uptime, not by first touch, so that a server that has long been up is usable
    /// at once. Uptime is in whole seconds, hence the second on top.
    fn quarantine(&self, up: Duration) -> Option<Quarantine> {
        let until = self.guard? + Duration::from_secs(1);
        let now = self.clock.now();
        (up < until).then(|| Quarantine {
            since: now.saturating_sub(up),
            until: now + (until - up),
        })
    }
}

impl Session {
    /// Shakes hands once more, when the server has forgotten its epoch (FLUSHALL).
    pub(super) async fn renew(&mut self, connector: &Connector) -> Result<(), NodeError> {
        let hello = connector.shake_hands(&mut self.connection).await?;
        self.epoch = connector.epoch(hello);
        Ok(())
    }

    pub(super) fn floor(&self) -> u64 {
        self.epoch.floor
    }

    /// The vote of a node in quarantine. Giving back what it may still have is allowed.
    pub(super) fn quarantined(&mut self, call: &Call, now: Moment) -> Option<Vote> {
        let quarantine = self.quarantine.as_ref()?;
        if now >= quarantine.until {
            self.quarantine = None;
            return None;
        }
        if matches!(call.verb(), Verb::Release { .. }) {
            return None;
        }
        Some(Vote::Quarantined {
            up: now.saturating_duration_since(quarantine.since),
            remaining: quarantine.until.saturating_duration_since(now),
        })
    }

    /// Sends calls in one write; the replies come in the same order.
    pub(super) fn send<'c>(&self, calls: impl ExactSizeIterator<Item = (&'c Call, By)>) -> Sent {
        let count = calls.len();
        let mut pipeline = redis::Pipeline::with_capacity(count);
        for (call, by) in calls {
            pipeline.add_command(self.scripts.command(call, by, &self.epoch));
        }
        let mut connection = self.connection.clone();
        Box::pin(async move { connection.send_packed_commands(&pipeline, 0, count).await })
    }
}
