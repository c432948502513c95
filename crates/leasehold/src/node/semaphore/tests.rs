use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use super::*;
use crate::MemoryNode;
use crate::base::clock::{Moment, TimeSource};
use crate::base::holder::new_owner_in;
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::node::{Call, Node, NodeError, Tally, Watch};
use crate::quorum::WaitSignals;

const START_US: u64 = 1_800_000_000_000_000;
const TTL: Duration = Duration::from_secs(60);

/// A clock that stands still, long after the node was created.
struct Still(std::sync::atomic::AtomicU32);

impl TimeSource for Still {
    fn now(&self) -> Moment {
        let times = self.0.fetch_add(1, Ordering::SeqCst).min(1);
        Moment::from_origin(Duration::from_secs(u64::from(times) * 60))
    }

    fn unix_us(&self) -> u64 {
        START_US
    }
}

struct Answer(mpsc::Sender<Vote>);

impl Tally for Answer {
    fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
        let vote = answer.expect("a vote");
        self.0.send(vote).expect("the test waits for it");
    }
}

struct Client {
    claim: Arc<Claim>,
    signals: Arc<WaitSignals>,
    _watch: Option<Watch>,
}

impl Client {
    fn new(node: &MemoryNode, seat: Seat, above_floor: u64) -> Self {
        let token = node.floor() + above_floor * 16;
        let owner = new_owner_in(Mode::Exclusive, token, "");
        let name = match seat.number() {
            Some(number) => seat.semaphore().permit(number),
            None => seat.semaphore().clone(),
        };
        let claim = Arc::new(Claim::new(name, owner, token, TTL).in_seat(seat));
        let signals = WaitSignals::new(1);
        let watch = node.watch(&claim, &signals.notifier(0));
        Self {
            claim,
            signals,
            _watch: watch,
        }
    }

    fn ask(&self, node: &MemoryNode, verb: Verb) -> Vote {
        let (sender, receiver) = mpsc::channel();
        let tally = Arc::new(Answer(sender));
        node.submit(Call::new(verb, Arc::clone(&self.claim), TTL, tally, 0));
        receiver.recv().expect("an answer")
    }
}

/// Found by the simulator: a client with a larger number of permits was refused and left the line. The
/// node searched for a free permit among as many as that client has, and offered one that does not exist
/// to the first in line, which acquired it.
#[test]
fn no_permit_beyond_the_number_on_record_is_offered() {
    let release = Verb::Release { keep: None };
    let node = MemoryNode::with_time_source("a", Arc::new(Still(0.into())));
    let key = Name::new("a").expect("a name").semaphore();
    let holder = Client::new(&node, Seat::permit(key.clone(), 1, 0, None), 1);
    let waiter = Client::new(&node, Seat::ticket(key.clone(), 1), 2);
    let other = Client::new(&node, Seat::ticket(key.clone(), 2), 3);
    let resizing = Client::new(&node, Seat::resizing(key.clone(), 2), 4);
    assert_eq!(holder.ask(&node, Verb::Acquire), Vote::Granted);
    let vote = waiter.ask(&node, Verb::Wait);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    let refused = Vote::OtherPermits { permits: 1 };
    assert_eq!(other.ask(&node, Verb::Wait), refused);
    other.ask(&node, release);
    assert_eq!(waiter.signals.state().free_permit(), None);
    holder.ask(&node, release);
    assert_eq!(waiter.signals.state().free_permit(), Some(0));
    // Once there are two, the second is offered, too.
    assert_eq!(
        waiter.ask(&node, Verb::Wait),
        Vote::Free { permit: 0 },
        "not yet acquired"
    );
    let second = Client::new(
        &node,
        Seat::permit(key, 1, 0, Some(waiter.claim.owner())),
        5,
    );
    assert_eq!(second.ask(&node, Verb::Acquire), Vote::Granted);
    resizing.ask(&node, release);
    let vote = other.ask(&node, Verb::Wait);
    assert_eq!(vote, Vote::Free { permit: 1 });
}

/// A request whose reply was lost is sent again. Meanwhile others may have joined the line, and the
/// number of permits may have changed: the claim has its permit all the same.
#[test]
fn the_same_request_again_is_granted_whatever_has_changed() {
    let node = MemoryNode::with_time_source("a", Arc::new(Still(0.into())));
    let key = Name::new("a").expect("a name").semaphore();
    let holder = Client::new(&node, Seat::permit(key.clone(), 1, 0, None), 1);
    let waiter = Client::new(&node, Seat::ticket(key.clone(), 1), 2);
    let resizing = Client::new(&node, Seat::resizing(key, 2), 3);
    assert_eq!(holder.ask(&node, Verb::Acquire), Vote::Granted);
    let vote = waiter.ask(&node, Verb::Wait);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    assert_eq!(holder.ask(&node, Verb::Acquire), Vote::Granted, "a line");
    resizing.ask(&node, Verb::Release { keep: None });
    assert_eq!(holder.ask(&node, Verb::Acquire), Vote::Granted, "resized");
}

/// The ticket of the first in line is above the fence. A holder of a permit is not taken for it.
#[test]
fn a_waiter_learns_who_holds_a_permit() {
    let node = MemoryNode::with_time_source("a", Arc::new(Still(0.into())));
    let key = Name::new("a").expect("a name").semaphore();
    let holder = Client::new(&node, Seat::permit(key.clone(), 1, 0, None), 1);
    let waiter = Client::new(&node, Seat::ticket(key, 1), 2);
    assert_eq!(holder.ask(&node, Verb::Acquire), Vote::Granted);
    match waiter.ask(&node, Verb::Wait) {
        Vote::Held {
            holder: seen,
            fence,
            ..
        } => {
            assert_eq!(seen.token, Some(holder.claim.token()));
            assert!(fence >= holder.claim.token());
        }
        vote => panic!("{vote:?}"),
    }
}

/// Found by the simulator: the release of a request for a permit that had failed removed the client's
/// ticket from the line, and others were served before it.
#[test]
fn a_request_that_failed_does_not_lose_the_place_in_line() {
    let release = Verb::Release { keep: None };
    let node = MemoryNode::with_time_source("a", Arc::new(Still(0.into())));
    let key = Name::new("a").expect("a name").semaphore();
    let holder = Client::new(&node, Seat::permit(key.clone(), 1, 0, None), 1);
    let waiter = Client::new(&node, Seat::ticket(key.clone(), 1), 2);
    let next = Client::new(&node, Seat::ticket(key.clone(), 1), 3);
    assert_eq!(holder.ask(&node, Verb::Acquire), Vote::Granted);
    for client in [&waiter, &next] {
        let vote = client.ask(&node, Verb::Wait);
        assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    }
    let seat = Seat::permit(key, 1, 0, Some(waiter.claim.owner()));
    let early = Client::new(&node, seat, 4);
    let vote = early.ask(&node, Verb::Acquire);
    assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
    early.ask(&node, release);
    holder.ask(&node, release);
    assert_eq!(waiter.signals.state().free_permit(), Some(0));
    assert_eq!(next.signals.state().free_permit(), None);
}
