//! Compares the scripts with the rules: the same requests in the same order, on a real server and on
//! the in-memory node (which calls the rules), must get the same answers and leave the same locks.

mod permits;

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, UNIX_EPOCH};

use leasehold_testkit::{FrozenClock, RedisServer};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::scripts::TURN_MARK;
use super::{RedisNode, Roster, Target};
use crate::base::clock::{Clock, Moment, TimeSource};
use crate::base::holder::{Holder, kept_result};
use crate::base::name::Name;
use crate::node::memory::MemoryNode;
use crate::node::rules::Constants;
use crate::node::{
    ANNOUNCED_TO, Call, Claim, DEAD_AFTER, HANDED_OVER, LINE_KEPT, Mode, Node, NodeError,
    ORDER_KNOWN_AFTER, Sighting, TURN, Tally, Verb, Vote,
};
use crate::node::{NodeSettings, VERIFY_AFTER};
use crate::observe::Sight;

/// One request. Tokens are counted from the node's floor, because each node has its own.
#[derive(Clone, Copy, Debug)]
struct Step {
    verb: Verb,
    mode: Mode,
    name: u8,
    owner: u8,
    /// The owner of the exclusive claim with the same token that a shared one replaces.
    replaces: Option<u8>,
    above_floor: i64,
    /// No other node votes on the claim.
    alone: bool,
    /// It has no token.
    plain: bool,
    /// A release that keeps the name leaves a result there.
    result: bool,
    ttl: Duration,
    /// How long passes before it, on both nodes.
    after: Duration,
}

/// Shorter than a turn, shorter than a hand-over, the default, and longer than all of these
/// and than every other time by which a node decides.
///
/// The longest is not an hour, because a run must end within [`RUN_LIMIT`].
const TTLS: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_millis(1500),
    Duration::from_secs(10),
    Duration::from_secs(25),
];

/// How much time may pass on the nodes during one test. Tokens are counted from the floor. A missing
/// fence reads as `now − F`, with F = 24 h: once that is above the floor, every token is stale, and
/// the nodes agree about nothing else. A random run passes less than a third of this.
const RUN_LIMIT: Duration = Duration::from_secs(20 * 3600);

/// Time passes in steps of this many ms. No time limit of a node is a multiple of it, because a key
/// of a Redis server still exists during the millisecond in which it expires, and a lock of the
/// rules does not.
const TICK_MS: u64 = 7;

/// Mostly zero, or slightly less or more than a time limit of a node.
fn pauses() -> impl Strategy<Value = Duration> {
    let limits = [ORDER_KNOWN_AFTER, TURN, HANDED_OVER, DEAD_AFTER, LINE_KEPT];
    let ticks = limits
        .into_iter()
        .chain(TTLS)
        .map(|limit| limit.as_millis() as u64 / TICK_MS);
    let close: Vec<_> = ticks
        .flat_map(|n| [n * TICK_MS, (n + 1) * TICK_MS])
        .collect();
    prop_oneof![
        6 => Just(Duration::ZERO),
        1 => Just(Duration::from_millis(128 * TICK_MS)),
        3 => prop::sample::select(close).prop_map(Duration::from_millis),
    ]
}

/// Whether the claim is on one node or on several does not change.
fn is_alone(owner: u8) -> bool {
    owner % 2 == 1
}

fn steps(modes: BoxedStrategy<Mode>) -> impl Strategy<Value = Vec<Step>> {
    let hour = Some(Duration::from_secs(3600));
    let verb = prop_oneof![
        4 => Just(Verb::Acquire),
        4 => Just(Verb::Wait),
        2 => Just(Verb::Extend),
        3 => Just(Verb::Release { keep: None }),
        1 => Just(Verb::Release { keep: hour }),
    ];
    let above_floor = prop_oneof![
        8 => 1..12i64,
        // Not above the floor.
        1 => -2..1i64,
        1 => Just(-20_000_000_000i64),
        // Further ahead than the skew.
        1 => Just(3_600_000_000i64),
    ];
    let ttl = prop::sample::select(&TTLS[..]);
    let who = (0..2u8, 0..4u8, prop::option::of(0..4u8));
    let kind = (0..5u8, any::<bool>());
    let step = (verb, modes, who, above_floor, kind, ttl, pauses()).prop_map(|step| {
        let (verb, mode, who, above_floor, (plain, result), ttl, after) = step;
        let (name, owner, replaces) = who;
        let shared = mode == Mode::Shared;
        Step {
            verb,
            mode,
            name,
            owner,
            replaces: replaces.filter(|_| shared && verb == Verb::Extend),
            above_floor,
            alone: is_alone(owner),
            plain: plain == 0 && !shared,
            result: result && !shared,
            ttl,
            after,
        }
    });
    prop::collection::vec(step, 1..40)
}

/// Exclusive claims only, as before there were readers.
fn writers() -> BoxedStrategy<Mode> {
    Just(Mode::Exclusive).boxed()
}

/// Readers and writers.
fn both_modes() -> BoxedStrategy<Mode> {
    prop_oneof![1 => Just(Mode::Exclusive), 2 => Just(Mode::Shared)].boxed()
}

