//! Holds the scripts against the rules: the same requests in the same order, on a real
//! server and on the in-memory node (which calls the rules), get the same answers and
//! leave the same behind.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use leasehold_testkit::RedisServer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{RedisNode, Roster, Target};
use crate::clock::Clock;
use crate::holder::Holder;
use crate::name::Name;
use crate::node::NodeSettings;
use crate::node::memory::MemoryNode;
use crate::node::rules::Constants;
use crate::node::{Call, Claim, Node, NodeError, Tally, Verb, Vote};

/// One request. Tokens are counted from the node's floor, because each node has its own.
#[derive(Clone, Copy, Debug)]
struct Step {
    verb: Verb,
    name: u8,
    owner: u8,
    above_floor: i64,
    /// No other node votes on the claim.
    alone: bool,
    /// It has no token.
    plain: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
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
    let step = (verb, 0..2u8, 0..4u8, above_floor, any::<bool>(), 0..5u8).prop_map(|step| {
        let (verb, name, owner, above_floor, alone, plain) = step;
        Step {
            verb,
            name,
            owner,
            above_floor,
            alone,
            plain: plain == 0,
        }
    });
    prop::collection::vec(step, 1..40)
}

/// Passes the answer on.
struct Answers(mpsc::Sender<Result<Vote, NodeError>>);

impl Tally for Answers {
    fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
        self.0.send(answer).expect("somebody listens");
    }
}

fn ask(node: &dyn Node, step: Step, prefix: u64, floor: u64) -> Result<Vote, NodeError> {
    let token = match step.plain {
        false => floor.saturating_add_signed(step.above_floor),
        true => 0,
    };
    let claim = Claim::new(
        Name::new(format!("{prefix}-{}", step.name)).expect("a name"),
        // As a real one: the first 40 characters are the secret, and it tells the token.
        format!("{:040}:{token}:1@host:{}", step.owner, step.above_floor).into_bytes(),
        token,
        Duration::from_secs(3600),
    )
    .on_one_node(step.alone);
    let (sender, receiver) = mpsc::channel();
    let timeout = Duration::from_secs(30);
    let tally = Arc::new(Answers(sender));
    node.submit(Call::new(step.verb, Arc::new(claim), timeout, tally, 0));
    receiver.recv().expect("every call is answered")
}

/// An answer without what differs from clock to clock.
fn relative(answer: Result<Vote, NodeError>, floor: u64) -> String {
    let above = |fence: u64| fence.wrapping_sub(floor) as i64;
    match answer.expect("both nodes work") {
        Vote::Held {
            holder,
            fence,
            place,
            ..
        } => {
            let label = holder.label.unwrap_or_default();
            format!("held by {label}, fence {}, place {place:?}", above(fence))
        }
        Vote::Stale { fence, .. } => format!("stale, fence {}", above(fence)),
        Vote::Ahead { fence, .. } => format!("ahead, fence {}", above(fence)),
        Vote::Lost { fence } => format!("lost, fence {}", above(fence)),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_scripts_obey_the_rules() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let settings = NodeSettings {
        constants: Constants::for_nodes(1),
        assume_fresh: true,
        connect_timeout: Duration::from_secs(10),
        clock: Clock::default(),
        tls: crate::node::Tls::default(),
    };
    let _runtime = runtime.enter();
    let target = Target::parse(&server.url(), &settings).unwrap();
    let redis = RedisNode::start(target, &settings, Arc::new(Roster::default()));
    let memory = MemoryNode::new("memory");
    let warm = Step {
        verb: Verb::Release { keep: None },
        name: 0,
        owner: 0,
        above_floor: 1,
        alone: false,
        plain: false,
    };
    ask(&redis, warm, 0, 0).expect("connected");
    // Tokens just above the floor are allowed from the moment after it was set.
    std::thread::sleep(Duration::from_millis(5));
    let floors = (redis.floor(), memory.floor());
    assert!(floors.0 > 0 && floors.1 > 0);

    // A fence from before the node forgot, as an old snapshot has it: the floor counts, in
    // the common case too.
    let digits = (floors.0 - 100).to_string();
    let set = [&b"SET"[..], b"leasehold:fence:{0-0}", digits.as_bytes()];
    assert_eq!(server.command(&set), "+OK\r\n");
    let below_floor = Step {
        verb: Verb::Acquire,
        above_floor: -50,
        ..warm
    };
    let vote = ask(&redis, below_floor, 0, floors.0).expect("a vote");
    assert!(matches!(vote, Vote::Stale { .. }), "{vote:?}");

    let mut runner = TestRunner::new(Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    });
    let round = std::cell::Cell::new(1);
    let outcome = runner.run(&steps(), |steps| {
        round.set(round.get() + 1);
        for (index, step) in steps.iter().enumerate() {
            let theirs = relative(ask(&redis, *step, round.get(), floors.0), floors.0);
            let ours = relative(ask(&memory, *step, round.get(), floors.1), floors.1);
            prop_assert_eq!(theirs, ours, "step {} of {:?}", index, steps);
        }
        for name in 0..2 {
            let key = format!("{}-{name}", round.get());
            let value = memory.get(&Name::new(&key).expect("a name"));
            let label = |value: Vec<u8>| Holder::parse(&value).label;
            prop_assert_eq!(server.get(key.as_bytes()).map(label), value.map(label));
        }
        Ok(())
    });
    outcome.unwrap();
}
