use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use super::*;
use crate::MemoryNode;
use crate::base::clock::{Moment, TimeSource};
use crate::base::holder::new_owner_in;
use crate::base::name::Name;
use crate::node::{Call, Node, NodeError, ORDER_KNOWN_AFTER, Tally, Watch};
use crate::quorum::WaitSignals;

const START_US: u64 = 1_800_000_000_000_000;
const TTL: Duration = Duration::from_secs(60);

/// A clock that only the test advances.
#[derive(Clone, Default)]
struct Still(Arc<AtomicU64>);

impl TimeSource for Still {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_millis(self.0.load(Ordering::SeqCst)))
    }

    fn unix_us(&self) -> u64 {
        START_US + self.0.load(Ordering::SeqCst) * 1000
    }
}

struct Answer(mpsc::Sender<Vote>);

impl Tally for Answer {
    fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
        self.0
            .send(answer.expect("a vote"))
            .expect("the test waits for it");
    }
}

/// A node, its clock, and the largest token that it never grants.
struct Fixture {
    node: MemoryNode,
    clock: Still,
    floor: u64,
}

/// A claim, and the signals that its node has sent about it.
struct Contender {
    claim: Arc<Claim>,
    signals: Arc<WaitSignals>,
    _watch: Option<Watch>,
}

impl Fixture {
    fn new() -> Self {
        let clock = Still::default();
        let node = MemoryNode::with_time_source("a", Arc::new(clock.clone()));
        clock.0.store(60_000, Ordering::SeqCst);
        let floor = node.floor();
        Self { node, clock, floor }
    }

    fn pass(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).expect("short");
        self.clock.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// A claim on this node only.
    fn on_one_node(&self, above_floor: u64) -> Contender {
        self.contender(self.claim(Mode::Exclusive, above_floor).on_one_node(true))
    }

    fn on_several_nodes(&self, above_floor: u64) -> Contender {
        self.contender(self.claim(Mode::Exclusive, above_floor))
    }

    fn reader_on_one_node(&self, above_floor: u64) -> Contender {
        self.contender(self.claim(Mode::Shared, above_floor).on_one_node(true))
    }

    fn reader(&self, above_floor: u64) -> Contender {
        self.contender(self.claim(Mode::Shared, above_floor))
    }

    fn claim(&self, mode: Mode, above_floor: u64) -> Claim {
        let token = self.floor + above_floor * 16;
        let name = Name::new("a").expect("a name");
        Claim::new(name, new_owner_in(mode, token, ""), token, TTL)
    }

    fn contender(&self, claim: Claim) -> Contender {
        let claim = Arc::new(claim);
        let signals = WaitSignals::new(1);
        let watch = self.node.watch(&claim, &signals.notifier(0));
        Contender {
            claim,
            signals,
            _watch: watch,
        }
    }

    /// A holder, and two waiters.
    fn line(&self, tickets: [u64; 3]) -> [Contender; 3] {
        let [holder, first, second] = tickets.map(|ticket| self.on_several_nodes(ticket));
        assert_eq!(self.ask(Verb::Acquire, &holder), Vote::Granted);
        assert_eq!(self.place(&first), Some(0));
        assert_eq!(self.place(&second), Some(1));
        [holder, first, second]
    }

    fn ask(&self, verb: Verb, who: &Contender) -> Vote {
        let (sender, receiver) = mpsc::channel();
        let tally = Arc::new(Answer(sender));
        let claim = Arc::clone(&who.claim);
        self.node.submit(Call::new(verb, claim, TTL, tally, 0));
        receiver.recv().expect("an answer")
    }

    fn release(&self, who: &Contender) -> Vote {
        self.ask(Verb::Release { keep: None }, who)
    }

    fn place(&self, who: &Contender) -> Option<u32> {
        match self.ask(Verb::Wait, who) {
            Vote::Held { place, .. } => place,
            _ => None,
        }
    }
}

impl Contender {
    fn is_notified(&self) -> bool {
        self.signals.state().is_turn()
    }

    fn is_granted(&self) -> bool {
        self.signals.state().granted().contains(0)
    }
}

