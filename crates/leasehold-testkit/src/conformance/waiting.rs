//! Calls that wait, and calls that do not.

use std::time::Duration;

use leasehold::{Error, Moment, Wait};

use super::{Case, ending, pause, taken};
use crate::setup::{lease_of, spawn_lock};

/// `lock` waits until the holder releases the lock.
pub async fn waits_for_its_turn(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = taken(&one.mutex("a")).await;
    let token = lease.token();
    let waiter = spawn_lock(two.mutex("a"));
    pause(100).await;
    assert!(!waiter.is_finished());
    lease.release().await;
    let next = lease_of(waiter).await;
    assert!(next.token() > token);
}

/// `lock_timeout` waits that long, and the error names the holder.
pub async fn gives_up_waiting_in_time(case: Case) {
    let client = case.client().await;
    let _lease = taken(&client.mutex("a")).await;
    let (start, wait) = (Moment::now(), Duration::from_millis(300));
    match client.mutex("a").lock_timeout(wait).await {
        Err(Error::TimedOut {
            waited, refusal, ..
        }) => {
            assert!(waited >= wait);
            assert!(refusal.holder().is_some());
        }
        other => panic!("{other:?}"),
    }
    let waited = Moment::now().saturating_duration_since(start);
    assert!(
        waited >= wait && waited < Duration::from_secs(20),
        "{waited:?}"
    );
}

/// `Wait::No` returns [`Error::Held`] at once.
pub async fn does_not_wait_with_wait_no(case: Case) {
    let client = case.client().await;
    let _lease = taken(&client.mutex("a")).await;
    let mutex = client.mutex("a").with_options(|o| o.wait(Wait::No));
    let refused = mutex.lock().await;
    assert!(matches!(refused, Err(Error::Held(_))), "{refused:?}");
}

/// `attempts` are at least `retry_delay` apart, and the error says how many were made.
pub async fn counts_its_attempts(case: Case) {
    let client = case.client().await;
    let _lease = taken(&client.mutex("a")).await;
    let delay = Duration::from_millis(100);
    let mutex = client.mutex("a");
    let mutex = mutex.with_options(|o| o.attempts(3).retry_delay(delay));
    let before = Moment::now();
    let refused = mutex.lock().await.expect_err("held");
    assert!(matches!(refused, Error::Held(_)), "{refused:?}");
    assert!(Moment::now() >= before + 2 * delay, "gave up early");
    let text = refused.to_string();
    assert!(text.starts_with("gave up after 3 attempts: `a`"), "{text}");
}

/// A retry delay of zero is valid.
pub async fn retries_without_delay(case: Case) {
    let client = case.client().await;
    let lease = ending(client.mutex("a")).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| o.retry_delay(Duration::ZERO).jitter_percent(100));
    let next = mutex.lock().await.expect("a lease");
    assert!(!lease.is_valid() && next.is_valid());
}

/// The error names the holder, and says when the lock expires.
pub async fn the_error_names_the_holder(case: Case) {
    let client = case.client().await;
    let mutex = client
        .mutex("a")
        .with_options(|o| o.label("nightly: backup"));
    let lease = taken(&mutex).await;
    let error = client.mutex("a").lock_timeout(Duration::ZERO).await;
    let Err(Error::TimedOut { refusal, .. }) = &error else {
        panic!("{error:?}");
    };
    let holder = refusal.holder().expect("known");
    assert_eq!(holder.token, Some(lease.token()));
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.label.as_deref(), Some("nightly: backup"));
    let remaining = refusal.remaining().expect("known");
    assert!(remaining <= super::TTL);
    // The owner's secret appears nowhere.
    let values = case.deployment.values(b"a");
    let value = values.iter().flatten().next().expect("a value");
    let secret = String::from_utf8_lossy(&value[..40]).into_owned();
    let error = error.expect_err("held");
    assert!(!format!("{error} {error:?} {lease:?} {client:?}").contains(&secret));
}
