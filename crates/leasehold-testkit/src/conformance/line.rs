//! Waiting in line: the order, and waiters that leave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use leasehold::{Client, Moment};

use super::{Case, pause, taken};
use crate::setup::{in_line, lease_of, spawn_lock};

/// Waiters are served in the order of their arrival, whatever the clients' clocks show.
pub async fn serves_waiters_in_order_of_arrival(case: Case) {
    let holder = case.client().await;
    // A new node grants only its lowest possible token for a while: all waiters that arrive in
    // that time have equal tickets.
    pause(200).await;
    let held = taken(&holder.mutex("a")).await;
    let order = Arc::new(StdMutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for place in 0..8 {
        let client = case.client().await;
        let waiter = in_line(client.mutex("a")).await;
        // Waiters that arrive within the same millisecond may have equal tickets.
        pause(2).await;
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let lease = lease_of(waiter).await;
            order.lock().expect("no panic").push((place, lease.token()));
            lease.release().await;
        }));
    }
    held.release().await;
    for task in tasks {
        task.await.expect("no panic");
    }
    let order = order.lock().expect("no panic").clone();
    let places: Vec<_> = order.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, (0..8).collect::<Vec<_>>());
    assert!(
        order.is_sorted_by(|(_, one), (_, next)| one < next),
        "{order:?}"
    );
}

/// A waiter is not overtaken by later callers that do not stand in line.
pub async fn no_caller_jumps_the_line(case: Case) {
    let (one, two, late) = (
        case.client().await,
        case.client().await,
        case.client().await,
    );
    for _ in 0..20 {
        let held = taken(&one.mutex("a")).await;
        let waiter = in_line(two.mutex("a")).await;
        held.release().await;
        // Either it is the waiter's turn, or the waiter already has the lock.
        if let Some(lease) = late.mutex("a").try_lock().await.expect("a majority") {
            assert!(waiter.is_finished(), "jumped the line");
            lease.release().await;
        }
        lease_of(waiter).await.release().await;
        case.until_free("a").await;
    }
}

/// A waiter that gives up leaves the line at once, and the next one is served.
pub async fn a_waiter_that_gives_up_does_not_delay_others(case: Case) {
    let (one, two, three) = (
        case.client().await,
        case.client().await,
        case.client().await,
    );
    let held = taken(&one.mutex("a")).await;
    let first = in_line(two.mutex("a")).await;
    let second = in_line(three.mutex("a")).await;
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    held.release().await;
    lease_of(second).await.release().await;
    case.until_free("a").await;
}

/// A waiter that is cancelled at any moment around its turn passes the turn on.
pub async fn a_waiter_cancelled_at_its_turn_passes_the_turn_on(case: Case) {
    let clients = [
        case.client().await,
        case.client().await,
        case.client().await,
    ];
    for round in 0..30 {
        let held = taken(&clients[0].mutex("a")).await;
        let first = in_line(clients[1].mutex("a")).await;
        let second = in_line(clients[2].mutex("a")).await;
        let started = Moment::now();
        let release = tokio::spawn(held.release());
        tokio::time::sleep(Duration::from_micros(round * 50)).await;
        first.abort();
        // If the waiter was quicker, its lease is dropped here.
        drop(first.await);
        lease_of(second).await.release().await;
        release.await.expect("no panic");
        let waited = Moment::now().saturating_duration_since(started);
        assert!(waited < super::TTL / 2, "left to the TTL");
        case.until_free("a").await;
    }
}

/// A waiter whose process dies is skipped after seconds, not after a TTL.
pub async fn a_dead_waiter_delays_others_only_briefly(case: Case) {
    let (one, three) = (case.client().await, case.client().await);
    let held = taken(&one.mutex("a")).await;
    let builder = case.builder();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let client: Client = builder.connect().await.expect("the nodes work");
            drop(in_line(client.mutex("a")).await);
            // None of its code runs any more, not even for cleaning up.
            std::mem::forget(client);
        });
        runtime.shutdown_background();
        sender.send(()).expect("the receiver is open");
    });
    let dead = tokio::task::spawn_blocking(move || receiver.recv());
    dead.await
        .expect("no panic")
        .expect("the waiter's runtime was dropped");
    let next = in_line(three.mutex("a")).await;
    held.release().await;
    let started = Moment::now();
    lease_of(next).await.release().await;
    let waited = Moment::now().saturating_duration_since(started);
    assert!(waited < super::TTL / 2, "{waited:?}");
}

/// Tasks of one client pass the claim on among themselves, each with a larger token. Tasks of
/// another client get their turn in between.
pub async fn passes_a_claim_from_task_to_task(case: Case) {
    let clients = [case.client().await, case.client().await];
    let held = taken(&clients[0].mutex("a")).await;
    let last = Arc::new(StdMutex::new((0, 0, 0)));
    let passed = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..40)
        .map(|task| {
            let mutex = clients[task % 2].mutex("a");
            let (last, passed) = (Arc::clone(&last), Arc::clone(&passed));
            tokio::spawn(async move {
                for _ in 0..5 {
                    let lease = mutex.lock().await.expect("a lease");
                    {
                        let (token, client, run) = &mut *last.lock().expect("no panic");
                        assert!(lease.token() > *token, "tokens grow");
                        passed
                            .fetch_add(usize::from(lease.token() == *token + 1), Ordering::Relaxed);
                        *run = if *client == task % 2 { *run + 1 } else { 1 };
                        assert!(*run <= 100, "the other client starves");
                        (*token, *client) = (lease.token(), task % 2);
                    }
                    lease.release().await;
                }
            })
        })
        .collect();
    pause(50).await;
    held.release().await;
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!(passed.load(Ordering::Relaxed) > 0, "none was passed on");
    case.until_free("a").await;
}

/// A barging caller acquires a free lock, too, but stands in no line.
pub async fn a_barging_caller_acquires_a_free_lock(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = taken(&one.mutex("a")).await;
    let mutex = two.mutex("a").with_options(|o| o.barging());
    let waiter = spawn_lock(mutex);
    pause(50).await;
    let seen = one.inspect("a").await.expect("a majority");
    assert!(seen.sightings().all(|lock| lock.waiters.unwrap_or(0) == 0));
    held.release().await;
    lease_of(waiter).await.release().await;
}