#[test]
fn a_lock_is_handed_over_to_the_first_in_line() {
    let fixture = Fixture::new();
    let [holder, first, second, newcomer] = [1, 2, 3, 9].map(|t| fixture.on_one_node(t));
    assert_eq!(fixture.ask(Verb::Acquire, &holder), Vote::Granted);
    assert_eq!(fixture.place(&first), Some(0));
    assert_eq!(fixture.place(&second), Some(1));
    fixture.release(&holder);
    assert!(first.is_granted() && !second.is_notified());
    assert_eq!(fixture.ask(Verb::Wait, &first), Vote::Granted, "again");
    assert_eq!(fixture.place(&second), Some(0));
    // It is a grant: tokens below it are refused for ever, and it can be extended.
    let vote = fixture.ask(Verb::Acquire, &newcomer);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    assert_eq!(fixture.ask(Verb::Extend, &first), Vote::Granted);
    fixture.pass(HANDED_OVER);
    assert!(!second.is_notified());
    fixture.release(&first);
    assert!(second.is_granted());
}

/// Rule: an unconfirmed grant is short, so that a dead waiter costs little.
#[test]
fn a_grant_that_is_not_confirmed_goes_to_the_next() {
    let fixture = Fixture::new();
    let [holder, dead, second] = [1, 2, 3].map(|t| fixture.on_one_node(t));
    fixture.ask(Verb::Acquire, &holder);
    fixture.ask(Verb::Wait, &dead);
    fixture.ask(Verb::Wait, &second);
    fixture.release(&holder);
    fixture.pass(HANDED_OVER - Duration::from_millis(1));
    assert_eq!(fixture.place(&second), Some(0));
    fixture.pass(Duration::from_millis(1));
    assert_eq!(fixture.ask(Verb::Wait, &second), Vote::Granted);
    // It has been overtaken.
    assert!(matches!(fixture.ask(Verb::Wait, &dead), Vote::Stale { .. }));
    assert!(matches!(
        fixture.ask(Verb::Extend, &dead),
        Vote::Held { .. }
    ));
}

/// Otherwise, with slow messages, the grant would expire here before the other nodes grant it.
#[test]
fn a_waiter_that_waits_for_other_nodes_keeps_its_grant() {
    let fixture = Fixture::new();
    let [holder, first, second] = [1, 2, 3].map(|t| fixture.on_one_node(t));
    fixture.ask(Verb::Acquire, &holder);
    fixture.ask(Verb::Wait, &first);
    fixture.release(&holder);
    for _ in 0..5 {
        fixture.pass(HANDED_OVER - Duration::from_millis(1));
        assert_eq!(fixture.ask(Verb::Wait, &first), Vote::Granted);
    }
    // A late WAIT does not shorten the lock.
    assert_eq!(fixture.ask(Verb::Extend, &first), Vote::Granted);
    assert_eq!(fixture.ask(Verb::Wait, &first), Vote::Granted);
    fixture.pass(TTL - Duration::from_millis(1));
    assert_eq!(fixture.place(&second), Some(0));
}

/// Rule: the validity of an ACQUIRE counts from when it was sent, so the node grants the whole TTL
/// from then, also if it has handed the lock over before.
#[test]
fn an_acquire_after_a_hand_over_lasts_for_a_ttl() {
    let fixture = Fixture::new();
    let [holder, first, second] = [1, 2, 3].map(|t| fixture.on_one_node(t));
    fixture.ask(Verb::Acquire, &holder);
    fixture.ask(Verb::Wait, &first);
    fixture.release(&holder);
    fixture.pass(Duration::from_secs(1));
    assert_eq!(fixture.ask(Verb::Acquire, &first), Vote::Granted);
    fixture.pass(TTL - Duration::from_millis(1));
    assert_eq!(fixture.place(&second), Some(0));
}

