//! How a node votes on one name: the rules, and the line of waiters.
//!
//! A node orders waiters by their tickets, which are their tokens, so all nodes agree on who is
//! next. When the lock is free, the node *hands it over* to the first in line: it grants the lock as
//! if the waiter's ACQUIRE had arrived at this moment. A WAIT is an ACQUIRE that the node keeps until
//! it can be granted. Messages may be late anyway, so nothing here is part of the argument why
//! tokens are safe.
//!
//! A grant raises the fence and is not taken back, so nodes that disagree on who is first would
//! split their votes. A waiter with a lower ticket may have reached other nodes and not yet this
//! one. So a waiter that joined less than [`ORDER_KNOWN_AFTER`] ago is granted nothing: the node notifies it
//! that it is its turn, and it sends ACQUIRE. Nothing is stored for that. **While the lock is free
//! and has a line, only the first in line can acquire it**; a waiter that joins with a lower ticket
//! becomes the first.

use std::time::Duration;

use super::rules::{self, View, Write};
use super::{Claim, News, Verb, Vote};

/// The remaining time that other clients are given for a free lock while it is a waiter's turn. On
/// Redis, other libraries are kept from acquiring the lock for this time.
pub const TURN: Duration = Duration::from_secs(1);

/// How long a lock is granted to the first in line. Short, so that a dead waiter costs little; long
/// enough that a waiter, which sends WAIT every 1.1 s, can extend it in time.
pub const HANDED_OVER: Duration = Duration::from_secs(2);

/// A waiter that joined this long ago is known to all nodes, and so are all waiters with lower
/// tickets.
pub const ORDER_KNOWN_AFTER: Duration = Duration::from_millis(10);

/// A waiter that has sent no WAIT for this long is removed from the line.
pub const DEAD_AFTER: Duration = Duration::from_secs(3);

/// A node may forget a line this long after it was refreshed. Every request of a waiter refreshes
/// the line once a third of the time is over, so a line that goes away contains only waiters that
/// have been silent for longer than [`DEAD_AFTER`].
pub const LINE_KEPT: Duration = Duration::from_secs(9);
const _: () = assert!(LINE_KEPT.as_millis() - LINE_KEPT.as_millis() / 3 > DEAD_AFTER.as_millis());

/// What a node stores for one name, while it votes on one request: what [`vote`] works on.
///
/// All changes of one vote must take effect together, or not at all.
pub trait Record {
    /// The lock and the fence.
    fn view(&self) -> View<'_>;

    /// Stores what a rule says.
    fn write(&mut self, write: Write, claim: &Claim);

    /// Grants the lock to a waiter: `owner` becomes the lock's value for `time`, and the token
    /// becomes the fence.
    fn grant(&mut self, owner: &[u8], token: u64, time: Duration);

    /// Whether there are waiters. May return `true` although there are none.
    fn has_line(&self) -> bool;

    /// Adds the claim to the line, in the order of tokens and, for equal tokens, of owner values.
    /// If it is there already, notes that it sent WAIT now.
    fn join(&mut self, claim: &Claim);

    /// Removes a waiter from the line.
    fn leave(&mut self, owner: &[u8]);

    /// Removes all waiters whose last WAIT came before this moment of the node's clock. The work
    /// must not grow with the number of waiters that stay.
    fn remove_silent(&mut self, before: u64);

    /// The first in line: its owner value and its ticket.
    fn first(&self) -> Option<(Box<[u8]>, u64)>;

    /// Whether this waiter joined at least [`ORDER_KNOWN_AFTER`] ago, or its claim is on
    /// [this node only](Claim::is_on_one_node).
    fn is_order_known(&self, owner: &[u8]) -> bool;

    /// How many waiters are before this one. May stop counting at some large number.
    fn before(&self, owner: &[u8]) -> u32;

    /// Notifies a waiter. Returns `false` if its client is known to be gone.
    fn notify(&mut self, owner: &[u8], news: News) -> bool;
}

