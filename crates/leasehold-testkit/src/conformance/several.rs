//! Several names at once, and several guards of one lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Error, Released};

use super::{Case, is_taken, pause, taken};

/// A call that cannot acquire one of its names holds none of them.
pub async fn acquires_all_names_or_none(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = taken(&one.mutex("b")).await;
    let all = two.mutexes(["c", "b", "a"]);
    assert!(all.try_lock().await.expect("a majority").is_none());
    for free in ["a", "c"] {
        case.until_free(free).await;
    }
    let error = all.lock_timeout(Duration::from_millis(300)).await;
    let error = error.expect_err("`b` is held");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("`b`"), "{error}");
    held.release().await;
    let leases = all.lock().await.expect("all are free");
    let names: Vec<_> = leases.tokens().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["c", "b", "a"], "in the order given");
    for name in ["a", "b", "c"] {
        assert!(is_taken(&one.mutex(name)).await);
        assert!(leases.token(name).is_some_and(|token| token > 0));
    }
    assert_eq!(leases.token("d"), None);
    assert_eq!(leases.release().await, Released::Released);
    for name in ["a", "b", "c"] {
        case.until_free(name).await;
    }
}

/// Calls with overlapping names in opposite orders all finish, and exclude each other.
pub async fn opposite_orders_do_not_deadlock(case: Case) {
    let holders: Arc<[AtomicU32; 3]> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..8 {
        let (client, holders) = (case.client().await, Arc::clone(&holders));
        tasks.spawn(async move {
            for round in 0..3 {
                let first = (index + round) % 3;
                let mut chosen = vec![first, (first + 1) % 3];
                if index % 2 == 0 {
                    chosen.reverse();
                }
                let names = chosen.iter().map(|name| format!("a{name}"));
                let leases = client.mutexes(names).lock().await.expect("leases");
                for name in &chosen {
                    let others = holders[*name].fetch_add(1, Ordering::SeqCst);
                    assert_eq!(others, 0, "two holders of a{name}");
                }
                pause(2).await;
                for name in &chosen {
                    holders[*name].fetch_sub(1, Ordering::SeqCst);
                }
                assert_eq!(leases.release().await, Released::Released);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("it finishes");
    }
    for name in ["a0", "a1", "a2"] {
        case.until_free(name).await;
    }
}

/// When one of the names is lost, the work under all of them ends.
pub async fn losing_one_name_ends_the_work(case: Case) {
    let client = case.client().await;
    let both = client.mutexes(["a", "b"]);
    let error = both
        .with(async |leases| {
            let lost = leases.get("b").expect("one of the names");
            client
                .break_lock("b", &lost.owner_id())
                .await
                .expect("broken");
            assert!(lost.extend().await.is_err());
            assert!(!leases.is_valid());
            std::future::pending::<()>().await;
        })
        .await
        .expect_err("lost");
    let Error::Lost { name, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(name.to_string(), "b");
    case.until_free("a").await;
}

/// A call that is cancelled while it waits for one name releases the others.
pub async fn a_cancelled_call_for_several_names_leaves_nothing(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = taken(&one.mutex("b")).await;
    let both = two.mutexes(["a", "b"]);
    let waiting = tokio::spawn(both.lock());
    // It holds `a` while it waits for `b`.
    while !is_taken(&one.mutex("a")).await {
        pause(5).await;
    }
    waiting.abort();
    case.until_free("a").await;
    held.release().await;
    case.until_free("b").await;
}

/// `min_hold` keeps names that were acquired together, and none of a call that failed.
pub async fn min_hold_keeps_all_names_or_none(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = taken(&one.mutex("b")).await;
    let min_hold = Duration::from_secs(3600);
    let both = two
        .mutexes(["a", "b"])
        .with_options(|options| options.min_hold(min_hold));
    assert!(both.try_lock().await.expect("a majority").is_none());
    case.until_free("a").await;
    let timed_out = both.lock_timeout(Duration::from_millis(300)).await;
    assert!(timed_out.is_err());
    case.until_free("a").await;
    held.release().await;
    let leases = both.lock().await.expect("both are free");
    leases.release().await;
    for name in ["a", "b"] {
        assert!(is_taken(&one.mutex(name)).await, "{name} is kept");
    }
}

/// A lease that is held again is released by its last guard.
pub async fn the_last_guard_releases(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = taken(&one.mutex("a")).await;
    let again = lease.again().expect("held");
    assert_eq!(again.token(), lease.token());
    assert_eq!(lease.release().await, Released::StillHeld);
    assert!(is_taken(&two.mutex("a")).await);
    again.extend().await.expect("still held");
    assert_eq!(again.release().await, Released::Released);
    drop(two.mutex("a").lock().await.expect("free"));
}