/// A waiter with a lower ticket may be on its way to this node. Until that can no longer be, the
/// node grants nothing.
#[test]
fn a_waiter_that_joined_lately_is_notified_and_granted_nothing() {
    let fixture = Fixture::new();
    let [holder, second] = [1, 3].map(|t| fixture.on_several_nodes(t));
    let first = fixture.on_one_node(2);
    fixture.ask(Verb::Acquire, &holder);
    fixture.ask(Verb::Wait, &second);
    fixture.release(&holder);
    assert!(second.is_notified() && !second.is_granted());
    assert_eq!(fixture.ask(Verb::Wait, &first), Vote::Granted);
    let vote = fixture.ask(Verb::Acquire, &second);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    // Once the order is known, it is granted the lock.
    fixture.pass(ORDER_KNOWN_AFTER);
    fixture.release(&first);
    assert!(second.is_granted());
}

#[test]
fn a_release_is_the_turn_of_the_first_in_line() {
    let fixture = Fixture::new();
    let [holder, later, first, newcomer] = [1, 30, 20, 40].map(|t| fixture.on_several_nodes(t));
    assert_eq!(fixture.ask(Verb::Acquire, &holder), Vote::Granted);
    assert_eq!(fixture.place(&later), Some(0));
    // By ticket, not by arrival: otherwise nodes would not agree on the order.
    assert_eq!(fixture.place(&first), Some(0));
    assert_eq!(fixture.place(&later), Some(1));
    fixture.release(&holder);
    assert!(first.is_notified() && !later.is_notified());
    for other in [&later, &newcomer] {
        assert!(matches!(
            fixture.ask(Verb::Acquire, other),
            Vote::Held { .. }
        ));
    }
    assert_eq!(fixture.ask(Verb::Wait, &first), Vote::YourTurn);
    assert_eq!(fixture.ask(Verb::Acquire, &first), Vote::Granted);
    assert_eq!(fixture.place(&later), Some(0));
}

/// Waiters that want the result need not wait until their next heartbeat.
#[test]
fn a_result_is_announced_and_is_nobodys_turn() {
    for result in [true, false] {
        let fixture = Fixture::new();
        let [holder, first, second] = fixture.line([1, 2, 3]);
        if result {
            holder
                .claim
                .leave_behind(b"kept:1:1@host:\n1\ndone".to_vec());
        }
        let keep = Some(TTL);
        let released = fixture.ask(Verb::Release { keep }, &holder);
        assert_eq!(released, Vote::Released { held: true });
        for waiter in [&first, &second] {
            assert_eq!(waiter.signals.state().must_ask_again(), result);
            assert!(!waiter.is_notified());
            let vote = fixture.ask(Verb::Acquire, waiter);
            let Vote::Held { holder, .. } = vote else {
                panic!("{vote:?}");
            };
            assert_eq!(holder.result.is_some(), result);
        }
    }
}

#[test]
fn any_request_after_the_expiry_notifies_the_first() {
    let fixture = Fixture::new();
    let [holder, first, newcomer] = [1, 2, 3].map(|t| fixture.on_several_nodes(t));
    fixture.ask(Verb::Acquire, &holder);
    fixture.pass(TTL - Duration::from_secs(1));
    fixture.ask(Verb::Wait, &first);
    fixture.pass(Duration::from_secs(1));
    let vote = fixture.ask(Verb::Acquire, &newcomer);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    assert!(first.is_notified());
}

/// Rule: a turn is no grant, so the holder of a lease of other nodes may join here.
#[test]
fn a_turn_gives_way_to_a_lease() {
    let fixture = Fixture::new();
    let [holder, first] = [1, 2].map(|t| fixture.on_several_nodes(t));
    assert_eq!(fixture.ask(Verb::Wait, &first), Vote::YourTurn);
    assert_eq!(fixture.ask(Verb::Extend, &holder), Vote::Granted);
    assert!(matches!(
        fixture.ask(Verb::Acquire, &first),
        Vote::Held { .. }
    ));
    assert_eq!(fixture.place(&first), Some(0));
    fixture.release(&holder);
    assert!(first.is_notified());
    assert_eq!(fixture.ask(Verb::Acquire, &first), Vote::Granted);
}