/// Sends the answer to a channel.
struct Answers(mpsc::Sender<Result<Vote, NodeError>>);

impl Tally for Answers {
    fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
        // After a failure the receiver is gone.
        let _ = self.0.send(answer);
    }
}

fn ask(node: &dyn Node, step: Step, prefix: impl Display, floor: u64) -> Result<Vote, NodeError> {
    let (call, answer) = call(step, claim(step, prefix, floor));
    node.submit(call);
    answer.recv().expect("every call is answered")
}

/// The key of a lock. Every third has a hash tag, unless the prefix has one: a script cannot derive the
/// key of its fence.
fn key(prefix: impl Display, name: u8) -> String {
    let prefix = prefix.to_string();
    match name % 3 == 1 && !prefix.contains('{') {
        true => format!("{{{prefix}}}-{name}"),
        false => format!("{prefix}-{name}"),
    }
}

fn claim(step: Step, prefix: impl Display, floor: u64) -> Claim {
    let token = match step.plain {
        false => floor.saturating_add_signed(step.above_floor),
        true => 0,
    };
    let name = Name::new(key(prefix, step.name)).expect("a name");
    let owner = owner_value(step, step.owner, step.mode, token);
    let claim = Claim::new(name, &*owner, token, step.ttl).on_one_node(step.alone);
    if step.result {
        let result = format!("result of\n{}", step.owner);
        claim.leave_behind(kept_result(&owner, token, UNIX_EPOCH, result.as_bytes()));
    }
    match step.replaces {
        // Its token is below that of the shared claim, as in a block.
        Some(owner) => claim.replacing(owner_value(step, owner, Mode::Exclusive, token - 1)),
        None => claim,
    }
}

/// Like a real one: the first 40 characters are the secret, and it contains the token and the mode.
fn owner_value(step: Step, owner: u8, mode: Mode, token: u64) -> Vec<u8> {
    let shared = if mode == Mode::Shared { "s" } else { "" };
    let above_floor = match mode == step.mode {
        true => step.above_floor,
        false => step.above_floor - 1,
    };
    format!("{owner:040}:{token}{shared}:1@host:{above_floor}").into_bytes()
}

fn call(step: Step, claim: Claim) -> (Call, mpsc::Receiver<Result<Vote, NodeError>>) {
    let (sender, receiver) = mpsc::channel();
    let timeout = Duration::from_secs(30);
    let tally = Arc::new(Answers(sender));
    let call = Call::new(step.verb, Arc::new(claim), timeout, tally, 0);
    (call, receiver)
}

/// Describes an answer without what depends on the clock.
fn relative(answer: Result<Vote, NodeError>, floor: u64) -> String {
    describe(answer, |fence| fence.wrapping_sub(floor) as i64)
}

/// The same, without what a release may or may not do if all tokens are even: raise the fence by
/// one.
fn roughly(answer: Result<Vote, NodeError>, floor: u64) -> String {
    describe(answer, |fence| {
        (fence.wrapping_sub(floor) as i64).div_euclid(2)
    })
}

fn describe(answer: Result<Vote, NodeError>, above: impl Fn(u64) -> i64) -> String {
    match answer.expect("both nodes work") {
        Vote::Held {
            holder,
            fence,
            place,
            remaining,
            ..
        } => {
            let label = holder.label.unwrap_or_default();
            let (fence, left) = (above(fence), (holder.kept, holder.result));
            let left = left
                .1
                .map(|result| result.bytes)
                .or(left.0.then(Arc::default));
            format!(
                "held by {label} with {left:?} for {remaining:?}, fence {fence}, place {place:?}"
            )
        }
        Vote::Stale { fence, .. } => format!("stale, fence {}", above(fence)),
        Vote::Ahead { fence, .. } => format!("ahead, fence {}", above(fence)),
        Vote::Lost { fence } => format!("lost, fence {}", above(fence)),
        other => format!("{other:?}"),
    }
}

/// A server and a memory node, with their floors. Both clocks stand still, and are stepped
/// together, so what the nodes do does not depend on how fast the machine is.
struct Pair {
    server_clock: FrozenClock,
    clock: Still,
    server: RedisServer,
    runtime: tokio::runtime::Runtime,
    redis: Arc<RedisNode>,
    memory: MemoryNode,
    floors: (u64, u64),
    round: Cell<u64>,
    /// The prefix of names.
    tag: &'static str,
}

const WARM: Step = Step {
    verb: Verb::Release { keep: None },
    mode: Mode::Exclusive,
    name: 0,
    owner: 0,
    replaces: None,
    above_floor: 1,
    alone: false,
    plain: false,
    result: false,
    ttl: TTLS[3],
    after: Duration::ZERO,
};

/// When the clocks of both nodes begin, in ms since 1970.
const START_MS: u64 = 1_800_000_000_000;

/// A wall clock that is read one second early, then one second late, and later and later.
struct Late(AtomicU64);

impl TimeSource for Late {
    fn now(&self) -> Moment {
        Moment::now()
    }

    fn unix_us(&self) -> u64 {
        let reads = self.0.fetch_add(1, Ordering::Relaxed);
        START_MS * 1000 + 2_000_000 * reads - 1_000_000
    }
}