/// Votes on a claim.
///
/// ```
/// use leasehold::{Client, MemoryNode};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// // Every node of this crate votes by this function; the node in memory is the shortest.
/// let client = Client::builder().custom_node(MemoryNode::new("a")).build()?;
/// client.mutex("x").lock().await?.release().await;
/// # Ok(()) }
/// ```
pub fn vote(record: &mut impl Record, verb: Verb, claim: &Claim) -> Vote {
    let joins = verb == Verb::Wait && rules::may_wait(&record.view(), claim);
    if joins {
        record.join(claim);
    }
    if !record.has_line() {
        let (vote, write) = rules::vote(&record.view(), verb, claim);
        record.write(write, claim);
        refresh(record, verb, claim, &vote);
        return vote;
    }
    if matches!(verb, Verb::Release { .. }) || verb == Verb::Wait && !joins {
        record.leave(claim.owner());
    }
    // Before the vote: an expired lock goes to the first in line, too. But the holder of a lease of
    // a majority may join it here before that.
    if verb != Verb::Extend {
        serve(record, verb, claim);
    }
    let (mut vote, write) = decide(record, verb, claim);
    record.write(write, claim);
    refresh(record, verb, claim, &vote);
    match &mut vote {
        Vote::Granted => record.leave(claim.owner()),
        Vote::Held { place, .. } if joins => *place = Some(record.before(claim.owner())),
        _ => {}
    }
    // After it: a lock that was released goes to the first in line.
    if verb != Verb::Extend {
        serve(record, verb, claim);
    }
    vote
}

/// Votes by the rule of the verb. Rule: if the lock is free and another claim is first in line, the
/// request is refused as if that claim held the lock. Only EXTEND may join a free lock, whatever the
/// line: the holder of a lease of a majority comes before all waiters.
fn decide(record: &impl Record, verb: Verb, claim: &Claim) -> (Vote, Write) {
    let view = record.view();
    let first = match view.lock {
        None if verb != Verb::Extend => record.first(),
        _ => None,
    };
    match &first {
        Some((first, _)) if **first != *claim.owner() => {
            let (lock, remaining) = (Some(&**first), Some(TURN));
            let view = View {
                lock,
                remaining,
                ..view
            };
            rules::vote(&view, verb, claim)
        }
        _ => rules::vote(&view, verb, claim),
    }
}

/// A waiter that was granted the lock here and still sends WAIT is waiting for other nodes. It keeps
/// the lock meanwhile; otherwise, with slow messages, the grant would expire here before the others
/// come. A lock that it has extended since is not shortened.
fn refresh(record: &mut impl Record, verb: Verb, claim: &Claim, vote: &Vote) {
    let short = record
        .view()
        .remaining
        .is_some_and(|left| left < HANDED_OVER);
    if (verb, vote) == (Verb::Wait, &Vote::Granted) && short {
        record.grant(claim.owner(), claim.token(), HANDED_OVER);
    }
}