#[test]
fn a_lower_ticket_takes_the_turn() {
    let fixture = Fixture::new();
    let [holder, first, second] = [1, 2, 3].map(|t| fixture.on_several_nodes(t));
    fixture.ask(Verb::Acquire, &holder);
    fixture.ask(Verb::Wait, &second);
    fixture.release(&holder);
    assert!(second.is_notified());
    assert_eq!(fixture.ask(Verb::Wait, &first), Vote::YourTurn);
    assert!(matches!(
        fixture.ask(Verb::Acquire, &second),
        Vote::Held { .. }
    ));
}

#[test]
fn a_waiter_that_leaves_passes_the_turn_on() {
    let fixture = Fixture::new();
    let [holder, first, second] = fixture.line([1, 2, 3]);
    fixture.release(&holder);
    fixture.release(&first);
    assert!(second.is_notified());
    assert_eq!(fixture.ask(Verb::Acquire, &second), Vote::Granted);
}

/// A ticket that was overtaken is never granted, and its owner is notified.
#[test]
fn a_stale_ticket_is_removed() {
    let fixture = Fixture::new();
    let [holder, first, second] = fixture.line([1, 2, 30]);
    // A lease of other nodes, with a larger token, is on this one for a while.
    fixture.release(&holder);
    let other = fixture.on_several_nodes(20);
    assert_eq!(fixture.ask(Verb::Extend, &other), Vote::Granted);
    fixture.release(&other);
    assert!(second.is_notified() && !first.is_notified());
    assert!(matches!(
        fixture.ask(Verb::Wait, &first),
        Vote::Stale { .. }
    ));
    assert!(matches!(
        fixture.ask(Verb::Acquire, &first),
        Vote::Held { .. }
    ));
}

#[test]
fn silent_waiters_are_removed() {
    let fixture = Fixture::new();
    let [holder, dead, living] = fixture.line([1, 2, 3]);
    fixture.pass(DEAD_AFTER);
    assert_eq!(fixture.place(&living), Some(1), "just alive");
    fixture.pass(Duration::from_millis(1));
    assert_eq!(fixture.place(&living), Some(0));
    fixture.release(&holder);
    assert!(living.is_notified() && !dead.is_notified());
}

#[test]
fn a_turn_that_is_not_taken_is_notified_again() {
    let fixture = Fixture::new();
    let [holder, first, second] = fixture.line([1, 2, 3]);
    fixture.release(&holder);
    first.signals.notifier(0).notify(News::AskAgain);
    fixture.pass(TURN);
    // It may have missed the notification: it is alive, and still the first.
    fixture.ask(Verb::Wait, &second);
    assert!(first.is_notified());
}

#[test]
fn readers_share_the_lock_and_a_writer_waits_for_all_of_them() {
    let fixture = Fixture::new();
    let [one, two, late] = [1, 2, 9].map(|t| fixture.reader_on_one_node(t));
    let writer = fixture.on_one_node(5);
    assert_eq!(fixture.ask(Verb::Acquire, &two), Vote::Granted);
    assert_eq!(fixture.ask(Verb::Acquire, &one), Vote::Granted);
    assert_eq!(fixture.place(&writer), Some(0));
    // No claim overtakes the line: not by ACQUIRE, and not in the line.
    let vote = fixture.ask(Verb::Acquire, &late);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    assert_eq!(fixture.place(&late), Some(1));
    // But those that are readers can ask again, and renew.
    assert_eq!(fixture.ask(Verb::Acquire, &one), Vote::Granted);
    assert_eq!(fixture.ask(Verb::Extend, &one), Vote::Granted);
    assert_eq!(fixture.release(&one), Vote::Released { held: true });
    assert_eq!(fixture.release(&one), Vote::Released { held: false });
    assert!(!writer.is_notified());
    fixture.release(&two);
    assert!(writer.is_granted() && !late.is_notified());
    fixture.release(&writer);
    assert!(late.is_granted());
}