/// The middle of the exchange that reads the server's clock counts: later ones of the handshake, and
/// the time that they take, do not.
#[test]
fn the_clock_offset_is_measured_within_one_exchange() {
    let (server, _clock) = RedisServer::start_frozen(START_MS * 1000, &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _runtime = runtime.enter();
    let clock = Clock::from_source(Arc::new(Late(AtomicU64::new(0))));
    let settings = settings("", clock);
    let redis = start(&server, &settings);
    ask(&*redis, WARM, "a", 0).expect("connected");
    let nodes = [redis as Arc<dyn Node>];
    let stats = settings.sight.stats(&nodes);
    assert_eq!(stats.nodes[0].clock_offset_us, Some(0));
}

/// The memory node's clock, which stands still until it is set.
#[derive(Clone)]
struct Still(Arc<AtomicU64>);

impl TimeSource for Still {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_millis(self.0.load(Ordering::SeqCst)))
    }

    fn unix_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst) * 1000
    }
}

/// The settings of a client with one node.
fn settings(prefix: &str, clock: Clock) -> NodeSettings {
    NodeSettings {
        constants: Constants::for_nodes(1),
        assume_fresh: true,
        prefix: prefix.into(),
        connect_timeout: Duration::from_secs(10),
        verify_after: VERIFY_AFTER,
        sight: Arc::new(Sight::new(clock.clone(), 1, Vec::new(), None)),
        clock,
        seed: 1,
        tls: crate::node::Tls::default(),
        replicas: None,
    }
}

/// Starts the node of such a client.
fn start(server: &RedisServer, settings: &NodeSettings) -> Arc<RedisNode> {
    let target = Target::parse(&server.url(), settings).unwrap();
    let roster = Roster::new(vec!["a".into()], 1, settings.clock.clone());
    let watch = settings.sight.watch_node(0);
    let node = RedisNode::start(target, settings, Arc::new(roster), 0, watch);
    Arc::new(node)
}

impl Pair {
    fn start() -> Self {
        Self::start_on(&[], "")
    }

    /// On a node of a Redis Cluster that has all slots. There all keys of a request must be in one
    /// slot, the epoch record too, so the prefix is a hash tag.
    fn start_on_cluster() -> Self {
        Self::start_on(&["--cluster-enabled", "yes"], "{t}")
    }

    fn start_on(args: &[&str], tag: &'static str) -> Self {
        let before_us = (START_MS - 60_000) * 1000;
        let (server, server_clock) = RedisServer::start_frozen(before_us, args);
        if !args.is_empty() {
            let slots: [&[u8]; 4] = [b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"];
            assert_eq!(server.command(&slots), "+OK\r\n");
            let is_ok = || {
                let info = server.command(&[b"CLUSTER", b"INFO"]);
                info.contains("cluster_state:ok")
            };
            // It takes a node some seconds, by its clock, to find that its cluster is complete.
            let mut steps = (1..50).map(|step| before_us + step * 1_000_000);
            while !is_ok() {
                server_clock.set(steps.next().expect("the cluster works within 50 s"));
                std::thread::sleep(Duration::from_millis(120));
            }
        }
        server_clock.set(START_MS * 1000);
        let clock = Still(Arc::new(AtomicU64::new(START_MS)));
        // One thread: what is submitted by one task arrives together.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let redis = {
            let _runtime = runtime.enter();
            start(&server, &settings(tag, Clock::default()))
        };
        let memory = MemoryNode::with_time_source("memory", Arc::new(clock.clone()));
        ask(&*redis, WARM, format!("{tag}0"), 0).expect("connected");
        let floors = (redis.floor(), memory.floor());
        assert_eq!(floors.0, floors.1);
        let pair = Self {
            server_clock,
            clock,
            server,
            runtime,
            redis,
            memory,
            floors,
            round: Cell::new(0),
            tag,
        };
        // Tokens just above the floor are allowed from the moment after it was set.
        pair.pass(Duration::from_millis(TICK_MS));
        pair
    }

