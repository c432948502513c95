//! Long-running behaviour on a paused clock: days pass in a moment, with millisecond precision.

use std::time::Duration;

use leasehold::node::{Call, Node};
use leasehold::{Client, Error, LockState, MemoryNode, Options, Released};
use leasehold_testkit::setup::{lease_of, spawn_lock};
use leasehold_testkit::{RuntimeClock, TestNode};

fn client() -> (Client, MemoryNode) {
    let clock = RuntimeClock::start();
    let node = clock.nodes(1).remove(0);
    (clock.client([node.clone()]), node)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_for_days() {
    let (client, _) = client();
    let lease = client.mutex("a").lock().await.expect("a lease");
    let token = lease.token();
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(lease.is_valid());
        assert!(client.mutex("a").try_lock().await.unwrap().is_none());
    }
    assert_eq!(lease.release().await, Released::Released);
    // After days without use the fence has expired. Tokens must grow all the same.
    tokio::time::sleep(Duration::from_secs(100 * 3600)).await;
    let lease = client.mutex("a").lock().await.expect("a lease");
    assert!(lease.token() > token);
}

#[tokio::test(start_paused = true)]
async fn an_unrenewed_lease_is_lost_to_the_millisecond() {
    let (client, _) = client();
    let mutex = client.mutex("a").with_options(|o| o.without_renewal());
    let start = tokio::time::Instant::now();
    let lease = mutex.lock().await.expect("a lease");
    lease.lost().await;
    // The lease is valid for 10 s − 1 % − 2 ms of drift. The loss is reported 100 ms before that.
    let notified_after = start.elapsed();
    assert!(
        (Duration::from_millis(9_798)..=Duration::from_millis(9_800)).contains(&notified_after),
        "{notified_after:?}"
    );
    // Another client can acquire the lock at 10 s, not before.
    let next = client.mutex("a").lock_timeout(Duration::from_secs(9)).await;
    let next = next.expect("a lease");
    // (The holder released the lock when the lease was lost, so it is free earlier here. The
    // token is larger.)
    assert!(next.token() > lease.token());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_lease_to_the_millisecond() {
    let (client, _) = client();
    let hour = Duration::from_secs(3600);
    let mutex = client.mutex("a").with_options(|o| o.max_hold(hour));
    let start = tokio::time::Instant::now();
    let lease = mutex.lock().await.expect("a lease");
    tokio::time::sleep(hour - Duration::from_secs(1)).await;
    assert!(lease.is_valid());
    lease.lost().await;
    let held = start.elapsed();
    assert!(
        held <= hour && held >= hour - Duration::from_millis(150),
        "{held:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_name_taken_for_its_duration() {
    let (client, node) = client();
    let day = Duration::from_secs(24 * 3600);
    let mutex = client.mutex("a").with_options(|o| o.min_hold(day));
    mutex.lock().await.expect("a lease").release().await;
    tokio::time::sleep(day - Duration::from_secs(1)).await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(node.get(&leasehold::Name::new("a").unwrap()).is_some());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(mutex.try_lock().await.unwrap().is_some());
}

const DELAY: Duration = Duration::from_millis(200);

fn six_attempts(options: Options) -> Options {
    options.attempts(6).retry_delay(DELAY)
}

/// As users of other libraries expect, six attempts with a delay of 200 ms take at least a
/// second.
#[tokio::test(start_paused = true)]
async fn attempts_are_a_retry_delay_apart() {
    let (client, _) = client();
    let _held = client.mutex("a").lock().await.expect("a lease");
    for (barging, jitter) in [(false, 0), (false, 50), (true, 0), (true, 50)] {
        let mutex = client.mutex("a").with_options(|o| {
            let options = six_attempts(o).jitter_percent(jitter);
            if barging { options.barging() } else { options }
        });
        let start = tokio::time::Instant::now();
        let error = mutex.lock().await.expect_err("held");
        let took = start.elapsed();
        let most = DELAY.mul_f64(5.0 + 5.0 * f64::from(jitter) / 100.0) + DELAY / 10;
        assert!(took >= 5 * DELAY && took <= most, "{took:?}");
        let text = error.to_string();
        assert!(matches!(error, Error::Held(_)), "{text}");
        assert!(
            text.starts_with("gave up after 6 attempts: `a` is held"),
            "{text}"
        );
    }
}

/// A call with a limited number of attempts stands in line between them.
#[tokio::test(start_paused = true)]
async fn a_call_with_limited_attempts_gets_its_turn_at_once() {
    let (client, _) = client();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = client.mutex("a").lock().await.expect("a lease");
    let mutex = client.mutex("a").with_options(six_attempts);
    let start = tokio::time::Instant::now();
    let waiting = spawn_lock(mutex);
    tokio::time::sleep(DELAY + DELAY / 2).await;
    held.release().await;
    let lease = lease_of(waiting).await;
    assert!(
        start.elapsed() < DELAY * 3 / 2 + DELAY / 10,
        "{:?}",
        start.elapsed()
    );
    lease.release().await;
}

#[tokio::test(start_paused = true)]
async fn attempts_do_not_shorten_a_timeout() {
    let (client, _) = client();
    let mutex = client.mutex("a").with_options(six_attempts);
    let _held = mutex.lock().await.expect("a lease");
    let (start, long) = (tokio::time::Instant::now(), Duration::from_secs(30));
    let error = mutex.lock_timeout(long).await.expect_err("held");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(mutex.try_lock_for(long).await.unwrap().is_none());
    assert!(start.elapsed() >= 2 * long, "{:?}", start.elapsed());
}

/// All attempts are made during an outage, too, whatever `outage_patience` is.
#[tokio::test(start_paused = true)]
async fn all_attempts_are_made_during_an_outage() {
    let (client, flaky) = flaky();
    flaky.set_unreachable(true);
    let start = tokio::time::Instant::now();
    let patience = Duration::from_millis(1);
    let mutex = client.mutex("a");
    let mutex = mutex.with_options(|o| six_attempts(o).outage_patience(patience));
    let error = mutex.lock().await.expect_err("down");
    assert!(start.elapsed() >= 5 * DELAY, "{:?}", start.elapsed());
    let text = error.to_string();
    assert!(
        text.starts_with("gave up after 6 attempts: no majority for `a`"),
        "{text}"
    );
}

/// A client, and its node, which can become unreachable.
fn flaky() -> (Client, TestNode) {
    let clock = RuntimeClock::start();
    let node = TestNode::new(&clock.nodes(1)[0]).without_notifications();
    (clock.client([node.clone()]), node)
}

/// A failed renewal does not affect the lease, and the next successful one keeps it alive.
#[tokio::test(start_paused = true)]
async fn a_lease_survives_an_outage_shorter_than_its_validity() {
    let (client, flaky) = flaky();
    let lease = client.mutex("a").lock().await.expect("a lease");
    for outage in [3_000, 6_000] {
        // The last renewal was at most 3.3 s ago, and the lease is valid for 9.8 s from it.
        tokio::time::sleep(Duration::from_millis(3_400)).await;
        flaky.set_unreachable(true);
        let before = lease.deadline();
        tokio::time::sleep(Duration::from_millis(outage)).await;
        assert_eq!(
            lease.deadline(),
            before,
            "a failed renewal changed the lease"
        );
        assert!(lease.is_valid());
        flaky.set_unreachable(false);
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(lease.is_valid() && lease.deadline() > before);
        tokio::time::sleep(Duration::from_millis(3_333)).await;
    }
    // A longer outage is not survived.
    flaky.set_unreachable(true);
    lease.lost().await;
    assert!(!lease.is_valid());
    assert_eq!(lease.release().await, Released::WasLost);
}

/// Forwards calls after a delay, as a network does.
struct Distant(MemoryNode);

impl Node for Distant {
    fn label(&self) -> &str {
        "distant"
    }

    fn submit(&self, call: Call) {
        let node = self.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            node.submit(call);
        });
    }
}

