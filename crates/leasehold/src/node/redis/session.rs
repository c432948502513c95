//! A connection that has shaken hands: it knows the server's run and epoch.
//!
//! A restart always breaks the connection, so what the handshake learnt (the run id, the
//! floor, how long the server has been up) holds for as long as the connection does.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, RedisError, Value};

use super::batch::{Job, Unit, plan, settle};
use super::bells::{Bells, Subscription};
use super::reply::{Hello, Native, connection_error, read_hello};
use super::roster::{Place, Roster};
use super::scripts::{self, Scripts};
use super::{NodeSettings, Target};
use crate::clock::{Clock, Moment};
use crate::node::call::Tick;
use crate::node::rules::Constants;
use crate::node::{Call, NodeError, Verb, Vote};

/// The replies to what was sent.
pub(super) type Sent = Pin<Box<dyn Future<Output = Result<Vec<Value>, RedisError>> + Send>>;

/// Makes sessions with one server.
pub(super) struct Connector {
    target: Target,
    constants: Constants,
    assume_fresh: bool,
    timeout: Duration,
    clock: Clock,
    roster: Arc<Roster>,
    bells: Arc<Bells>,
}

/// A connection that has shaken hands.
pub(super) struct Session {
    connection: MultiplexedConnection,
    /// When the connection was there; see [`settle`].
    connected: Tick,
    epoch: Epoch,
    quarantine: Option<Quarantine>,
    bells: Arc<Bells>,
    /// `None`: the server cannot tell those who wait, who ask by themselves.
    _subscription: Option<Subscription>,
    _place: Place,
}

/// What a connection knows of its server's epoch.
struct Epoch {
    scripts: Scripts,
    floor: u64,
    /// The server's clock allows tokens up to here: the latest time that it told, and S.
    /// It does not go back, so what was allowed once stays so.
    cap: u64,
    /// The server has taken all scripts. A user without SCRIPT LOAD can do without it (see
    /// `By::Text`), one call at a time.
    loaded: bool,
    /// The server's own compare-and-delete, unless it has refused it.
    native: Option<Native>,
}

/// The node started at `since` and does not vote before `until`.
struct Quarantine {
    since: Moment,
    until: Moment,
}