    /// Time passes on both nodes.
    fn pass(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).expect("short");
        let now = self.clock.0.fetch_add(ms, Ordering::SeqCst) + ms;
        self.server_clock.set(now * 1000);
    }

    /// How much time has passed on both nodes.
    fn passed(&self) -> Duration {
        Duration::from_millis(self.clock.0.load(Ordering::SeqCst) - START_MS)
    }

    /// Compares the nodes by what `test` does, with names of its own each time.
    fn compare<S: Strategy>(
        &self,
        cases: u32,
        strategy: &S,
        test: impl Fn(S::Value) -> Result<(), TestCaseError>,
    ) {
        let mut runner = TestRunner::new(Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(strategy, |steps| {
            assert!(self.passed() < RUN_LIMIT, "all tokens would be stale");
            self.round.set(self.round.get() + 1);
            test(steps)
        });
        outcome.unwrap();
    }

    /// The prefix of the names of this round.
    fn prefix(&self) -> String {
        format!("{}{}", self.tag, self.round.get())
    }

    /// Sends the same request to both nodes, and checks that they answer the same. Returns the
    /// answer.
    fn both(&self, step: Step) -> Result<String, TestCaseError> {
        self.pass(step.after);
        let prefix = self.prefix();
        let theirs = ask(&*self.redis, step, &prefix, self.floors.0);
        let theirs = relative(theirs, self.floors.0);
        let ours = ask(&self.memory, step, &prefix, self.floors.1);
        let ours = relative(ours, self.floors.1);
        prop_assert_eq!(&theirs, &ours, "{:?}", step);
        Ok(ours)
    }

    /// Compares the nodes by random requests.
    fn obey_the_rules(&self, cases: u32, modes: BoxedStrategy<Mode>) {
        let (asked, granted) = (Cell::new(0), Cell::new(0));
        self.compare(cases, &steps(modes), |steps| {
            for (index, step) in steps.iter().enumerate() {
                let failed = |why| format!("step {index} of {steps:?}: {why}");
                let answer = self.both(*step);
                let answer = answer.map_err(|why| TestCaseError::fail(failed(why)))?;
                asked.set(asked.get() + 1);
                granted.set(granted.get() + usize::from(answer == format!("{:?}", Vote::Granted)));
            }
            self.same_locks(2)
        });
        // The requests were not just refused, which any two nodes would agree on.
        assert!(
            granted.get() > asked.get() / 10,
            "{} of {} requests were granted",
            granted.get(),
            asked.get()
        );
    }

    /// The labels of the holders on the server, and when they expire, as a client would see them.
    fn readers(&self, key: &str) -> Vec<(Option<String>, Option<Duration>)> {
        let name = Name::new(key).expect("a name");
        let seen = self.runtime.block_on(self.redis.survey(Some(&name)));
        holders(seen.expect("the server works"))
    }

    fn readers_in_memory(&self, key: &str) -> Vec<(Option<String>, Option<Duration>)> {
        let name = Name::new(key).expect("a name");
        let seen = self.runtime.block_on(self.memory.survey(Some(&name)));
        holders(seen.expect("it never fails"))
    }

    /// Checks that both nodes have the same locks.
    fn same_locks(&self, names: u8) -> Result<(), TestCaseError> {
        for name in 0..names {
            let key = key(self.prefix(), name);
            let value = self.memory.get(&Name::new(&key).expect("a name"));
            let label = |value: Vec<u8>| {
                let holder = Holder::parse(&value);
                (holder.label, holder.kept, holder.result)
            };
            let theirs = self.server.get(key.as_bytes());
            let theirs = theirs.filter(|value| value != TURN_MARK.as_bytes());
            prop_assert_eq!(theirs.map(label), value.map(label));
            prop_assert_eq!(self.readers(&key), self.readers_in_memory(&key));
        }
        Ok(())
    }
}

fn holders(seen: Vec<Sighting>) -> Vec<(Option<String>, Option<Duration>)> {
    let mut holders: Vec<_> = seen
        .into_iter()
        .map(|seen| (seen.holder.label, seen.remaining))
        .collect();
    holders.sort();
    holders
}

#[test]
fn the_scripts_obey_the_rules() {
    let pair = Pair::start();
    let (redis, floors) = (&*pair.redis, pair.floors);

    // A fence from before the node forgot, as an old snapshot has it: the floor counts, in
    // the common case too.
    let digits = (floors.0 - 100).to_string();
    let set = [&b"SET"[..], b"leasehold:fence:{0-0}", digits.as_bytes()];
    assert_eq!(pair.server.command(&set), "+OK\r\n");
    let below_floor = Step {
        verb: Verb::Acquire,
        above_floor: -50,
        ..WARM
    };
    let vote = ask(redis, below_floor, 0, floors.0).expect("a vote");
    assert!(matches!(vote, Vote::Stale { .. }), "{vote:?}");

    pair.obey_the_rules(800, writers());
}

#[test]
fn the_scripts_of_readers_obey_the_rules() {
    Pair::start().obey_the_rules(800, both_modes());
}

/// The same where requests declare all keys of their scripts.
#[test]
fn the_scripts_obey_the_rules_on_a_cluster() {
    let pair = Pair::start_on_cluster();
    pair.obey_the_rules(200, writers());
    pair.obey_the_rules(200, both_modes());
}

/// A day after the start, the floor no longer decides: a missing fence reads as `now − F`, and moves
/// on with the node's clock.
#[test]
fn the_scripts_read_a_missing_fence_as_a_day_ago() {
    let pair = Pair::start();
    let constants = Constants::for_nodes(1);
    let later = constants.fence_retention + Duration::from_secs(3600);
    pair.pass(later);
    let unix_us = START_MS * 1000 + u64::try_from(pair.passed().as_micros()).expect("short");
    let day_ago = unix_us - constants.retention_us();
    assert!(day_ago > pair.floors.0);
    let above_floor = i64::try_from(day_ago - pair.floors.0).expect("small");
    for verb in [Verb::Acquire, Verb::Wait, Verb::Extend, WARM.verb] {
        for difference in [-1, 0, 1] {
            pair.round.set(pair.round.get() + 1);
            let step = Step {
                verb,
                above_floor: above_floor + difference,
                ..WARM
            };
            let answer = pair.both(step).expect("the same answers");
            if verb == Verb::Acquire {
                assert_eq!(answer == "Granted", difference == 1, "{answer}");
            }
        }
    }
}

