//! Connections to a Redis server: the handshake, which finds the server's identity and epoch, and
//! requests and replies after it.
//!
//! What the handshake found need not hold for as long as the connection does. A role change
//! breaks no connection, and a proxy may keep one while the server behind it restarts. So a
//! session is verified again when it is used: see `probe`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::task::JoinSet;

use super::bells::{Bells, Subscription};
use super::connection::Connection;
use super::identity::{self, Identity, KnownBy, ServerInfo};
use super::reply::{self, bytes, glimpse, read_hello, server_error};
use super::roster::{Admission, Place, Roster};
use super::scripts::{self, KeyForm, Scripts};
use super::set::{SET_KEY, Set, scoped};
use super::target::{Pushes, Target};
use crate::base::clock::{Clock, Moment};
use crate::node::link::{Aftermath, Handshake, Memory, Native, Quarantine, Sent, Transport, Unit};
use crate::node::rules::Constants;
use crate::node::{NodeError, NodeSettings};

/// How often a server is looked at again on which another client may be recording its set.
const FIRST_CONTACT_PAUSE: Duration = Duration::from_millis(20);

/// Makes sessions with one server.
pub(super) struct Connector {
    target: Target,
    constants: Constants,
    assume_fresh: bool,
    timeout: Duration,
    clock: Clock,
    /// Which of the roster's nodes this is.
    node: usize,
    roster: Arc<Roster>,
    keys: Keys,
    bells: Arc<Bells>,
    memory: SharedMemory,
}

/// What is known of the server's memory.
#[derive(Default)]
pub(super) struct KnownMemory(Mutex<Option<Memory<KnownBy>>>);

pub(super) type SharedMemory = Arc<KnownMemory>;

impl KnownMemory {
    fn lock(&self) -> MutexGuard<'_, Option<Memory<KnownBy>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who the server was at the latest handshake.
    pub(super) fn identity(&self) -> Option<Identity> {
        let memory = self.lock();
        memory
            .as_ref()
            .map(|memory| memory.identity().identity.clone())
    }
}

/// The keys of what a server has on record for clients of one prefix.
pub(super) struct Keys {
    pub(super) epoch: Vec<u8>,
    pub(super) set: Vec<u8>,
}

/// A connection that has completed its handshake.
pub(super) struct Session {
    connection: Connection,
    run_id: Option<String>,
    /// The roster's generation at which the node was admitted.
    admitted_at: u64,
    epoch: Epoch,
    /// The server. With sentinels, they are asked whether it is still the master.
    target: Target,
    lookout: JoinSet<bool>,
    /// `None`: the server cannot notify waiters, which only poll.
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
    /// The server's clock.
    now_us: u64,
    /// By how much it was ahead of the client's wall clock.
    clock_offset_us: i64,
    native: Option<Native>,
}

impl Connector {
    pub(super) fn new(
        target: Target,
        settings: &NodeSettings,
        (node, roster): (usize, Arc<Roster>),
        bells: Arc<Bells>,
        memory: SharedMemory,
    ) -> Self {
        Self {
            node,
            keys: Keys::new(&settings.prefix),
            target,
            constants: settings.constants,
            assume_fresh: settings.assume_fresh,
            timeout: settings.connect_timeout,
            clock: settings.clock.clone(),
            roster,
            bells,
            memory,
        }
    }

    /// Subscribes to the notifications of waiters. Returns `false` if the server refuses, for
    /// example because the user lacks the permission.
    async fn subscribe(&self, connection: &Connection) -> Result<bool, NodeError> {
        let refused = connection.subscribe(&self.bells.channel()).await?;
        if let Some(Value::ServerError(error)) = &refused {
            let node = &*self.target.label;
            tracing::warn!(node, %error, "the server refuses SUBSCRIBE: waiters get no notifications, and poll");
        }
        Ok(refused.is_none())
    }

