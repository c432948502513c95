//! Late answers, on a paused clock: whether they count, and what must be cleaned up after them.

use std::time::Duration;

use leasehold::node::Verb;
use leasehold::{Client, Error, Lease, Loss, Name, Options, TimeSource};
use leasehold_testkit::{RuntimeClock, TestNode};

const SECOND: Duration = Duration::from_secs(1);

/// A node on a slow connection: requests arrive at once, and the answers to ACQUIRE and EXTEND are
/// delayed.
fn slow(clock: RuntimeClock, acquire: Duration, extend: Duration) -> TestNode {
    let node = TestNode::new(&clock.nodes(1)[0]).without_notifications();
    delay(&node, acquire, extend);
    node
}

fn delay(node: &TestNode, acquire: Duration, extend: Duration) {
    node.set_delay(move |verb| match verb {
        Verb::Acquire | Verb::Wait => acquire,
        Verb::Extend => extend,
        _ => Duration::ZERO,
    });
}

fn was_asked_to_release(node: &TestNode) -> bool {
    node.count(|verb| matches!(verb, Verb::Release { .. })) > 0
}

fn patient(options: Options) -> Options {
    options.node_timeout(8 * SECOND)
}

async fn client(clock: RuntimeClock, nodes: &[TestNode]) -> Client {
    // A token must lie between the floor and the cap. The distance between them is the time since
    // the nodes were created.
    tokio::time::sleep(Duration::from_millis(1)).await;
    clock.client(nodes.iter().cloned())
}

/// `validity = ttl − elapsed − drift`, counted from before the first byte was sent.
#[tokio::test(start_paused = true)]
async fn a_slow_grant_is_a_shorter_lease() {
    let clock = RuntimeClock::start();
    let node = slow(clock, 3 * SECOND, Duration::ZERO);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let before = clock.now();
    let lease = client
        .mutex("a")
        .with_options(patient)
        .lock()
        .await
        .unwrap();
    assert!(clock.now() >= before + 3 * SECOND);
    assert_eq!(lease.deadline(), before + Duration::from_millis(9_898));
}

/// The same for EXTEND.
#[tokio::test(start_paused = true)]
async fn a_slow_extend_counts_from_its_own_send() {
    let clock = RuntimeClock::start();
    let node = slow(clock, Duration::ZERO, Duration::ZERO);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| patient(o).without_renewal());
    let lease = mutex.lock().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    delay(&node, Duration::ZERO, 4 * SECOND);
    let before = clock.now();
    lease.extend().await.expect("in time");
    assert_eq!(lease.deadline(), before + Duration::from_millis(9_898));
}

/// After the deadline the lease is lost, whatever a server answers later.
#[tokio::test(start_paused = true)]
async fn an_extend_that_is_answered_too_late_does_not_save_the_lease() {
    let clock = RuntimeClock::start();
    let node = slow(clock, Duration::ZERO, Duration::ZERO);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| patient(o).without_renewal());
    let lease = mutex.lock().await.unwrap();
    let deadline = lease.deadline();
    tokio::time::sleep(5 * SECOND).await;
    delay(&node, Duration::ZERO, 6 * SECOND);
    let outcome = lease.extend().await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert_eq!(lease.deadline(), deadline);
    // The node did extend the lock. The client releases it instead of letting it expire.
    tokio::time::sleep(SECOND).await;
    assert!(!node.holds("a"));
}

/// A failed attempt releases the grants that it received, including those that arrive after the
/// failure.
#[tokio::test(start_paused = true)]
async fn the_grants_of_a_failed_attempt_are_released() {
    let clock = RuntimeClock::start();
    let nodes: Vec<_> = [0, 0, 0, 0, 5]
        .map(|seconds| slow(clock, seconds * SECOND, Duration::ZERO))
        .to_vec();
    // Other clients hold three of five nodes. Of the two free nodes, one answers late.
    for node in &nodes[..3] {
        node.memory().set(&Name::new("a").unwrap(), b"others", None);
    }
    let client = client(clock, &nodes).await;
    let refused = client.mutex("a").with_options(patient).try_lock().await;
    assert!(refused.expect("a majority").is_none());
    tokio::time::sleep(SECOND).await;
    assert!(!nodes[3].holds("a") && !nodes[4].holds("a"));
    assert!(was_asked_to_release(&nodes[3]));
    assert!(was_asked_to_release(&nodes[4]));
    // Where a node refused, there is nothing to release, and the other holder keeps its lock.
    assert!(!was_asked_to_release(&nodes[0]));
    assert!(nodes[..3].iter().all(|node| node.holds("a")));
}