const OWNERS: u8 = 8;

/// A few claims of one name that stand in line and are handed the lock, again and again; and whether
/// their releases are plain deletes where that is allowed.
fn lines(mode_of: fn(u8) -> Mode) -> impl Strategy<Value = (bool, Vec<(Step, bool)>)> {
    let verb = prop_oneof![
        1 => Just(Verb::Acquire),
        6 => Just(Verb::Wait),
        1 => Just(Verb::Extend),
        3 => Just(WARM.verb),
    ];
    let step = (verb, 0..OWNERS, any::<bool>(), pauses());
    let step = step.prop_map(move |(verb, owner, nothing_in_flight, after)| {
        let step = Step {
            verb,
            mode: mode_of(owner),
            owner,
            after,
            ttl: TTLS[2],
            above_floor: 2 + i64::from(owner) * 2,
            ..WARM
        };
        (step, nothing_in_flight)
    });
    (any::<bool>(), prop::collection::vec(step, 1..60))
}

#[test]
fn the_scripts_obey_the_rules_in_a_line() {
    obey_the_rules_in_a_line(|_| Mode::Exclusive);
}

/// Three readers, and a writer between them and the next three.
#[test]
fn the_scripts_of_readers_obey_the_rules_in_a_line() {
    obey_the_rules_in_a_line(|owner| match owner % 4 {
        3 => Mode::Exclusive,
        _ => Mode::Shared,
    });
}

fn obey_the_rules_in_a_line(mode_of: fn(u8) -> Mode) {
    let pair = Pair::start();
    pair.compare(500, &lines(mode_of), |(alone, steps)| {
        let round = pair.round.get();
        let (mut granted, mut over) = ([false; OWNERS as usize], [false; OWNERS as usize]);
        for (index, &(step, nothing_in_flight)) in steps.iter().enumerate() {
            let step = Step { alone, ..step };
            let owner = usize::from(step.owner);
            if over[owner] {
                continue;
            }
            // Nothing of a claim comes after a plain delete.
            over[owner] = nothing_in_flight && granted[owner] && step.verb == WARM.verb;
            pair.pass(step.after);
            let (call, answer) = call(step, claim(step, round, pair.floors.0));
            pair.redis.submit(call.with_nothing_in_flight(over[owner]));
            let theirs = roughly(answer.recv().expect("an answer"), pair.floors.0);
            let ours = roughly(ask(&pair.memory, step, round, pair.floors.1), pair.floors.1);
            granted[owner] = ours == format!("{:?}", Vote::Granted);
            prop_assert_eq!(theirs, ours, "step {} of {:?}", index, steps);
        }
        pair.same_locks(1)
    });
}

/// A ticket that is not above the fence or the floor is granted nothing. A claim can overtake it
/// without waiting in line: an EXTEND that joins its lease on this node.
#[test]
fn a_ticket_that_was_overtaken_is_granted_nothing() {
    let pair = Pair::start();
    let (server, floor) = (&pair.server, pair.floors.0);
    let step = |verb, above_floor| Step {
        verb,
        above_floor,
        alone: true,
        ..WARM
    };
    for (prefix, nothing_in_flight) in [(1, true), (2, false)] {
        let ask = |step| ask(&*pair.redis, step, prefix, floor).expect("a vote");
        let release = |above_floor| {
            let step = step(WARM.verb, above_floor);
            let (call, answer) = call(step, claim(step, prefix, floor));
            pair.redis
                .submit(call.with_nothing_in_flight(nothing_in_flight));
            let vote = answer.recv().expect("an answer").expect("a vote");
            assert_eq!(vote, Vote::Released { held: true });
        };
        let (lock, fence) = (
            format!("{prefix}-0"),
            format!("leasehold:fence:{{{prefix}-0}}"),
        );
        assert_eq!(ask(step(Verb::Acquire, 2)), Vote::Granted);
        let vote = ask(step(Verb::Wait, 4));
        assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
        assert_eq!(server.command(&[b"DEL", lock.as_bytes()]), ":1\r\n");
        assert_eq!(ask(step(Verb::Extend, 6)), Vote::Granted);
        release(6);
        assert_eq!(server.get(lock.as_bytes()), None, "handed to an old ticket");

        // A release that raises the fence burns the next token.
        if !nothing_in_flight {
            assert_eq!(ask(step(Verb::Acquire, 8)), Vote::Granted);
            let vote = ask(step(Verb::Wait, 9));
            assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
            release(8);
            assert_eq!(
                server.get(lock.as_bytes()),
                None,
                "handed to a burnt ticket"
            );
        }

        // As after a restart from an old snapshot: all of it is from before the floor.
        let set = |key: &str, value: &[u8]| {
            assert_eq!(server.command(&[b"SET", key.as_bytes(), value]), "+OK\r\n");
        };
        let owner = |above_floor| {
            let step = step(WARM.verb, above_floor);
            claim(step, prefix, floor).owner().to_vec()
        };
        set(&lock, &owner(-90));
        set(&fence, format!("{}+", floor - 90).as_bytes());
        for (kind, command) in [("line", &b"ZADD"[..]), ("seen", b"ZADD"), ("bell", b"HSET")] {
            let key = format!("leasehold:{kind}:{{{prefix}-0}}");
            let score = match kind {
                "line" => floor - 80,
                _ => floor + 3_600_000_000,
            };
            let (score, waiter) = (score.to_string(), owner(-80));
            let args: [&[u8]; 2] = match kind {
                "bell" => [&waiter, b"0:"],
                _ => [score.as_bytes(), &waiter],
            };
            let added = server.command(&[command, key.as_bytes(), args[0], args[1]]);
            assert_eq!(added, ":1\r\n");
        }
        release(-90);
        assert_eq!(server.get(lock.as_bytes()), None, "handed to an old ticket");
    }
}