/// Order r r w r r.
#[test]
fn consecutive_readers_are_granted_together_and_pass_no_writer() {
    let fixture = Fixture::new();
    let holder = fixture.on_one_node(1);
    let [a, b, c, d] = [2, 3, 5, 6].map(|t| fixture.reader_on_one_node(t));
    let writer = fixture.on_one_node(4);
    fixture.ask(Verb::Acquire, &holder);
    for waiter in [&a, &b, &c, &d, &writer] {
        assert!(fixture.place(waiter).is_some());
    }
    fixture.release(&holder);
    assert!(a.is_granted() && b.is_granted());
    assert!(!writer.is_notified() && !c.is_notified() && !d.is_notified());
    assert_eq!(fixture.ask(Verb::Wait, &a), Vote::Granted, "again");
    fixture.release(&a);
    assert!(!writer.is_notified());
    fixture.release(&b);
    assert!(writer.is_granted() && !c.is_notified());
    fixture.release(&writer);
    assert!(c.is_granted() && d.is_granted());
}

/// Rule: of equal tickets, exclusive ones are first. Otherwise the reader would raise F to the
/// writer's ticket, and the writer would lose its place.
#[test]
fn a_writer_is_before_a_reader_with_the_same_ticket() {
    for _ in 0..8 {
        // Owner values are random.
        let fixture = Fixture::new();
        let (holder, reader) = (fixture.on_one_node(1), fixture.reader_on_one_node(2));
        let writer = fixture.on_one_node(2);
        fixture.ask(Verb::Acquire, &holder);
        fixture.ask(Verb::Wait, &reader);
        assert_eq!(fixture.place(&writer), Some(0));
        fixture.release(&holder);
        assert!(writer.is_granted() && !reader.is_notified());
    }
}

/// Among readers there are no votes to split, so nothing is waited for.
#[test]
fn a_reader_that_is_first_in_line_joins_readers_at_once() {
    let fixture = Fixture::new();
    let [holder, waiting] = [1, 2].map(|t| fixture.reader(t));
    assert_eq!(fixture.ask(Verb::Acquire, &holder), Vote::Granted);
    assert_eq!(fixture.ask(Verb::Wait, &waiting), Vote::Granted);
    let [first, second] = [3, 4].map(|t| fixture.reader(t));
    fixture.release(&holder);
    fixture.release(&waiting);
    assert_eq!(
        fixture.ask(Verb::Wait, &first),
        Vote::YourTurn,
        "the lock is free"
    );
    assert!(matches!(
        fixture.ask(Verb::Acquire, &second),
        Vote::Held { .. }
    ));
    assert_eq!(fixture.ask(Verb::Acquire, &first), Vote::Granted);
}

#[test]
fn a_writer_that_leaves_the_line_lets_the_readers_behind_it_in() {
    let fixture = Fixture::new();
    let [holder, behind] = [1, 3].map(|t| fixture.reader(t));
    let writer = fixture.on_several_nodes(2);
    fixture.ask(Verb::Acquire, &holder);
    assert_eq!(fixture.place(&writer), Some(0));
    assert_eq!(fixture.place(&behind), Some(1));
    fixture.release(&writer);
    assert!(behind.is_granted());
}

#[test]
fn the_marker_lives_as_long_as_the_longest_reader() {
    let fixture = Fixture::new();
    let [one, two] = [1, 2].map(|t| fixture.reader(t));
    let writer = fixture.on_several_nodes(3);
    fixture.ask(Verb::Acquire, &one);
    fixture.pass(Duration::from_secs(30));
    fixture.ask(Verb::Acquire, &two);
    fixture.pass(Duration::from_secs(30));
    // The first has expired by itself, and the release of the second is the last.
    assert_eq!(fixture.release(&one), Vote::Released { held: false });
    let vote = fixture.ask(Verb::Acquire, &writer);
    let Vote::Held { remaining, .. } = vote else {
        panic!("{vote:?}");
    };
    assert_eq!(remaining, Some(TTL - Duration::from_secs(30)));
    fixture.ask(Verb::Extend, &one);
    fixture.release(&two);
    let vote = fixture.ask(Verb::Acquire, &writer);
    assert!(
        matches!(vote, Vote::Held { .. }),
        "it joined again: {vote:?}"
    );
    fixture.release(&one);
    assert_eq!(fixture.ask(Verb::Acquire, &writer), Vote::Granted);
}