/// For a name that it does not know, a node assumes a fence that advances with its clock. A
/// client whose own clock is further behind than that must move its token above the fence (found
/// by the simulator).
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_days_behind_costs_only_a_round_trip() {
    let node = RuntimeClock::start().nodes(1).remove(0);
    tokio::time::sleep(Duration::from_secs(48 * 3600)).await;
    let clock = RuntimeClock::start().behind(Duration::from_secs(10 * 24 * 3600));
    let client = clock.client([Distant(node)]);
    let start = tokio::time::Instant::now();
    let lease = client.mutex("new").try_lock().await.expect("a majority");
    assert!(lease.is_some());
    let took = start.elapsed();
    assert!(took <= Duration::from_millis(4 * 6), "{took:?}");
}

/// A node that does not answer a survey within a minute.
struct Silent;

impl Node for Silent {
    fn label(&self) -> &str {
        "silent"
    }

    fn submit(&self, call: Call) {
        drop(call);
    }

    fn survey(&self, _: Option<&leasehold::Name>) -> leasehold::node::Survey {
        Box::pin(async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(Vec::new())
        })
    }
}

/// An inspection waits for a silent node only while its answer could change the outcome. The
/// clock is paused, so the time that passes is the time that was slept.
#[tokio::test(start_paused = true)]
async fn a_silent_minority_does_not_delay_an_inspection() {
    let client = |silent: usize| {
        let mut builder = Client::builder().time_source(RuntimeClock::start());
        for node in 0..3 {
            builder = match node < silent {
                true => builder.custom_node(Silent),
                false => builder.custom_node(MemoryNode::new("memory")),
            };
        }
        builder.build().expect("a client")
    };
    let start = tokio::time::Instant::now();
    let inspection = client(1).inspect("a").await.expect("a name");
    assert!(matches!(inspection.state(), LockState::NotHeld));
    let missing: Vec<_> = inspection.missing().map(|(node, _)| node).collect();
    assert_eq!(missing, ["silent"]);
    let listing = client(1).inspect_all().await.expect("a majority");
    assert_eq!(listing.missing.len(), 1);
    assert!(start.elapsed() < Duration::from_secs(1), "{start:?}");

    let start = tokio::time::Instant::now();
    let inspection = client(2).inspect("a").await.expect("a name");
    assert!(!inspection.is_conclusive());
    assert!(start.elapsed() >= Duration::from_secs(5), "{start:?}");
    assert!(matches!(
        client(2).inspect_all().await,
        Err(leasehold::Error::NoMajority(refusal)) if refusal.name.is_none()
    ));
}