/// Everything that a server executes, as MONITOR shows it: who asked for it, and its words.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("connected");
        stream.write_all(b"MONITOR\r\n").expect("sent");
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// The next command: whether a script executed it, and its words.
    fn command(&mut self) -> (bool, Vec<String>) {
        let line = self.line();
        let (who, words) = line.split_once("] ").expect("who, and what");
        let words = words.trim_matches('"').split("\" \"");
        (who.ends_with(" lua"), words.map(str::to_owned).collect())
    }
}

/// The keys among the words of a command that the scripts use.
fn keys_of(words: &[String]) -> &[String] {
    match &*words[0] {
        "TIME" | "PUBLISH" => &[],
        "MGET" | "DEL" => &words[1..],
        _ => &words[1..2],
    }
}

/// Redis Cluster, and managed and compatible servers, refuse scripts that touch other keys.
#[test]
fn no_script_touches_a_key_that_its_request_does_not_declare() {
    let pair = Pair::start_on_cluster();
    let mut monitor = Monitor::start(&pair.server);
    let watching = std::thread::spawn(move || {
        let (mut declared, mut scripts, mut commands) = (Vec::new(), HashSet::new(), 0);
        loop {
            let (by_script, words) = monitor.command();
            match &*words[0].to_lowercase() {
                _ if by_script => {
                    commands += 1;
                    let undeclared = keys_of(&words).iter().find(|key| !declared.contains(*key));
                    assert_eq!(undeclared, None, "{words:?} of {declared:?}");
                }
                "evalsha" | "eval" => {
                    let count: usize = words[2].parse().expect("a number");
                    declared = words[3..3 + count].to_vec();
                    scripts.insert(words[1].clone());
                }
                "echo" => return (scripts.len(), commands),
                _ => {}
            }
        }
    });
    pair.obey_the_rules(100, writers());
    pair.obey_the_rules(100, both_modes());
    assert_eq!(pair.server.command(&[b"ECHO", b"done"]), "$4\r\ndone\r\n");
    let (scripts, commands) = watching.join().expect("no undeclared key");
    // ACQUIRE, WAIT, EXTEND, two kinds of RELEASE, locks without a token, and readers: WAIT, and all
    // else.
    assert!(scripts >= 8, "{scripts} scripts");
    assert!(commands > 1000, "{commands} commands of scripts");
}

/// The first in line joined so recently that it is only notified. Until its ACQUIRE arrives, the key
/// must not look free to a client that does not know about the line.
#[test]
fn another_library_does_not_overtake_the_first_in_line() {
    let pair = Pair::start();
    let ask = |verb, owner, after| {
        let step = Step {
            verb,
            owner,
            above_floor: 2 + i64::from(owner) * 2,
            ..WARM
        };
        pair.pass(after);
        ask(&*pair.redis, step, 0, pair.floors.0).expect("a vote")
    };
    let foreign = || {
        let set = [&b"SET"[..], b"0-0", b"foreign", b"NX", b"PX", b"60000"];
        pair.server.command(&set)
    };
    let (none, a_moment) = (Duration::ZERO, Duration::from_millis(1));
    assert_eq!(ask(Verb::Acquire, 0, none), Vote::Granted);
    let vote = ask(Verb::Wait, 1, none);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    ask(WARM.verb, 0, a_moment);
    assert_eq!(
        foreign(),
        "$-1\r\n",
        "the other library overtook the waiter"
    );
    // A later claim of leasehold does not overtake it either.
    let vote = ask(Verb::Acquire, 2, a_moment);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    assert_eq!(ask(Verb::Wait, 1, none), Vote::YourTurn);
    assert_eq!(ask(Verb::Acquire, 1, none), Vote::Granted);
    // The mark is removed together with the line.
    ask(WARM.verb, 1, none);
    assert_eq!(ask(Verb::Wait, 3, none), Vote::YourTurn);
    ask(WARM.verb, 3, none);
    assert_eq!(foreign(), "+OK\r\n");
}

