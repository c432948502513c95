//! A connection that has shaken hands: it knows the server's identity and epoch.
//!
//! What the handshake learnt need not hold for as long as the connection does. A role change
//! breaks no connection, and a proxy may keep one while the server behind it restarts. So a
//! session is verified again when it is used: see [`Session::send`].

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, PushInfo, RedisError, Value};

use super::batch::{Job, Unit, plan, settle};
use super::bells::{Bells, Subscription};
use super::identity::{self, Identity, ServerInfo};
use super::reply::{Native, bytes, connection_error, glimpse, read_hello, server_error};
use super::roster::{Admission, Place, Roster};
use super::scripts::{self, KeyForm, Scripts};
use super::set::{SET_KEY, Set, scoped};
use super::{NodeSettings, Target};
use crate::base::clock::{Clock, Moment};
use crate::node::call::Tick;
use crate::node::rules::Constants;
use crate::node::{Call, NodeError, Verb, Vote};

/// How often a server is looked at again on which another client may be recording its set.
const FIRST_CONTACT_PAUSE: Duration = Duration::from_millis(20);

/// The replies to what was sent.
pub(super) type Sent = Pin<Box<dyn Future<Output = Result<Vec<Value>, RedisError>> + Send>>;

/// Makes sessions with one server.
pub(super) struct Connector {
    target: Target,
    constants: Constants,
    assume_fresh: bool,
    timeout: Duration,
    verify_after: Duration,
    clock: Clock,
    /// Which of the roster's nodes this is.
    node: usize,
    roster: Arc<Roster>,
    keys: Arc<Keys>,
    bells: Arc<Bells>,
    memory: Mutex<Option<Memory>>,
}

/// What a client knows of its server's memory, by the client's own clock.
struct Memory {
    identity: Identity,
    /// It began then, or earlier.
    since: Moment,
    /// The server had it then, and maybe later.
    seen: Moment,
}

/// The keys of what a server has on record for clients of one prefix.
pub(super) struct Keys {
    pub(super) epoch: Vec<u8>,
    pub(super) set: Vec<u8>,
}

/// A connection that has shaken hands.
pub(super) struct Session {
    connection: MultiplexedConnection,
    /// When the connection was there; see [`settle`].
    connected: Tick,
    run_id: Option<String>,
    keys: Arc<Keys>,
    /// The roster's generation at which the node was admitted.
    admitted_at: u64,
    epoch: Epoch,
    /// When the server was last asked who it is.
    verified: Moment,
    verify_after: Duration,
    quarantine: Option<Quarantine>,
    bells: Arc<Bells>,
    /// `None`: the server cannot tell those who wait, who ask by themselves.
    _subscription: Option<Subscription>,
    _place: Place,
}

/// What a connection knows of its server's epoch.
struct Epoch {
    /// Who the server was at the handshake.
    identity: Identity,
    /// The epoch record.
    record: String,
    /// How old it was at the handshake, by the server's clock.
    age: Duration,
    /// The set of nodes that the server has on record.
    set: Option<Set>,
    /// How long it must not vote because that set took the place of another.
    votes_in: Duration,
    /// It is on record that the server had nothing to forget when it started.
    fresh: bool,
    scripts: Scripts,
    floor: u64,
    /// The server's clock allows tokens up to here: see [`cap`].
    /// It does not go back, so what was allowed once stays so.
    cap: u64,
    /// The server has taken all scripts. A user without SCRIPT LOAD can do without it (see
    /// `By::Text`), one call at a time.
    loaded: bool,
    /// The server's own compare-and-delete, unless it has refused it.
    native: Option<Native>,
}

/// Up to which token an acquire need not look at the clock of a server that shows `now_us`.
///
/// While the floor is ahead of that clock, tokens are too and do not tell when they were granted.
/// Then every acquire looks at the clock, and the server records the time.
fn cap(now_us: u64, floor: u64, constants: &Constants) -> u64 {
    match now_us < floor {
        true => 0,
        false => now_us.saturating_add(constants.skew_us()),
    }
}

/// The node's memory began at `since`, and it does not vote before `until`.
struct Quarantine {
    since: Moment,
    until: Moment,
}

impl Connector {
    pub(super) fn new(
        target: Target,
        settings: &NodeSettings,
        (node, roster): (usize, Arc<Roster>),
        bells: Arc<Bells>,
    ) -> Self {
        Self {
            node,
            keys: Arc::new(Keys::new(&settings.prefix)),
            target,
            constants: settings.constants,
            assume_fresh: settings.assume_fresh,
            timeout: settings.connect_timeout,
            verify_after: settings.verify_after,
            clock: settings.clock.clone(),
            roster,
            bells,
            memory: Mutex::default(),
        }
    }

