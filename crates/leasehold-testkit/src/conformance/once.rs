//! Work that is done once per period.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Client, Done, Error, Moment, Once, OnceError};

use super::{Case, is_taken, pause, short};

/// Longer than any case takes.
const PERIOD: Duration = Duration::from_secs(3600);

/// The error of work that fails.
type Failed = &'static str;

async fn run(once: &Once, bytes: &[u8]) -> Result<Done, OnceError<Failed>> {
    once.run(async |_| Ok(bytes.to_vec())).await
}

/// A caller on a client of its own that counts its runs, which take a while.
async fn counted(client: Client, number: u8, runs: Arc<AtomicUsize>) -> Done {
    let once = client.once("a", PERIOD);
    let work = async |_: &leasehold::Lease| {
        runs.fetch_add(1, Ordering::SeqCst);
        pause(50).await;
        Ok::<_, Failed>(vec![number; 3])
    };
    once.run(work).await.expect("a result")
}

/// One of 8 clients runs, and all get the same bytes and token.
pub async fn one_of_8_runs_and_all_get_the_result(case: Case) {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut calls = Vec::new();
    for number in 0..8 {
        let client = case.client().await;
        calls.push(tokio::spawn(counted(client, number, Arc::clone(&runs))));
    }
    let mut all = Vec::new();
    for call in calls {
        all.push(call.await.expect("no panic"));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(all.iter().filter(|done| done.ran_here).count(), 1);
    for done in &all {
        assert_eq!(
            (&done.bytes, done.token, done.at),
            (&all[0].bytes, all[0].token, all[0].at)
        );
    }
    // Also those that come later, and those that only look.
    let later = case.client().await;
    let done = counted(later.clone(), 9, Arc::clone(&runs)).await;
    assert_eq!((&done.bytes, done.ran_here), (&all[0].bytes, false));
    let seen = later.once("a", PERIOD).peek().await.expect("a majority");
    assert_eq!(seen.expect("stored").token, all[0].token);
    assert!(is_taken(&later.mutex("a")).await, "the name is kept");
}

/// Tasks of one client share one place in line.
pub async fn a_thousand_tasks_share_one_run(case: Case) {
    let (client, runs) = (case.client().await, Arc::new(AtomicUsize::new(0)));
    let calls = (0..1000).map(|_| tokio::spawn(counted(client.clone(), 7, Arc::clone(&runs))));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(*call.await.expect("no panic").bytes, [7; 3]);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Work that fails keeps nothing, and the next in line runs, in this process and in another.
pub async fn after_a_failure_the_next_runs(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let failing = one.once("a", PERIOD);
    let waiting = [
        two.once("a", PERIOD),
        failing.clone(),
        two.once("a", PERIOD),
    ];
    let mut waiters = Vec::new();
    let failed = failing.run(async |_| {
        for once in waiting {
            waiters.push(tokio::spawn(async move { run(&once, b"fine").await }));
        }
        pause(100).await;
        Err("no")
    });
    let failed = failed.await;
    assert!(matches!(failed, Err(OnceError::Work("no"))), "{failed:?}");
    let mut ran = 0;
    for waiter in waiters {
        let done = waiter.await.expect("no panic").expect("a result");
        assert_eq!(&*done.bytes, b"fine");
        ran += usize::from(done.ran_here);
    }
    assert_eq!(ran, 1);
}

/// The runner disappears: its lock ends with its TTL, and the next in line runs.
pub async fn after_a_killed_runner_the_next_runs(case: Case) {
    let (dead, living) = (case.client().await, case.client().await);
    let lease = short(dead.mutex("a")).lock().await.expect("a lease");
    let token = lease.token();
    let done = run(&living.once("a", PERIOD), b"fine")
        .await
        .expect("a result");
    assert!(done.ran_here && done.token > token);
    drop(lease);
}

/// When the period is over, the work is done again, and not before.
pub async fn runs_again_after_the_period(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let period = Duration::from_secs(2);
    let first = one
        .once("a", period)
        .run(async |_| Ok::<_, Failed>(vec![1]));
    let first = first.await.expect("a result");
    // The period began before the call returned.
    let before = Moment::now();
    let mut done = run(&two.once("a", period), &[2]).await.expect("a result");
    let mut seen = before;
    while !done.ran_here {
        assert_eq!((done.token, &*done.bytes), (first.token, &[1][..]));
        seen = Moment::now();
        pause(20).await;
        done = run(&two.once("a", period), &[2]).await.expect("a result");
    }
    assert!(done.token > first.token);
    // The nodes' clocks may be faster than this one by the drift allowance.
    let lasted = seen.saturating_duration_since(before);
    assert!(lasted <= period + Duration::from_secs(1), "{lasted:?}");
}

/// `clear` deletes the result, and nothing else.
pub async fn a_cleared_result_is_run_again(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let once = one.once("a", PERIOD);
    assert!(
        !once.clear().await.expect("a majority"),
        "nothing is stored"
    );
    run(&once, b"old").await.expect("a result");
    assert!(two.once("a", PERIOD).clear().await.expect("a majority"));
    assert_eq!(case.locked("a"), 0);
    assert_eq!(once.peek().await.expect("a majority"), None);
    assert_eq!(&*run(&once, b"new").await.expect("a result").bytes, b"new");
    // A lock that is held, or kept without a result, stays.
    let mutex = one
        .mutex("b")
        .with_options(|o| o.min_hold(Duration::from_secs(60)));
    let lease = mutex.lock().await.expect("a lease");
    assert!(!two.once("b", PERIOD).clear().await.expect("a majority"));
    assert!(lease.is_valid() && is_taken(&two.mutex("b")).await);
    lease.release().await;
    assert!(!two.once("b", PERIOD).clear().await.expect("a majority"));
    assert!(is_taken(&two.mutex("b")).await);
}

/// The longest result is stored as it is. A longer one is refused, and the next in line runs.
pub async fn refuses_a_result_that_is_too_long(case: Case) {
    let client = case.client().await;
    let once = client.once("a", PERIOD);
    let long: Vec<u8> = (0..=u16::MAX).map(|byte| byte as u8).collect();
    let error = run(&once, &[&*long, b"x"].concat()).await;
    assert!(
        matches!(error, Err(OnceError::Lease(Error::Invalid(_)))),
        "{error:?}"
    );
    assert!(run(&once, &long).await.expect("a result").ran_here);
    let other = case.client().await.once("a", PERIOD);
    let done = run(&other, b"").await.expect("a result");
    assert!(!done.ran_here);
    assert_eq!(*done.bytes, *long);
    for period in [Duration::ZERO, Duration::from_secs(367 * 24 * 3600)] {
        let error = run(&client.once("b", period), b"").await;
        assert!(
            matches!(error, Err(OnceError::Lease(Error::Invalid(_)))),
            "{error:?}"
        );
    }
    let year = Duration::from_secs(366 * 24 * 3600);
    assert!(
        run(&client.once("b", year), b"")
            .await
            .expect("a result")
            .ran_here
    );
    assert!(
        !run(&client.once("b", year), b"")
            .await
            .expect("a result")
            .ran_here
    );
}

/// `skip` does not wait for a run in progress.
pub async fn skips_a_run_in_progress(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let skipping = two.once("a", PERIOD).skip();
    let done = one.once("a", PERIOD).with_options(|o| o.label("at work"));
    let done = done.run(async |lease| {
        match run(&skipping, b"").await {
            Err(OnceError::Running(holder)) => {
                assert_eq!(holder.token, Some(lease.token()));
                assert_eq!(holder.label.as_deref(), Some("at work"));
            }
            other => panic!("{other:?}"),
        }
        Ok::<_, Failed>(vec![1])
    });
    let done = done.await.expect("a result");
    let seen = run(&skipping, b"").await.expect("a result");
    assert_eq!((seen.bytes, seen.ran_here), (done.bytes, false));
}

/// A call waits no longer than its options say, also behind another task of its client.
pub async fn gives_up_waiting_for_a_result_in_time(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let wait = |once: Once| {
        once.with_options(|o| o.wait(leasehold::Wait::For(Duration::from_millis(300))))
    };
    let calls = [wait(two.once("a", PERIOD)), wait(two.once("a", PERIOD))];
    let done = one.once("a", PERIOD).run(async |_| {
        let calls = calls.map(|once| tokio::spawn(async move { run(&once, b"").await }));
        for call in calls {
            match call.await.expect("no panic") {
                Err(OnceError::Lease(Error::TimedOut { waited, .. })) => {
                    assert!(waited >= Duration::from_millis(300), "{waited:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        Ok::<_, Failed>(vec![])
    });
    done.await.expect("a result");
    case.client()
        .await
        .once("a", PERIOD)
        .clear()
        .await
        .expect("a majority");
    assert_eq!(case.locked("a"), 0, "something is left");
}

/// A call that is dropped leaves nothing, and the next in line runs.
pub async fn a_cancelled_run_leaves_nothing(case: Case) {
    let client = case.client().await;
    let once = client.once("a", PERIOD);
    let started = Arc::new(tokio::sync::Notify::new());
    let signal = Arc::clone(&started);
    let running = once.clone();
    let call = tokio::spawn(async move {
        let work = async |_: &leasehold::Lease| {
            signal.notify_one();
            std::future::pending::<Result<_, Failed>>().await
        };
        running.run(work).await
    });
    started.notified().await;
    let behind = tokio::spawn(async move { run(&once, b"fine").await });
    pause(50).await;
    call.abort();
    assert!(behind.await.expect("no panic").expect("a result").ran_here);
}