impl Connector {
    pub(super) fn new(
        target: Target,
        settings: &NodeSettings,
        roster: Arc<Roster>,
        bells: Arc<Bells>,
    ) -> Self {
        Self {
            target,
            constants: settings.constants,
            assume_fresh: settings.assume_fresh,
            timeout: settings.connect_timeout,
            clock: settings.clock.clone(),
            roster,
            bells,
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
            let (mut connection, pushes) = self
                .open()
                .await
                .map_err(|error| connection_error(&error))?;
            let (hello, epoch) = self.shake_hands(&mut connection).await?;
            let subscribed = pushes && self.subscribe(&mut connection).await?;
            let place = self
                .roster
                .enter(&hello.run_id, self.label())
                .map_err(|other| NodeError::SameServer { other })?;
            Ok(Session {
                connection,
                connected: Tick::now(),
                quarantine: self.quarantine(hello.up),
                epoch,
                bells: Arc::clone(&self.bells),
                _subscription: subscribed.then(|| Subscription::new(&self.bells)),
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

    /// Opens a connection; whether the server may push messages over it.
    async fn open(&self) -> Result<(MultiplexedConnection, bool), RedisError> {
        // Requests are timed by the link, all with one timer.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(None);
        let bells = Arc::downgrade(&self.bells);
        let pushing = config.clone().set_push_sender(move |push: PushInfo| {
            if let Some(bells) = bells.upgrade() {
                bells.pushed(&push);
            }
            Ok::<_, Infallible>(())
        });
        let Target {
            client,
            pushing: pushing_client,
            ..
        } = &self.target;
        let opened = pushing_client
            .get_multiplexed_async_connection_with_config(&pushing)
            .await;
        match opened {
            // An old server, or something in front of it.
            Err(error) if error.kind() == ErrorKind::RESP3NotSupported => {
                let opened = client.get_multiplexed_async_connection_with_config(&config);
                Ok((opened.await?, false))
            }
            opened => Ok((opened?, true)),
        }
    }

    /// Has the server tell those who wait over this connection. `false` if it refuses, as it
    /// does to a user who may not subscribe.
    async fn subscribe(&self, connection: &mut MultiplexedConnection) -> Result<bool, NodeError> {
        match connection.subscribe(self.bells.channel()).await {
            Ok(()) => Ok(true),
            Err(error) if error.code().is_some() => {
                let node = self.label();
                tracing::warn!(node, %error, "those who wait cannot be told, and poll");
                Ok(false)
            }
            Err(error) => Err(connection_error(&error)),
        }
    }

    async fn shake_hands(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(Hello, Epoch), NodeError> {
        let hello = scripts::hello(&self.constants);
        // As a value: an error of the server is told apart from one of the way there.
        let mut pipeline = redis::Pipeline::new();
        pipeline.add_command(hello);
        let replies = connection
            .send_packed_commands(&pipeline, 0, 1)
            .await
            .map_err(|error| connection_error(&error))?;
        let ours = scripts::describe(&self.constants);
        let hello = read_hello(replies.first().unwrap_or(&Value::Nil), &ours)?;
        let floor = hello.began_us.saturating_add(self.constants.skew_us());
        let scripts = Scripts::new(&self.constants, &hello.record, floor);
        let load = scripts.load();
        let loads = connection
            .send_packed_commands(&load, 0, load.len())
            .await
            .map_err(|error| connection_error(&error))?;
        let epoch = Epoch {
            scripts,
            floor,
            cap: hello.now_us.saturating_add(self.constants.skew_us()),
            loaded: !loads
                .iter()
                .any(|value| matches!(value, Value::ServerError(_))),
            native: hello.native,
        };
        Ok((hello, epoch))
    }

    /// The restart guard: no vote until the node has been up for the longest TTL in use.
    /// By uptime, not by first touch, so that a server that has long been up is usable
    /// at once. Uptime is in whole seconds, hence the second on top.
    fn quarantine(&self, up: Duration) -> Option<Quarantine> {
        let guard = self
            .constants
            .restart_guard
            .filter(|_| !self.assume_fresh)?;
        let until = guard + Duration::from_secs(1);
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
        (_, self.epoch) = connector.shake_hands(&mut self.connection).await?;
        Ok(())
    }

    pub(super) fn floor(&self) -> u64 {
        self.epoch.floor
    }

    /// The server has refused its own compare-and-delete, to this user perhaps.
    pub(super) fn refuses_native(&mut self) {
        self.epoch.native = None;
    }

    /// The server's clock says `now_us`.
    pub(super) fn learn_time(&mut self, now_us: u64, connector: &Connector) {
        let cap = now_us.saturating_add(connector.constants.skew_us());
        self.epoch.cap = self.epoch.cap.max(cap);
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

    /// Puts calls together that can share a request.
    pub(super) fn plan(&self, mut jobs: Vec<Job>) -> Vec<Unit> {
        settle(&mut jobs, self.connected);
        match self.epoch.loaded {
            true => plan(jobs, self.epoch.cap, self.epoch.native),
            false => jobs.into_iter().map(Unit::One).collect(),
        }
    }

    /// Sends requests in one write; the replies come in the same order.
    pub(super) fn send(&self, units: &[Unit]) -> Sent {
        let Epoch { scripts, cap, .. } = &self.epoch;
        let mut pipeline = redis::Pipeline::with_capacity(units.len());
        for unit in units {
            let calls = unit.jobs().iter().map(|job| &job.call);
            let cmd = match unit {
                Unit::One(job) => scripts.one(job, *cap, self.bells.id()),
                Unit::Plain(job) => scripts::set(&job.call),
                Unit::Native(job, native) => {
                    pipeline.add_command(scripts::delete(&job.call, *native));
                    scripts::look_for_line(&job.call)
                }
                Unit::AcquireMany(_) => scripts.acquire_many(calls),
                Unit::ExtendMany(_) => scripts.extend_many(calls),
                Unit::SettleMany(_) => scripts.settle_many(calls),
            };
            pipeline.add_command(cmd);
        }
        let (mut connection, count) = (self.connection.clone(), pipeline.len());
        // Unconstrained: the first poll must hand the requests over, or those of the next
        // batch would overtake them; it may not be put off because the task has done a lot.
        Box::pin(tokio::task::unconstrained(async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        }))
    }
}