/// A late grant of a successful attempt belongs to the lease and is released with it.
#[tokio::test(start_paused = true)]
async fn a_late_grant_is_released_with_the_lease() {
    let clock = RuntimeClock::start();
    let start = clock.now();
    let nodes: Vec<_> = [0, 0, 5]
        .map(|seconds| slow(clock, seconds * SECOND, Duration::ZERO))
        .to_vec();
    let client = client(clock, &nodes).await;
    let lease = client
        .mutex("a")
        .with_options(patient)
        .lock()
        .await
        .unwrap();
    assert!(
        clock.now() < start + SECOND,
        "the acquire waited for the slow node"
    );
    assert!(nodes.iter().all(|node| node.holds("a")));
    lease.release().await;
    assert!(nodes.iter().all(|node| !node.holds("a")));
}

/// A grant that arrives when the validity has run out makes no lease, and is released.
#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_the_validity_is_no_lease() {
    let clock = RuntimeClock::start();
    let node = slow(clock, Duration::from_millis(9_899), Duration::ZERO);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| o.node_timeout(10 * SECOND));
    let outcome = mutex.try_lock().await;
    assert!(matches!(outcome, Err(Error::NoMajority(_))), "{outcome:?}");
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!node.holds("a") && was_asked_to_release(&node));
}

/// A lease of 10 s that two of three nodes have forgotten. One of these answers late, and the third
/// node is unreachable.
async fn forgotten_during_an_outage(clock: RuntimeClock) -> Lease {
    let nodes: Vec<_> = [0, 0, 0]
        .map(|_| slow(clock, Duration::ZERO, Duration::ZERO))
        .to_vec();
    let client = client(clock, &nodes).await;
    let lease = client.mutex("a").lock().await.unwrap();
    nodes[0].memory().forget();
    nodes[1].set_unreachable(true);
    nodes[2].memory().forget();
    delay(&nodes[2], Duration::ZERO, Duration::from_millis(20));
    lease
}

/// How and when such a lease is lost.
async fn taken_away_during_an_outage() -> (Option<Loss>, Duration) {
    let clock = RuntimeClock::start();
    let lease = forgotten_during_an_outage(clock).await;
    let start = clock.now();
    lease.lost().await;
    let took = clock.now().saturating_duration_since(start);
    (lease.loss(), took)
}

/// One node refuses the renewal and another one fails before the third, whose answer decides.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_majority_forgot_is_lost_at_once_though_a_node_fails() {
    let (loss, took) = taken_away_during_an_outage().await;
    assert_eq!(loss, Some(Loss::TakenAway));
    assert!(took < Duration::from_millis(3_500), "{took:?}");
}

#[cfg(feature = "planted-bugs")]
#[tokio::test(start_paused = true)]
async fn the_test_detects_a_renewal_that_is_decided_too_early() {
    use leasehold::planted::{Bug, plant};
    plant(Some(Bug::DecidesTooEarly));
    let (loss, took) = taken_away_during_an_outage().await;
    plant(None);
    assert_eq!(loss, Some(Loss::NotRenewed));
    assert!(took > 9 * SECOND, "{took:?}");
}

/// The same for an explicit `extend`, and for a release.
#[tokio::test(start_paused = true)]
async fn an_extend_and_a_release_wait_for_the_answers_that_decide() {
    for extends in [true, false] {
        let clock = RuntimeClock::start();
        let lease = forgotten_during_an_outage(clock).await;
        match extends {
            true => {
                let outcome = lease.extend().await;
                assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
            }
            false => assert_eq!(lease.release().await, leasehold::Released::WasLost),
        }
    }
}

/// Simulator seed 78: `max_hold` was over when the answers to a downgrade came, and the reader's lease
/// began after its deadline.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_answered_after_max_hold_is_lost() {
    let clock = RuntimeClock::start();
    let node = slow(clock, Duration::ZERO, 3 * SECOND);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| patient(o).without_renewal().max_hold(4 * SECOND));
    let lease = mutex.lock().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let error = lease.downgrade().await.expect_err("too late");
    let Error::Lost { why, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*why, Loss::MaxHold);
    let next = client.mutex("a").with_options(patient).lock().await;
    drop(next.expect("both claims are released"));
}
