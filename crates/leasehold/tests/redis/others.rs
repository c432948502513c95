//! Known failures of other libraries, one test each. Failures that have a test elsewhere are
//! listed here, so that none is forgotten.
//!
//! | failure of other libraries | test |
//! |---|---|
//! | a mutex held across connecting: a black hole delays every lock | `outages::a_black_holed_node_does_not_delay_calls` |
//! | a short lock always fails with one black-holed node | the same (a TTL of 1 s) |
//! | a failed extend releases everything | `outages::a_stall_of_the_majority_does_not_end_a_lease` |
//! | a retry delay of zero panics | conformance `retries_without_delay` |
//! | a dropped guard releases nothing | conformance `drop_releases` |
//! | one dead node of three fails the acquire and leaves keys | `one_dead_node_of_three_does_not_matter` |
//! | a validity of 2^64 − 1 by underflow | `a_drift_larger_than_the_ttl_is_refused`, `round::validity_counts_from_before_the_send` |
//! | milliseconds sent as seconds | `wire::the_lock_is_a_plain_string_with_a_ttl` |
//! | extend counts the acquired subset | `outages::an_extend_needs_a_majority_of_all_nodes` |
//! | a renewal task panics and the holder is not notified | `outages::a_lost_majority_is_signalled_before_the_deadline` |
//! | an owner per object: a stale drop deletes the live lock | `a_stale_guard_dropped_late_deletes_nothing` |
//! | the remaining validity is never checked | `a_grant_that_arrives_too_late_makes_no_lease` |
//! | split votes with even N block for ever | `wire::an_even_number_of_nodes_makes_progress` |
//! | release of an expired lock hangs | conformance `reports_the_loss_when_released_late` |
//! | a fence key that never expires | `wire::the_fence_expires_a_day_after_its_last_use` |
//! | unlock is a plain DEL | conformance `a_stale_owner_cannot_release` |
//! | `PEXPIRE key 0` deletes the lock | conformance `refuses_bad_durations` |
//! | a retried acquire counts twice | `rules` differential test, `round::a_node_votes_once` |

use std::time::Duration;

use leasehold::{Error, Options};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, client, copies, fresh, lock, patient, pause, until};

#[tokio::test]
async fn one_dead_node_of_three_does_not_matter() {
    let mut servers = RedisServer::start_many(3);
    servers[1].kill();
    let client = fresh(&servers).connect().await.expect("two of three");
    for _ in 0..20 {
        lock(&client, "a").await.release().await;
    }
    servers[1].restart();
    until("free", || copies(&servers, "a") == 0).await;
}

#[tokio::test]
async fn a_drift_larger_than_the_ttl_is_refused() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(Duration::from_millis(10)).drift(LONG));
    let refused = mutex.try_lock().await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(copies(&servers, "a"), 0);
}

#[tokio::test]
async fn a_stale_guard_dropped_late_deletes_nothing() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let short = |o: Options| o.ttl(Duration::from_millis(300)).without_renewal();
    // The same object, twice.
    let mutex = client.mutex("a").with_options(short);
    let stale = mutex.lock_timeout(LONG).await.expect("a lease");
    pause(400).await;
    let live = mutex.with_options(patient).lock().await.expect("a lease");
    drop(stale);
    assert_eq!(client.shutdown(LONG).await, 0);
    assert_eq!(copies(&servers, "a"), 1);
    live.extend().await.expect("still held");
}

/// A grant that arrives when the TTL is nearly over is of no use.
#[tokio::test]
async fn a_grant_that_arrives_too_late_makes_no_lease() {
    let mut servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    lock(&client, "warm").await.release().await;
    let ttl = Duration::from_millis(400);
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(ttl).node_timeout(ttl));
    // On a stalled machine the request may be sent late, so that its answer is not late. The test
    // may then try again.
    for attempts_left in (0..20).rev() {
        servers[0].stop();
        let mutex = mutex.clone();
        let attempt = tokio::spawn(async move { mutex.try_lock().await });
        pause(398).await;
        servers[0].resume();
        let outcome = attempt.await.expect("no panic");
        // 400 ms − 6 ms of drift − the time that has passed leaves nothing, or almost nothing.
        let remaining = match &outcome {
            Ok(Some(lease)) => lease.remaining(),
            _ => Duration::ZERO,
        };
        drop(outcome);
        until("free", || copies(&servers, "a") == 0).await;
        if remaining < Duration::from_millis(50) {
            break;
        }
        assert!(attempts_left > 0, "{remaining:?} were left");
    }
}