    /// Reads the server's identity and its epoch, and checks that the identity has not changed in
    /// between. Writes nothing to a server that this client must not use.
    async fn shake_hands(&self, connection: &Connection) -> Result<(ServerInfo, Epoch), NodeError> {
        let mut ask = Pipeline::new();
        identity::ask(&mut ask);
        ask.cmd("GET").arg(&self.keys.set);
        let replies = connection.exchange(&ask).await?;
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
        probe(&mut hello, &self.keys);
        let sent_us = self.clock.unix_us();
        let mut replies = connection.exchange(&hello).await?;
        let probed = replies.split_off(replies.len().saturating_sub(PROBE_REQUESTS));
        let mut replies = replies.into_iter();
        // The server read its clock between the two, most likely in the middle.
        let middle_us = sent_us.midpoint(self.clock.unix_us());
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
            now_us: hello.now_us,
            clock_offset_us: hello
                .now_us
                .cast_signed()
                .saturating_sub(middle_us.cast_signed()),
            native: server.native,
        };
        epoch.check(&probed)?;
        Ok((server, epoch))
    }

    /// What the link has to know of a handshake that began at `verified`.
    fn handshake(&self, verified: Moment, server: &ServerInfo, epoch: &Epoch) -> Handshake {
        Handshake {
            verified,
            floor: epoch.floor,
            now_us: epoch.now_us,
            clock_offset_us: epoch.clock_offset_us,
            skew_us: self.constants.skew_us(),
            native: epoch.native,
            quarantine: self.quarantine(server, epoch),
        }
    }

    /// Until when the server does not vote.
    fn quarantine(&self, server: &ServerInfo, epoch: &Epoch) -> Option<Quarantine> {
        let now = self.clock.now();
        let age = server.memory_age(epoch.age, self.target.follows_failovers());
        let known_by = KnownBy {
            identity: server.identity.clone(),
            record: epoch.record.clone(),
        };
        let memory = &mut *self.memory();
        let since = Memory::note(memory, known_by, age, now, KnownBy::continues);
        let guard = self.constants.restart_guard;
        let guard = guard.filter(|_| !self.assume_fresh && !epoch.fresh);
        Quarantine::new(since, guard, epoch.votes_in, now)
    }

    fn memory(&self) -> MutexGuard<'_, Option<Memory<KnownBy>>> {
        self.memory.lock()
    }

    /// Makes sure that the server belongs to the same set as the client's other servers, and that
    /// it has that on record.
    async fn join(
        &self,
        connection: &Connection,
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
            let replies = connection.exchange(&record).await?;
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
        let why = format!("the record of its nodes ({SET_KEY}): {}", glimpse(replies));
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

impl Session {
    /// Asks the sentinels, if there are any, whether the server is still the master.
    ///
    /// In a failover that an operator began, the old master goes on granting and renewing locks for
    /// about ten seconds after a replica was promoted: only then do the sentinels demote it. A restart
    /// guard may be over by then.
    fn look_out(&mut self) {
        if self.target.follows_failovers() && self.lookout.is_empty() {
            let target = self.target.clone();
            // If they do not agree, a failover may be under way: they are asked again with the next
            // verification.
            self.lookout
                .spawn(async move { target.is_replaced().await.unwrap_or(false) });
        }
    }

    /// Whether the sentinels have named another master.
    fn is_replaced(&mut self) -> bool {
        matches!(self.lookout.try_join_next(), Some(Ok(true)))
    }
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

impl Transport for Connector {
    type Connection = Session;
    type Replies = Vec<Value>;

    fn label(&self) -> &str {
        &self.target.label
    }

    async fn connect(&self) -> Result<(Session, Handshake), NodeError> {
        self.roster.begin();
        let admitted_at = self.roster.generation();
        // From here on, a failure is known to the client's other nodes.
        let place = self.roster.place(self.node);
        let work = async move {
            let timed_out = NodeError::Unreachable {
                why: "timed out".into(),
            };
            let opening = async {
                let target = self.target.found().await?;
                let opened = target.open_pushing(Arc::downgrade(&self.bells)).await?;
                Ok((target, opened))
            };
            let (target, (connection, pushes)) = tokio::time::timeout(self.timeout, opening)
                .await
                .map_err(|_| timed_out)??;
            let verified = self.clock.now();
            let (server, epoch) = match self.shake_hands(&connection).await {
                // The server lost its memory during the handshake.
                Err(NodeError::Disconnected { .. }) => self.shake_hands(&connection).await?,
                greeted => greeted?,
            };
            let subscribed = pushes == Pushes::Possible && self.subscribe(&connection).await?;
            let handshake = self.handshake(verified, &server, &epoch);
            let session = Session {
                connection,
                run_id: server.run_id,
                admitted_at,
                epoch,
                target,
                lookout: JoinSet::new(),
                _subscription: subscribed.then(|| Subscription::new(&self.bells)),
                _place: place,
            };
            Ok((session, handshake))
        };
        tokio::time::timeout(self.timeout, work)
            .await
            .unwrap_or_else(|_| {
                let why = format!("it did not shake hands within {:?}", self.timeout);
                Err(NodeError::Unreachable { why })
            })
    }

    async fn renew(&self, session: &mut Session) -> Result<Handshake, NodeError> {
        let verified = self.clock.now();
        let (server, epoch) = self.shake_hands(&session.connection).await?;
        if server.run_id != session.run_id {
            // Behind a proxy. Everything that was made for the other one (the subscription, the
            // place in the roster, the order of requests) is made anew with the connection.
            let why = "another server answers over the same connection".into();
            return Err(NodeError::Disconnected { why });
        }
        let handshake = self.handshake(verified, &server, &epoch);
        session.epoch = epoch;
        Ok(handshake)
    }

    fn is_admitted(&self, session: &mut Session) -> bool {
        if session.is_replaced() {
            return false;
        }
        let generation = self.roster.generation();
        if generation != session.admitted_at {
            session.admitted_at = generation;
            return self.roster.is_admitted(self.node);
        }
        true
    }

    fn send(
        &self,
        session: &mut Session,
        units: &[Unit],
        cap: u64,
        verify: Option<Moment>,
    ) -> Sent<Vec<Value>> {
        if verify.is_some() {
            session.look_out();
        }
        let scripts = &session.epoch.scripts;
        Box::pin(session.connection.send(|output| {
            let mut count = 0;
            for unit in units {
                let calls = unit.jobs().iter().map(|job| &job.call);
                count += unit.requests();
                let request = match unit {
                    Unit::One(job) => scripts.one(job, cap, &self.bells, output),
                    Unit::Plain(job) => {
                        scripts::look_for_line(&job.call, output).end();
                        scripts::set(&job.call, output)
                    }
                    Unit::Native(job, native) => {
                        scripts::delete(&job.call, *native, output).end();
                        scripts::look_for_line(&job.call, output)
                    }
                    Unit::AcquireMany(_) => scripts.acquire_many(calls, output),
                    Unit::ExtendMany(_) => scripts.extend_many(calls, output),
                    Unit::DeleteMany(_) => scripts.delete_many(calls, output),
                };
                request.end();
            }
            if verify.is_some() {
                let mut pipeline = Pipeline::new();
                probe(&mut pipeline, &self.keys);
                for cmd in pipeline.cmd_iter() {
                    cmd.write_packed_command(output);
                    count += 1;
                }
            }
            count
        }))
    }

    fn poll(&self, session: &mut Session, cx: &mut Context<'_>) {
        session.connection.poll(cx);
    }

    fn check(
        &self,
        session: &Session,
        units: &[Unit],
        replies: &mut Vec<Value>,
        verified: Option<Moment>,
    ) -> Result<(), NodeError> {
        if let Some(asked) = verified {
            let probed = replies.split_off(replies.len().saturating_sub(PROBE_REQUESTS));
            session.epoch.check(&probed)?;
            if let Some(memory) = &mut *self.memory() {
                memory.seen(asked);
            }
        }
        let sent: usize = units.iter().map(Unit::requests).sum();
        match replies.len() == sent {
            true => Ok(()),
            false => {
                let why = format!("{} replies to {sent} requests", replies.len());
                Err(NodeError::Protocol { why })
            }
        }
    }

    fn read(
        &self,
        session: &Session,
        units: Vec<Unit>,
        replies: Vec<Value>,
        after: &mut Aftermath,
    ) {
        let mut values = replies.into_iter();
        for unit in units {
            let value = values.next().unwrap_or(Value::Nil);
            let value = session.epoch.scripts.name_refused(value);
            let next = (unit.requests() > 1).then(|| values.next()).flatten();
            reply::answer(unit, value, next.as_ref(), after);
        }
    }
}