    pub(super) fn label(&self) -> &str {
        &self.target.label
    }

    /// Connects and shakes hands.
    ///
    /// Cancel safety: the connection is closed.
    pub(super) async fn connect(&self) -> Result<Session, NodeError> {
        self.roster.begin();
        let admitted_at = self.roster.generation();
        // From here on, a failure is known to the client's other nodes.
        let place = self.roster.place(self.node);
        let work = async move {
            let (mut connection, pushes) = self
                .open()
                .await
                .map_err(|error| connection_error(&error))?;
            let verified = self.clock.now();
            let (server, epoch) = match self.shake_hands(&mut connection).await {
                // It lost its memory in the middle of it.
                Err(NodeError::Disconnected { .. }) => self.shake_hands(&mut connection).await?,
                greeted => greeted?,
            };
            let subscribed = pushes && self.subscribe(&mut connection).await?;
            Ok(Session {
                connection,
                connected: Tick::now(),
                quarantine: self.quarantine(&server, &epoch),
                run_id: server.run_id,
                keys: Arc::clone(&self.keys),
                admitted_at,
                epoch,
                verified,
                verify_after: self.verify_after,
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

    /// Asks the server who it is, learns its epoch, and checks that it still is who it was when
    /// it told the epoch. Writes nothing to a server that this client must not use.
    async fn shake_hands(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(ServerInfo, Epoch), NodeError> {
        let mut ask = Pipeline::new();
        identity::ask(&mut ask);
        ask.cmd("GET").arg(&self.keys.set);
        let replies = exchange(connection, &ask).await?;
        let (info, set) = replies.split_at(identity::REQUESTS.min(replies.len()));
        let server = ServerInfo::read(info)?;
        if server.is_replica {
            return Err(NodeError::ReadOnly);
        }
        let set = self.join(connection, &server, read_set(set)?).await?;
        let mut hello = Pipeline::new();
        hello.add_command(scripts::hello(
            &self.keys.epoch,
            &self.constants,
            &server.identity,
            self.assume_fresh,
        ));
        hello.add_command(scripts::read_undeclared(&self.keys.epoch));
        let mut replies = exchange(connection, &hello).await?.into_iter();
        let ours = scripts::describe(&self.constants);
        let reply = replies.next().unwrap_or(Value::Nil);
        let form = match replies.next() {
            Some(Value::ServerError(_)) => KeyForm::Declared,
            _ if server.is_cluster => KeyForm::Declared,
            _ => KeyForm::Derived,
        };
        let hello = read_hello(&scripts::name_refused_by_hello(reply), &ours)?;
        let floor = hello.began_us.saturating_add(self.constants.skew_us());
        let (key, record) = (&self.keys.epoch, &hello.record);
        let scripts = Scripts::new(key, &self.constants, record, floor, form);
        let mut load = scripts.load();
        probe(&mut load, &self.keys);
        let loads = exchange(connection, &load).await?;
        let (loads, probed) = loads.split_at(loads.len().saturating_sub(PROBE_REQUESTS));
        let votes_from = set.as_ref().map_or(0, |set| set.votes_from);
        let epoch = Epoch {
            identity: server.identity.clone(),
            record: hello.record,
            age: Duration::from_micros(hello.now_us.saturating_sub(hello.began_us)),
            votes_in: Duration::from_micros(votes_from.saturating_sub(hello.now_us)),
            fresh: hello.fresh,
            set,
            scripts,
            floor,
            cap: cap(hello.now_us, floor, &self.constants),
            loaded: !loads
                .iter()
                .any(|value| matches!(value, Value::ServerError(_))),
            native: server.native,
        };
        epoch.check(probed)?;
        Ok((server, epoch))
    }

    /// The restart guard: no vote until the node has had its memory for the longest TTL in use.
    ///
    /// Memory begins when the server starts, by its uptime. So a server that has long been up is
    /// usable at once. Where a replica was promoted, memory begins with the epoch: there uptime
    /// says nothing. Uptime is in whole seconds, hence the second on top.
    ///
    /// Uptime is also counted by the server's wall clock, which may be stepped forward after a
    /// boot. So what this client has seen itself counts as well: memory does not begin before the
    /// last that was seen of an earlier one, and another handshake makes it neither older nor
    /// younger.
    ///
    /// And where a set of nodes took the place of another: no vote until no lease of the other
    /// can run.
    fn quarantine(&self, server: &ServerInfo, epoch: &Epoch) -> Option<Quarantine> {
        let now = self.clock.now();
        let age = match server.identity.is_promoted() {
            true => server.up.min(epoch.age),
            false => server.up,
        };
        let mut since = now.saturating_sub(age);
        let mut memory = self.memory();
        if let Some(known) = &*memory {
            since = match server.identity.continues(&known.identity) {
                true => known.since,
                false => since.max(known.seen),
            };
        }
        *memory = Some(Memory {
            identity: server.identity.clone(),
            since,
            seen: now,
        });
        let guard = self.constants.restart_guard;
        let guard = guard.filter(|_| !self.assume_fresh && !epoch.fresh);
        let restarted = guard.map(|guard| since + guard + Duration::from_secs(1));
        let until = restarted.unwrap_or(now).max(now + epoch.votes_in);
        (now < until).then_some(Quarantine { since, until })
    }

    /// The server had the memory of the last handshake at this time, or later.
    pub(super) fn seen(&self, at: Moment) {
        if let Some(memory) = &mut *self.memory() {
            memory.seen = memory.seen.max(at);
        }
    }

    fn memory(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that the server belongs to the same set as the client's other servers, and that
    /// it has that on record.
    async fn join(
        &self,
        connection: &mut MultiplexedConnection,
        server: &ServerInfo,
        mut set: Option<Set>,
    ) -> Result<Option<Set>, NodeError> {
        let id = server.run_id.as_deref().unwrap_or_default();
        loop {
            self.roster.enter(self.node, id, set.clone());
            let wanted = match self.roster.admit(self.node).await {
                Ok(Admission::Vote) => return Ok(set),
                Ok(Admission::Record(wanted)) => Some(wanted),
                // Another client is recording the set, under other names of its servers.
                Err(_) if set.is_none() && self.roster.is_first_contact() => None,
                Err(refused) => return Err(refused),
            };
            let (key, mut record) = (&self.keys.set, Pipeline::new());
            match wanted {
                // Another client may have been quicker.
                Some(wanted) => record.cmd("SET").arg(key).arg(wanted.to_text()).arg("NX"),
                None => {
                    self.clock.sleep(FIRST_CONTACT_PAUSE).await;
                    record.cmd("EXISTS").arg(key)
                }
            };
            record.cmd("GET").arg(key);
            let replies = exchange(connection, &record).await?;
            if let Some(Value::ServerError(error)) = replies.first() {
                return Err(server_error(error));
            }
            set = read_set(&replies)?;
        }
    }
}

impl Keys {
    pub(super) fn new(prefix: &[u8]) -> Self {
        Self {
            epoch: scoped(scripts::EPOCH_KEY, prefix),
            set: scoped(SET_KEY, prefix),
        }
    }
}

/// The record of a server's set in the reply to the last request; `None` if there is none.
pub(super) fn read_set(replies: &[Value]) -> Result<Option<Set>, NodeError> {
    let reply = replies.last().unwrap_or(&Value::Nil);
    let set = match reply {
        Value::Nil => return Ok(None),
        Value::ServerError(error) => return Err(server_error(error)),
        reply => bytes(reply).and_then(Set::parse),
    };
    set.map(Some).ok_or_else(|| {
        let why = format!("the record of its nodes: {}", glimpse(replies));
        NodeError::Protocol { why }
    })
}

/// How many requests [`probe`] adds.
const PROBE_REQUESTS: usize = identity::REQUESTS + 1;

/// Asks whether a server is who it was, with the memory that it had.
fn probe(pipeline: &mut Pipeline, keys: &Keys) {
    identity::ask(pipeline);
    pipeline.cmd("MGET").arg(&keys.epoch).arg(&keys.set);
}

/// Sends requests. Errors of the server are among the replies, apart from those of the way there.
pub(super) async fn exchange(
    connection: &mut MultiplexedConnection,
    pipeline: &Pipeline,
) -> Result<Vec<Value>, NodeError> {
    connection
        .send_packed_commands(pipeline, 0, pipeline.len())
        .await
        .map_err(|error| connection_error(&error))
}

impl Epoch {
    /// Reads the replies to a [`probe`]: an error if the server has another memory by now.
    fn check(&self, probed: &[Value]) -> Result<(), NodeError> {
        let (info, records) = probed.split_at(probed.len().saturating_sub(1));
        let server = ServerInfo::read(info)?;
        if server.is_replica {
            return Err(NodeError::ReadOnly);
        }
        let why = match records {
            [Value::ServerError(error)] => return Err(server_error(error)),
            _ if !server.identity.continues(&self.identity) => {
                "another server answers, or the same with another memory"
            }
            [Value::Array(records)] => match records.as_slice() {
                [epoch, _] if bytes(epoch) != Some(self.record.as_bytes()) => {
                    "the server has another epoch on record"
                }
                [_, set] if bytes(set).and_then(Set::parse) == self.set => return Ok(()),
                _ => "the server has another set of nodes on record",
            },
            _ => "its records could not be read",
        };
        let why = why.to_owned();
        Err(NodeError::Disconnected { why })
    }
}

impl Session {
    /// Shakes hands once more, when the server has forgotten its scripts or its epoch (FLUSHALL).
    pub(super) async fn renew(&mut self, connector: &Connector) -> Result<(), NodeError> {
        let verified = connector.clock.now();
        let (server, epoch) = connector.shake_hands(&mut self.connection).await?;
        if server.run_id != self.run_id {
            // Behind a proxy. Everything that was made for the other one (the subscription, the
            // place in the roster, the order of requests) is made anew with the connection.
            let why = "another server answers over the same connection".into();
            return Err(NodeError::Disconnected { why });
        }
        self.quarantine = connector.quarantine(&server, &epoch);
        self.epoch = epoch;
        self.verified = verified;
        Ok(())
    }

    /// A reply, with the command named where the server refused one without naming it.
    pub(super) fn explain(&self, value: Value) -> Value {
        self.epoch.scripts.name_refused(value)
    }

    /// Whether the node may still vote, after what the client has learnt about its other nodes.
    pub(super) fn is_admitted(&mut self, connector: &Connector) -> bool {
        let generation = connector.roster.generation();
        if generation != self.admitted_at {
            self.admitted_at = generation;
            return connector.roster.is_admitted(connector.node);
        }
        true
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
        let cap = cap(now_us, self.epoch.floor, &connector.constants);
        self.epoch.cap = self.epoch.cap.max(cap);
    }

    /// Whether the server may have forgotten since the call was first sent, and so does not
    /// recognise it: it does not vote yet, or grants no token of that time any more.
    pub(super) fn has_forgotten(&mut self, call: &Call, now: Moment) -> bool {
        let takes = !matches!(call.verb(), Verb::Release { .. });
        let claim = call.claim();
        let floor = claim.is_fenced() && claim.token() <= self.epoch.floor;
        takes && (floor || self.quarantined(call, now).is_some())
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
    ///
    /// If the server has not been asked for [a second](crate::node::VERIFY_AFTER) who it is, that is asked in the same
    /// write: `true`, and the last replies are for [`verify`](Self::verify). It comes at the end
    /// because a memory that was lost does not come back: what was executed before an unchanged
    /// identity was executed under it.
    pub(super) fn send(&mut self, units: &[Unit], now: Moment) -> (Sent, bool) {
        let Epoch { scripts, cap, .. } = &self.epoch;
        let mut pipeline = Pipeline::with_capacity(units.len() + PROBE_REQUESTS);
        for unit in units {
            let calls = unit.jobs().iter().map(|job| &job.call);
            let cmd = match unit {
                Unit::One(job) => scripts.one(job, *cap, &self.bells),
                Unit::Plain(job) => {
                    pipeline.add_command(scripts::look_for_line(&job.call));
                    scripts::set(&job.call)
                }
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
        let verifies = now >= self.verified + self.verify_after;
        if verifies {
            probe(&mut pipeline, &self.keys);
            // Whatever is sent before the reply is answered after it, or not at all.
            self.verified = now;
        }
        let (mut connection, count) = (self.connection.clone(), pipeline.len());
        // Unconstrained: the first poll must hand the requests over, or those of the next
        // batch would overtake them; it may not be put off because the task has done a lot.
        let sent = tokio::task::unconstrained(async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        });
        (Box::pin(sent), verifies)
    }

    /// Takes the replies to the questions that [`send`](Self::send) added off the end of
    /// `replies`. An error if the server has another memory by now: then none of them counts.
    pub(super) fn verify(&self, replies: &mut Vec<Value>) -> Result<(), NodeError> {
        let probed = replies.split_off(replies.len().saturating_sub(PROBE_REQUESTS));
        self.epoch.check(&probed)
    }
}