/// Rule: readers count only while the lock is a marker.
#[test]
fn readers_of_an_earlier_marker_are_forgotten() {
    let fixture = Fixture::new();
    let (name, writer) = (Name::new("a").expect("a name"), fixture.on_several_nodes(2));
    let [early, late] = [1, 3].map(|t| fixture.reader(t));
    fixture.ask(Verb::Acquire, &early);
    fixture.node.set(&name, b"of another program", Some(TURN));
    fixture.pass(TURN);
    assert_eq!(fixture.ask(Verb::Acquire, &writer), Vote::Granted);
    fixture.release(&writer);
    assert_eq!(fixture.ask(Verb::Acquire, &late), Vote::Granted);
    let released = fixture.release(&early);
    assert_eq!(released, Vote::Released { held: false });
    assert!(matches!(
        fixture.ask(Verb::Extend, &early),
        Vote::Lost { .. }
    ));
}

/// A downgrade overtakes the line. The readers at its head join at once, and no writer does.
#[test]
fn a_downgrade_admits_readers_and_no_writer() {
    let fixture = Fixture::new();
    let holder = fixture.on_one_node(1);
    let [first, last] = [2, 4].map(|t| fixture.reader_on_one_node(t));
    let writer = fixture.on_one_node(3);
    fixture.ask(Verb::Acquire, &holder);
    for waiter in [&first, &writer, &last] {
        fixture.ask(Verb::Wait, waiter);
    }
    let token = holder.claim.token() + 15;
    let claim = Claim::new(
        holder.claim.name().clone(),
        new_owner_in(Mode::Shared, token, ""),
        token,
        TTL,
    );
    let downgraded = fixture.contender(claim.replacing(holder.claim.owner()));
    assert_eq!(fixture.ask(Verb::Extend, &downgraded), Vote::Granted);
    assert!(first.is_granted() && !writer.is_notified() && !last.is_notified());
    assert_eq!(fixture.release(&holder), Vote::Released { held: false });
    assert!(matches!(
        fixture.ask(Verb::Extend, &holder),
        Vote::Held { .. }
    ));
    fixture.release(&first);
    fixture.release(&downgraded);
    assert!(writer.is_granted());
    assert!(matches!(
        fixture.ask(Verb::Extend, &downgraded),
        Vote::Held { .. }
    ));
}

#[test]
fn min_hold_of_a_reader_keeps_writers_out_and_lets_readers_in() {
    let fixture = Fixture::new();
    let [early, late] = [1, 3].map(|t| fixture.reader(t));
    let writer = fixture.on_several_nodes(2);
    fixture.ask(Verb::Acquire, &early);
    let keep = Some(Duration::from_secs(5));
    assert_eq!(
        fixture.ask(Verb::Release { keep }, &early),
        Vote::Released { held: true }
    );
    assert!(matches!(
        fixture.ask(Verb::Acquire, &writer),
        Vote::Held { .. }
    ));
    assert_eq!(fixture.ask(Verb::Acquire, &late), Vote::Granted);
    fixture.release(&late);
    assert!(matches!(
        fixture.ask(Verb::Acquire, &writer),
        Vote::Held { .. }
    ));
    fixture.pass(Duration::from_secs(5));
    let newest = fixture.on_several_nodes(9);
    assert_eq!(fixture.ask(Verb::Acquire, &newest), Vote::Granted);
}

/// The next request goes on.
#[test]
fn no_request_grants_the_lock_to_more_than_so_many_readers() {
    let fixture = Fixture::new();
    let holder = fixture.on_one_node(1);
    fixture.ask(Verb::Acquire, &holder);
    let readers: Vec<_> = (0..SERVED_AT_ONCE as u64 * 3)
        .map(|t| fixture.reader_on_one_node(t + 2))
        .collect();
    for reader in &readers {
        fixture.ask(Verb::Wait, reader);
    }
    let granted = || readers.iter().filter(|reader| reader.is_granted()).count();
    fixture.release(&holder);
    assert_eq!(granted(), SERVED_AT_ONCE);
    for served in 2..=3 {
        fixture.ask(Verb::Wait, &readers[0]);
        assert_eq!(granted(), served * SERVED_AT_ONCE);
    }
}