/// Hands a free lock to the first in line and notifies it, unless that is `asking`, which gets an
/// answer anyway.
///
/// While the lock is granted there is nothing to hand over. Then only a WAIT looks for waiters that
/// are silent or were overtaken; all other requests leave that to the waiters and to the release.
fn serve(record: &mut impl Record, verb: Verb, asking: &Claim) {
    if verb != Verb::Wait && record.view().lock.is_some() {
        return;
    }
    let dead = rules::micros(DEAD_AFTER);
    let before = record.view().now.saturating_sub(dead);
    record.remove_silent(before);
    while let Some((first, ticket)) = record.first() {
        let view = record.view();
        // A ticket that was overtaken cannot win: its owner takes a new one.
        if ticket <= view.effective_fence() {
            record.leave(&first);
            record.notify(&first, News::AskAgain);
            continue;
        }
        if view.lock.is_some() {
            return;
        }
        let order_known = record.is_order_known(&first);
        let news = match order_known {
            true => News::Granted,
            false => News::YourTurn,
        };
        if *first != *asking.owner() && !record.notify(&first, news) {
            record.leave(&first);
            continue;
        }
        if order_known {
            // By the rule of ACQUIRE: the lock is free, and the token is above the fence and
            // within the cap, or it would not stand in line.
            record.grant(&first, ticket, HANDED_OVER);
            record.leave(&first);
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::MemoryNode;
    use crate::base::clock::{Moment, TimeSource};
    use crate::base::holder::new_owner;
    use crate::base::name::Name;
    use crate::node::{Call, Node, NodeError, Tally, Watch};
    use crate::quorum::WaitSignals;

    const START_US: u64 = 1_800_000_000_000_000;
    const TTL: Duration = Duration::from_secs(60);

    /// A clock that stands still unless it is told to go on.
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
            self.0.send(answer.expect("a vote")).expect("heard");
        }
    }

    /// A node, and the tokens that it may grant.
    struct Bench {
        node: MemoryNode,
        clock: Still,
        floor: u64,
    }

    /// A claim, and what its node has said about it.
    struct Somebody {
        claim: Arc<Claim>,
        signals: Arc<WaitSignals>,
        _watch: Option<Watch>,
    }

    impl Bench {
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

        /// One whose claim is on this node only.
        fn loner(&self, above_floor: u64) -> Somebody {
            self.anybody(above_floor, true)
        }

        fn somebody(&self, above_floor: u64) -> Somebody {
            self.anybody(above_floor, false)
        }

        fn anybody(&self, above_floor: u64, alone: bool) -> Somebody {
            let token = self.floor + above_floor * 16;
            let name = Name::new("a").expect("a name");
            let claim = Claim::new(name, new_owner(token, ""), token, TTL);
            let claim = Arc::new(claim.on_one_node(alone));
            let signals = WaitSignals::new(1);
            let watch = self.node.watch(&claim, &signals.notifier(0));
            Somebody {
                claim,
                signals,
                _watch: watch,
            }
        }

        /// One who holds the lock, and two who wait for it.
        fn line(&self, tickets: [u64; 3]) -> [Somebody; 3] {
            let [holder, first, second] = tickets.map(|ticket| self.somebody(ticket));
            assert_eq!(self.ask(Verb::Acquire, &holder), Vote::Granted);
            assert_eq!(self.place(&first), Some(0));
            assert_eq!(self.place(&second), Some(1));
            [holder, first, second]
        }

        fn ask(&self, verb: Verb, who: &Somebody) -> Vote {
            let (sender, receiver) = mpsc::channel();
            let tally = Arc::new(Answer(sender));
            let claim = Arc::clone(&who.claim);
            self.node.submit(Call::new(verb, claim, TTL, tally, 0));
            receiver.recv().expect("an answer")
        }

        fn release(&self, who: &Somebody) -> Vote {
            self.ask(Verb::Release { keep: None }, who)
        }

        fn place(&self, who: &Somebody) -> Option<u32> {
            match self.ask(Verb::Wait, who) {
                Vote::Held { place, .. } => place,
                _ => None,
            }
        }
    }

    impl Somebody {
        fn is_told(&self) -> bool {
            self.signals.state().is_turn()
        }

        fn is_granted(&self) -> bool {
            self.signals.state().granted().contains(0)
        }
    }

    #[test]
    fn a_lock_is_handed_over_to_the_first_in_line() {
        let bench = Bench::new();
        let [holder, first, second, passer_by] = [1, 2, 3, 9].map(|t| bench.loner(t));
        assert_eq!(bench.ask(Verb::Acquire, &holder), Vote::Granted);
        assert_eq!(bench.place(&first), Some(0));
        assert_eq!(bench.place(&second), Some(1));
        bench.release(&holder);
        assert!(first.is_granted() && !second.is_told());
        assert_eq!(bench.ask(Verb::Wait, &first), Vote::Granted, "told again");
        assert_eq!(bench.place(&second), Some(0));
        // It is a grant: tokens below it are refused for ever, and it can be extended.
        let vote = bench.ask(Verb::Acquire, &passer_by);
        assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
        assert_eq!(bench.ask(Verb::Extend, &first), Vote::Granted);
        bench.pass(HANDED_OVER);
        assert!(!second.is_told());
        bench.release(&first);
        assert!(second.is_granted());
    }

    /// Rule: an unconfirmed grant is short, so that a dead waiter costs little.
    #[test]
    fn what_nobody_comes_for_goes_to_the_next() {
        let bench = Bench::new();
        let [holder, dead, second] = [1, 2, 3].map(|t| bench.loner(t));
        bench.ask(Verb::Acquire, &holder);
        bench.ask(Verb::Wait, &dead);
        bench.ask(Verb::Wait, &second);
        bench.release(&holder);
        bench.pass(HANDED_OVER - Duration::from_millis(1));
        assert_eq!(bench.place(&second), Some(0));
        bench.pass(Duration::from_millis(1));
        assert_eq!(bench.ask(Verb::Wait, &second), Vote::Granted);
        // It has been overtaken.
        assert!(matches!(bench.ask(Verb::Wait, &dead), Vote::Stale { .. }));
        assert!(matches!(bench.ask(Verb::Extend, &dead), Vote::Held { .. }));
    }

    /// Or, where messages take long, it would be over here when it comes elsewhere.
    #[test]
    fn who_still_waits_for_other_nodes_keeps_what_it_was_handed() {
        let bench = Bench::new();
        let [holder, first, second] = [1, 2, 3].map(|t| bench.loner(t));
        bench.ask(Verb::Acquire, &holder);
        bench.ask(Verb::Wait, &first);
        bench.release(&holder);
        for _ in 0..5 {
            bench.pass(HANDED_OVER - Duration::from_millis(1));
            assert_eq!(bench.ask(Verb::Wait, &first), Vote::Granted);
        }
        // But a question that comes late cuts nothing short.
        assert_eq!(bench.ask(Verb::Extend, &first), Vote::Granted);
        assert_eq!(bench.ask(Verb::Wait, &first), Vote::Granted);
        bench.pass(TTL - Duration::from_millis(1));
        assert_eq!(bench.place(&second), Some(0));
    }

    /// Rule: ACQUIRE of what was handed over counts from when it is asked, so the node gives it
    /// the whole TTL from then.
    #[test]
    fn who_asks_for_what_was_handed_over_has_it_for_a_ttl() {
        let bench = Bench::new();
        let [holder, first, second] = [1, 2, 3].map(|t| bench.loner(t));
        bench.ask(Verb::Acquire, &holder);
        bench.ask(Verb::Wait, &first);
        bench.release(&holder);
        bench.pass(Duration::from_secs(1));
        assert_eq!(bench.ask(Verb::Acquire, &first), Vote::Granted);
        bench.pass(TTL - Duration::from_millis(1));
        assert_eq!(bench.place(&second), Some(0));
    }

    /// A waiter with a lower ticket may be on its way to this node. Until that can no longer be, the
    /// node grants nothing.
    #[test]
    fn a_waiter_that_joined_lately_is_notified_and_granted_nothing() {
        let bench = Bench::new();
        let [holder, second] = [1, 3].map(|t| bench.somebody(t));
        let first = bench.loner(2);
        bench.ask(Verb::Acquire, &holder);
        bench.ask(Verb::Wait, &second);
        bench.release(&holder);
        assert!(second.is_told() && !second.is_granted());
        assert_eq!(bench.ask(Verb::Wait, &first), Vote::Granted);
        let vote = bench.ask(Verb::Acquire, &second);
        assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
        // In due time it is granted like any other.
        bench.pass(ORDER_KNOWN_AFTER);
        bench.release(&first);
        assert!(second.is_granted());
    }

    #[test]
    fn a_release_is_the_turn_of_the_first_in_line() {
        let bench = Bench::new();
        let [holder, later, first, passer_by] = [1, 30, 20, 40].map(|t| bench.somebody(t));
        assert_eq!(bench.ask(Verb::Acquire, &holder), Vote::Granted);
        assert_eq!(bench.place(&later), Some(0));
        // By ticket, not by arrival: or nodes would not agree on who is next.
        assert_eq!(bench.place(&first), Some(0));
        assert_eq!(bench.place(&later), Some(1));
        bench.release(&holder);
        assert!(first.is_told() && !later.is_told());
        for other in [&later, &passer_by] {
            assert!(matches!(bench.ask(Verb::Acquire, other), Vote::Held { .. }));
        }
        assert_eq!(bench.ask(Verb::Wait, &first), Vote::YourTurn);
        assert_eq!(bench.ask(Verb::Acquire, &first), Vote::Granted);
        assert_eq!(bench.place(&later), Some(0));
    }

    #[test]
    fn expiry_is_a_turn_as_soon_as_anybody_looks() {
        let bench = Bench::new();
        let [holder, first, passer_by] = [1, 2, 3].map(|t| bench.somebody(t));
        bench.ask(Verb::Acquire, &holder);
        bench.pass(TTL - Duration::from_secs(1));
        bench.ask(Verb::Wait, &first);
        bench.pass(Duration::from_secs(1));
        let vote = bench.ask(Verb::Acquire, &passer_by);
        assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
        assert!(first.is_told());
    }

    /// Rule: a turn is no grant, so the holder of a lease of other nodes may join here.
    #[test]
    fn a_turn_gives_way_to_a_lease() {
        let bench = Bench::new();
        let [holder, first] = [1, 2].map(|t| bench.somebody(t));
        assert_eq!(bench.ask(Verb::Wait, &first), Vote::YourTurn);
        assert_eq!(bench.ask(Verb::Extend, &holder), Vote::Granted);
        assert!(matches!(
            bench.ask(Verb::Acquire, &first),
            Vote::Held { .. }
        ));
        assert_eq!(bench.place(&first), Some(0));
        bench.release(&holder);
        assert!(first.is_told());
        assert_eq!(bench.ask(Verb::Acquire, &first), Vote::Granted);
    }

    #[test]
    fn a_lower_ticket_takes_the_turn() {
        let bench = Bench::new();
        let [holder, first, second] = [1, 2, 3].map(|t| bench.somebody(t));
        bench.ask(Verb::Acquire, &holder);
        bench.ask(Verb::Wait, &second);
        bench.release(&holder);
        assert!(second.is_told());
        assert_eq!(bench.ask(Verb::Wait, &first), Vote::YourTurn);
        assert!(matches!(
            bench.ask(Verb::Acquire, &second),
            Vote::Held { .. }
        ));
    }

    #[test]
    fn who_leaves_passes_the_turn_on() {
        let bench = Bench::new();
        let [holder, first, second] = bench.line([1, 2, 3]);
        bench.release(&holder);
        bench.release(&first);
        assert!(second.is_told());
        assert_eq!(bench.ask(Verb::Acquire, &second), Vote::Granted);
    }

    /// A ticket that was overtaken is never granted; its owner hears of it.
    #[test]
    fn a_stale_ticket_is_struck() {
        let bench = Bench::new();
        let [holder, first, second] = bench.line([1, 2, 30]);
        // A lease of other nodes, with a larger token, is on this one for a while.
        bench.release(&holder);
        let other = bench.somebody(20);
        assert_eq!(bench.ask(Verb::Extend, &other), Vote::Granted);
        bench.release(&other);
        assert!(second.is_told() && !first.is_told());
        assert!(matches!(bench.ask(Verb::Wait, &first), Vote::Stale { .. }));
        assert!(matches!(
            bench.ask(Verb::Acquire, &first),
            Vote::Held { .. }
        ));
    }

    #[test]
    fn the_dead_are_struck_and_the_living_are_not() {
        let bench = Bench::new();
        let [holder, dead, living] = bench.line([1, 2, 3]);
        bench.pass(DEAD_AFTER);
        assert_eq!(bench.place(&living), Some(1), "just alive");
        bench.pass(Duration::from_millis(1));
        assert_eq!(bench.place(&living), Some(0));
        bench.release(&holder);
        assert!(living.is_told() && !dead.is_told());
    }

    #[test]
    fn a_turn_that_is_not_taken_is_over_and_told_again() {
        let bench = Bench::new();
        let [holder, first, second] = bench.line([1, 2, 3]);
        bench.release(&holder);
        first.signals.notifier(0).notify(News::AskAgain);
        bench.pass(TURN);
        // It may have missed the news: it lives, and is still the first.
        bench.ask(Verb::Wait, &second);
        assert!(first.is_told());
    }
}