/// A version without readers drops W when it finds a line empty, and may hand the lock to a reader in
/// line as if it were exclusive. Leases of readers end then. Nothing is granted twice.
#[test]
fn an_older_version_ends_leases_of_readers_and_breaks_nothing() {
    let pair = Pair::start();
    let step = |verb, mode, above_floor| Step {
        verb,
        mode,
        above_floor,
        ..WARM
    };
    let ask = |step| ask(&*pair.redis, step, 0, pair.floors.0).expect("a vote");
    assert_eq!(ask(step(Verb::Acquire, Mode::Shared, 4)), Vote::Granted);
    assert_eq!(ask(step(Verb::Acquire, Mode::Shared, 2)), Vote::Granted);
    let fence = "leasehold:fence:{0-0}";
    let text = pair.server.get(fence.as_bytes()).expect("a fence");
    let text = String::from_utf8(text).expect("digits");
    let (highest, _) = text.split_once('/').expect("two numbers");
    assert_eq!(highest, (pair.floors.0 + 4).to_string());
    // An older version sees a lock of another owner, and F.
    let marker = pair.server.get(b"0-0").expect("a marker");
    assert!(marker.starts_with(b"shared:"), "{}", marker.escape_ascii());
    let set = [&b"SET"[..], fence.as_bytes(), highest.as_bytes()];
    assert_eq!(pair.server.command(&set), "+OK\r\n");
    for above_floor in [2, 4] {
        let vote = ask(step(Verb::Extend, Mode::Shared, above_floor));
        assert!(matches!(vote, Vote::Lost { .. }), "{vote:?}");
    }
    let vote = ask(step(Verb::Acquire, Mode::Exclusive, 6));
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    for above_floor in [2, 4] {
        let vote = ask(step(WARM.verb, Mode::Shared, above_floor));
        assert_eq!(vote, Vote::Released { held: true });
    }
    let reader = claim(step(WARM.verb, Mode::Shared, 8), 0, pair.floors.0);
    let set = [&b"SET"[..], b"0-0", reader.owner(), b"PX", b"2000"];
    assert_eq!(pair.server.command(&set), "+OK\r\n");
    let vote = ask(step(Verb::Acquire, Mode::Exclusive, 10));
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    assert_eq!(
        ask(step(WARM.verb, Mode::Shared, 8)),
        Vote::Released { held: true }
    );
    assert_eq!(ask(step(Verb::Acquire, Mode::Exclusive, 10)), Vote::Granted);
}

/// Readers leave a marker at the key, which keeps other libraries out; and the other way round.
#[test]
fn another_library_and_readers_exclude_each_other() {
    let pair = Pair::start();
    let ask = |verb| {
        let step = Step {
            verb,
            mode: Mode::Shared,
            ..WARM
        };
        ask(&*pair.redis, step, 0, pair.floors.0).expect("a vote")
    };
    let foreign = || {
        let set = [&b"SET"[..], b"0-0", b"shared:mine", b"NX", b"PX", b"60000"];
        pair.server.command(&set)
    };
    assert_eq!(ask(Verb::Acquire), Vote::Granted);
    assert_eq!(foreign(), "$-1\r\n");
    ask(WARM.verb);
    assert_eq!(foreign(), "+OK\r\n");
    let vote = ask(Verb::Acquire);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
}

/// Requests that prepare the names, and then one call for each name.
fn bursts() -> impl Strategy<Value = Vec<(Vec<Step>, Step)>> {
    let step = |verb: Verb| {
        // Tokens have others between them: a release may raise the fence by one, or not.
        (0..3u8, 1..6i64, pauses()).prop_map(move |(owner, above_floor, after)| Step {
            verb,
            owner,
            above_floor: above_floor * 2,
            alone: is_alone(owner),
            after,
            ..WARM
        })
    };
    let before = prop_oneof![3 => step(Verb::Acquire), 1 => step(Verb::Wait), 1 => step(WARM.verb)];
    let last = prop_oneof![step(Verb::Acquire), step(Verb::Extend), step(WARM.verb)];
    prop::collection::vec((prop::collection::vec(before, 0..4), last), 8..24)
}

/// Calls that arrive together share scripts, and are answered as if each had come alone.
#[test]
fn the_scripts_of_many_obey_the_rules() {
    let pair = Pair::start();
    let shared = || {
        let stats = pair.server.command(&[b"INFO", b"commandstats"]);
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = line.and_then(|line| line.split(',').next()?.parse::<usize>().ok());
        calls.expect("some")
    };
    let (scripts, calls) = (Cell::new(0), Cell::new(0));
    // While the floor is ahead of the clock, every acquire is sent by itself.
    pair.pass(Duration::from_millis(2000 * TICK_MS));
    pair.compare(150, &bursts(), |names| {
        let (round, mut steps) = (pair.round.get(), Vec::new());
        for (name, (before, last)) in (0u8..).zip(names) {
            for step in &before {
                pair.both(Step { name, ..*step })?;
            }
            let waited = |step: &Step| step.verb == Verb::Wait && step.owner == last.owner;
            steps.push((Step { name, ..last }, before.iter().any(waited)));
        }
        let scripts_before = shared();
        let (burst, answers): (Vec<_>, Vec<_>) = steps
            .iter()
            .map(|&(step, waited)| {
                let claim = claim(step, round, pair.floors.0).made_now();
                if waited {
                    claim.wait();
                }
                call(step, claim)
            })
            .unzip();
        let redis = Arc::clone(&pair.redis);
        pair.runtime
            .spawn(async move { burst.into_iter().for_each(|call| redis.submit(call)) });
        for (&(step, _), answer) in steps.iter().zip(answers) {
            let theirs = relative(answer.recv().expect("an answer"), pair.floors.0);
            let ours = relative(ask(&pair.memory, step, round, pair.floors.1), pair.floors.1);
            prop_assert_eq!(theirs, ours, "{:?} of {:?}", step, steps);
        }
        scripts.set(scripts.get() + shared() - scripts_before);
        calls.set(calls.get() + steps.len());
        pair.same_locks(u8::try_from(steps.len()).expect("few"))
    });
    // Calls did share scripts.
    assert!(
        scripts.get() < calls.get(),
        "{scripts:?} scripts for {calls:?} calls"
    );
}

/// Such a request would acquire the lock, or a place in line, for a claim that is no longer used.
#[test]
fn requests_of_a_released_claim_are_not_sent() {
    let pair = Pair::start();
    for verb in [Verb::Acquire, Verb::Wait, Verb::Extend, WARM.verb] {
        let step = Step { verb, ..WARM };
        let claim = claim(step, 0, pair.floors.0);
        claim.mark_released();
        let (call, answer) = call(step, claim);
        pair.redis.submit(call);
        match answer.recv().expect("an answer") {
            Ok(vote) => assert_eq!((verb, vote), (WARM.verb, Vote::Released { held: false })),
            Err(error) => assert!(verb != WARM.verb && error.had_no_effect(), "{error}"),
        }
        assert_eq!(pair.server.get(b"0-0"), None);
    }
}

/// A result is announced to the first hundred in line, and to nobody without one.
#[test]
fn a_result_is_announced_to_the_first_hundred() {
    let pair = Pair::start();
    let floor = pair.floors.0;
    for (prefix, result, expected) in [(1, true, ANNOUNCED_TO), (2, false, 0)] {
        let mut subscriber =
            TcpStream::connect(("127.0.0.1", pair.server.port())).expect("connected");
        let timeout = Some(Duration::from_secs(30));
        subscriber.set_read_timeout(timeout).expect("a timeout");
        subscriber
            .write_all(b"PSUBSCRIBE leasehold:bell:*\r\n")
            .expect("sent");
        let mut messages = BufReader::new(subscriber).lines();
        let mut next = |prefix: &str| {
            let is_it = |line: &String| line.starts_with(prefix);
            messages
                .by_ref()
                .map(|line| line.expect("a line"))
                .find(is_it)
        };
        next(":1").expect("subscribed");
        let step = |verb, above_floor| Step {
            verb,
            above_floor,
            result,
            owner: u8::try_from(above_floor).expect("small"),
            ..WARM
        };
        let ask = |step| ask(&*pair.redis, step, prefix, floor).expect("a vote");
        assert_eq!(ask(step(Verb::Acquire, 1)), Vote::Granted);
        let line: Vec<_> = (2..=105).map(|ticket| step(Verb::Wait, ticket)).collect();
        let watches: Vec<_> = line
            .iter()
            .map(|step| {
                let signals = crate::quorum::WaitSignals::new(1);
                let claim = claim(*step, prefix, floor);
                (pair.redis.watch(&claim, &signals.notifier(0)), signals)
            })
            .collect();
        for waiter in line {
            let vote = ask(waiter);
            assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
        }
        let keep = Some(Duration::from_secs(3600));
        assert_eq!(
            ask(step(Verb::Release { keep }, 1)),
            Vote::Released { held: true }
        );
        let publish: [&[u8]; 3] = [b"PUBLISH", b"leasehold:bell:x", b"Zend"];
        assert!(pair.server.command(&publish).starts_with(":"));
        let mut announced = 0;
        while let Some(line) = next("") {
            announced +=
                usize::from(line.starts_with('A') && line.ends_with(&format!(" {prefix}-0")));
            assert!(!line.starts_with('G') && !line.starts_with('T'), "{line}");
            if line == "Zend" {
                break;
            }
        }
        assert_eq!(announced, expected);
        drop(watches);
    }
}

/// A missing fence would not be dangerous, but the name would not be listed any more.
#[test]
fn the_fence_lives_as_long_as_the_name_is_kept() {
    let pair = Pair::start();
    let year = Duration::from_secs(366 * 24 * 3600);
    for (prefix, has_line) in [(1, false), (2, true)] {
        let ask = |verb, above_floor| {
            let step = Step {
                verb,
                above_floor,
                result: true,
                ..WARM
            };
            ask(&*pair.redis, step, prefix, pair.floors.0).expect("a vote")
        };
        assert_eq!(ask(Verb::Acquire, 1), Vote::Granted);
        if has_line {
            let vote = ask(Verb::Wait, 2);
            assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
        }
        let keep = Some(year);
        let released = ask(Verb::Release { keep }, 1);
        assert_eq!(released, Vote::Released { held: true });
        let fence = format!("leasehold:fence:{{{prefix}-0}}");
        let reply = pair.server.command(&[b"PTTL", fence.as_bytes()]);
        let left: u128 = reply[1..].trim_end().parse().expect("a number");
        assert!(left > year.as_millis(), "{left} ms");
    }
}
