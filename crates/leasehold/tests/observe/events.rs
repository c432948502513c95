//! The events of calls and leases, and the counters beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::node::Verb;
use leasehold::observe::{End, Event, HandOver, Outcome};
use leasehold::{Client, Loss, MemoryNode, Mode, Moment, Options, Released, TimeSource};
use leasehold_testkit::setup::{in_line, lease_of, patient, pause, spawn_lock, until};
use leasehold_testkit::{RedisServer, RuntimeClock, TestNode};

use crate::{Recorder, in_memory, recorded};

#[tokio::test]
async fn a_pair_is_an_acquire_and_an_end() {
    let (seen, client) = recorded();
    let lease = client.mutex("orders/42").lock().await.unwrap();
    let token = lease.token();
    assert_eq!(client.stats().leases_held, 1);
    assert_eq!(lease.release().await, Released::Released);
    let calls = seen.acquires();
    let [call] = &*calls else {
        panic!("{calls:?}");
    };
    assert_eq!(call.name.to_string(), "orders/42");
    assert_eq!(&*call.class, "orders/*");
    assert_eq!((call.outcome, call.token), (Outcome::Granted, Some(token)));
    assert_eq!((call.contended, call.hand_over), (false, None));
    assert_eq!(call.mode, Mode::Exclusive);
    let ended = seen.ended();
    let [end] = &*ended else {
        panic!("{ended:?}");
    };
    assert_eq!((end.end, end.loss, end.token), (End::Released, None, token));
    assert_eq!(&*end.class, "orders/*");
    let stats = client.stats();
    assert_eq!((stats.acquires.granted, stats.ended.released), (1, 1));
    assert_eq!(
        (stats.leases_held, stats.contended, stats.waiters),
        (0, 0, 0)
    );
    assert_eq!((stats.nodes[0].requests, stats.nodes[0].errors), (2, 0));
    // Requests are delivered by another task.
    let verbs = || {
        seen.pick(|event| match event {
            Event::Request(request) => Some((request.verb, request.error.is_some())),
            _ => None,
        })
    };
    until("both requests are reported", || verbs().len() == 2).await;
    assert_eq!(verbs()[0], (Verb::Acquire, false));
    assert!(matches!(verbs()[1], (Verb::Release { .. }, false)));
}

/// Every outcome has an event and a counter, also that of a call that is dropped.
#[tokio::test]
async fn every_outcome_is_counted_and_reported() {
    let recorder = Recorder::default();
    let node = TestNode::new(&MemoryNode::new("memory"));
    let builder = Client::builder().custom_node(node.clone());
    let client = builder.observer(recorder.clone()).build().unwrap();
    let mutex = client.mutex("a");
    let held = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let short = Duration::from_millis(5);
    assert!(mutex.try_lock_for(short).await.unwrap().is_none());
    let cancelled = tokio::time::timeout(short, mutex.lock()).await;
    assert!(cancelled.is_err());
    let invalid = mutex.clone().with_options(|o| o.ttl(Duration::ZERO));
    invalid.lock().await.unwrap_err();
    node.set_unreachable(true);
    client.mutex("b").try_lock().await.unwrap_err();
    node.set_unreachable(false);
    let outcomes: Vec<_> = recorder
        .acquires()
        .iter()
        .map(|call| call.outcome)
        .collect();
    let expected = [
        Outcome::Granted,
        Outcome::Held,
        Outcome::TimedOut,
        Outcome::Cancelled,
        Outcome::Failed,
        Outcome::NoMajority,
    ];
    assert_eq!(outcomes, expected);
    let counted = client.stats().acquires;
    let all = [
        counted.granted,
        counted.held,
        counted.timed_out,
        counted.cancelled,
        counted.failed,
        counted.no_majority,
    ];
    assert_eq!(all, [1; 6]);
    // Three found the lock taken. Two of them began to wait, and none of them waits any more.
    let contended = recorder.acquires().iter().filter(|c| c.contended).count();
    let waited = recorder.acquires().iter().filter(|c| c.did_wait).count();
    assert_eq!((contended, waited, recorder.waiting()), (3, 2, 2));
    assert_eq!((client.stats().contended, client.stats().waiters), (3, 0));
    assert!(client.stats().nodes[0].errors >= 1);
    drop(held);
}

/// The result of a period is no failed attempt at the lock. To another primitive, the name is taken.
#[tokio::test]
async fn a_stored_result_is_an_outcome_of_its_own() {
    let (seen, client) = recorded();
    let once = client.once("rates", Duration::from_secs(60));
    let run = async |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        let done = once.run(async |_| Ok::<_, std::io::Error>(bytes)).await;
        done.unwrap().ran_here
    };
    assert!(run(b"1.09").await);
    assert!(!run(b"1.10").await);
    assert!(client.mutex("rates").try_lock().await.unwrap().is_none());
    let calls = seen.acquires();
    let outcomes: Vec<_> = calls.iter().map(|call| call.outcome).collect();
    assert_eq!(outcomes, [Outcome::Granted, Outcome::Result, Outcome::Held]);
    assert_eq!((calls[1].contended, seen.waiting()), (false, 0));
    let counted = client.stats().acquires;
    assert_eq!((counted.granted, counted.result, counted.held), (1, 1, 1));
}

#[tokio::test]
async fn a_task_that_waits_is_counted_and_gets_a_local_hand_over() {
    let (seen, client) = recorded();
    let mutex = client.mutex("a").with_options(patient);
    // A claim is passed on only within 10 ms, so this may need some tries.
    until("a claim was passed on", || {
        client.stats().hand_overs.local > 0 || {
            let (mutex, client) = (mutex.clone(), client.clone());
            tokio::spawn(async move {
                let held = mutex.lock().await.unwrap();
                let next = tokio::spawn(mutex.lock());
                while client.stats().waiters == 0 && !next.is_finished() {
                    tokio::task::yield_now().await;
                }
                held.release().await;
                next.await.unwrap().unwrap().release().await;
            });
            false
        }
    })
    .await;
    until("all are done", || {
        client.stats().leases_held == 0 && client.stats().waiters == 0
    })
    .await;
    let local = |call: &leasehold::observe::Acquire| call.hand_over == Some(HandOver::Local);
    let calls = seen.acquires();
    let passed: Vec<_> = calls.iter().filter(|call| local(call)).collect();
    assert_eq!(passed.len() as u64, client.stats().hand_overs.local);
    assert!(passed.iter().all(|call| call.contended));
    assert_eq!(
        seen.ended().len(),
        calls.len(),
        "each hold counts by itself"
    );
}

#[tokio::test]
async fn a_waiter_of_another_client_gets_a_hand_over_by_the_node() {
    let server = [RedisServer::start()];
    let holder = leasehold_testkit::setup::client(&server).await;
    let recorder = Recorder::default();
    let builder = leasehold_testkit::setup::fresh(&server).observer(recorder.clone());
    let client = builder.connect().await.unwrap();
    let mut tries = 0;
    while client.stats().hand_overs.node == 0 {
        tries += 1;
        assert!(tries < 50, "no lease was handed over");
        let held = leasehold_testkit::setup::lock(&holder, "a").await;
        let waiter = in_line(client.mutex("a").with_options(patient)).await;
        assert_eq!(client.stats().waiters, 1);
        held.release().await;
        let lease = lease_of(waiter).await;
        // Its first renewal confirms it, and is not a sign of little slack.
        until("the lease is confirmed", || {
            recorder.renewals().iter().any(|r| r.token == lease.token())
        })
        .await;
        lease.release().await;
    }
    let calls = recorder.acquires();
    let call = calls.last().unwrap();
    assert_eq!(
        (call.hand_over, call.contended),
        (Some(HandOver::Node), true)
    );
    assert!(recorder.renewals().last().unwrap().confirms_hand_over);
}

/// A client of a node in memory, on the clock of the runtime.
fn on_paused_clock() -> (Recorder, TestNode, Client) {
    let (recorder, clock) = (Recorder::default(), RuntimeClock::start());
    let node = TestNode::new(&clock.nodes(1).remove(0));
    let builder = Client::builder().time_source(clock).without_restart_guard();
    let builder = builder.custom_node(node.clone());
    let client = builder.observer(recorder.clone()).build().unwrap();
    (recorder, node, client)
}

/// For a second after it found a lock taken, a client joins the line at once. The lock may be free by
/// then, and nobody hands it over.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_taken_before_is_not_contended() {
    let (recorder, node, client) = on_paused_clock();
    let mutex = client.mutex("a");
    let held = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    held.release().await;
    let _ = node.take_requests();
    let held = mutex.lock().await.unwrap();
    assert_eq!(node.take_requests()[0].0, Verb::Wait);
    let seen = |call: usize| {
        let call = &recorder.acquires()[call];
        (call.contended, call.did_wait, call.hand_over)
    };
    assert_eq!((seen(2), recorder.waiting()), ((false, false, None), 0));
    // A task of the client that waits for another one. After 10 ms, a claim is not passed on.
    assert!(mutex.try_lock().await.unwrap().is_none());
    let next = spawn_lock(mutex.clone());
    until("it waits", || client.stats().waiters == 1).await;
    pause(20).await;
    let _ = node.take_requests();
    held.release().await;
    lease_of(next).await.release().await;
    assert_eq!(node.take_requests()[1].0, Verb::Wait);
    assert_eq!((seen(4), recorder.waiting()), ((true, true, None), 1));
    assert_eq!(client.stats().hand_overs.node, 0);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_contended_only_if_there_is_none() {
    let (recorder, node, client) = on_paused_clock();
    let exports = client.semaphore("exports", 1);
    let contended = || recorder.acquires().last().unwrap().contended;
    node.set_unreachable(true);
    exports.acquire().await.unwrap_err();
    assert!(!contended(), "an outage");
    node.set_unreachable(false);
    let held = exports.acquire().await.unwrap();
    assert!(!contended());
    assert!(exports.try_acquire().await.unwrap().is_none());
    assert!(contended());
    held.release().await;
    let held = exports.acquire().await.unwrap();
    assert!(!contended(), "it was taken before");
    // It is refused, and the permit is free when it joins the line.
    node.set_delay(|verb| match verb {
        Verb::Acquire => Duration::from_millis(50),
        _ => Duration::ZERO,
    });
    let next = tokio::spawn(exports.acquire());
    pause(20).await;
    held.release().await;
    lease_of(next).await.release().await;
    assert!(contended());
    assert_eq!((client.stats().contended, recorder.waiting()), (2, 1));
}

/// How each kind of end is reported.
#[tokio::test]
async fn every_end_is_counted_and_reported() {
    let recorder = Recorder::default();
    let node = MemoryNode::new("memory");
    let client = |observed: bool| {
        let builder = Client::builder().custom_node(node.clone());
        match observed {
            true => builder.observer(recorder.clone()).build().unwrap(),
            false => builder.build().unwrap(),
        }
    };
    let (client, other) = (client(true), client(false));
    let lock = async |change: fn(Options) -> Options| {
        client.mutex("a").with_options(change).lock().await.unwrap()
    };
    drop(lock(|o| o).await);
    lock(|o| o)
        .await
        .detach()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let short = |o: Options| o.ttl(Duration::from_millis(100)).without_renewal();
    let lease = lock(short).await;
    lease.lost().await;
    drop(lease);
    let lease = lock(|o| o.max_hold(Duration::from_millis(50))).await;
    lease.lost().await;
    drop(lease);
    let lease = lock(|o| o.ttl(Duration::from_secs(3))).await;
    other.break_lock("a", &lease.owner_id()).await.unwrap();
    lease.lost().await;
    drop(lease);
    until("all ends are reported", || recorder.ended().len() == 5).await;
    let ends: Vec<_> = recorder.ended().iter().map(|e| (e.end, e.loss)).collect();
    for expected in [
        (End::Dropped, None),
        (End::Detached, None),
        (End::Expired, Some(Loss::NotRenewed)),
        (End::Expired, Some(Loss::MaxHold)),
        (End::Broken, Some(Loss::Broken)),
    ] {
        assert!(ends.contains(&expected), "{expected:?} is not in {ends:?}");
    }
    let stats = client.stats();
    assert_eq!((stats.leases_held, stats.acquires.granted), (0, 5));
    let ended = stats.ended;
    assert_eq!(
        (ended.dropped, ended.detached, ended.expired, ended.broken),
        (1, 1, 2, 1)
    );
    let lost = stats.lost;
    assert_eq!((lost.not_renewed, lost.max_hold, lost.broken), (1, 1, 1));
}

/// A lease that is lost in an outage is reported with its failed renewals, whose slack falls.
#[tokio::test]
async fn slack_falls_before_a_lease_is_lost() {
    let recorder = Recorder::default();
    let node = TestNode::new(&MemoryNode::new("memory"));
    let builder = Client::builder().custom_node(node.clone());
    let client = builder.observer(recorder.clone()).build().unwrap();
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(Duration::from_secs(2)));
    let lease = mutex.lock().await.unwrap();
    until("it was renewed", || client.stats().renewals.ok > 0).await;
    node.set_unreachable(true);
    lease.lost().await;
    until("the end is reported", || recorder.ended().len() == 1).await;
    let end = recorder.ended().remove(0);
    assert_eq!((end.end, end.loss), (End::Lost, Some(Loss::NotRenewed)));
    let renewals = recorder.renewals();
    let failed: Vec<_> = renewals.iter().filter(|r| !r.ok).map(|r| r.slack).collect();
    assert_eq!(failed.len() as u64, client.stats().renewals.failed);
    assert!(failed.len() > 1, "{renewals:?}");
    assert!(
        failed.is_sorted_by(|before, after| before > after),
        "{failed:?}"
    );
    let ok = renewals.iter().find(|r| r.ok).unwrap();
    assert!(ok.slack < ok.ttl && !ok.confirms_hand_over);
    assert_eq!(client.stats().ended.lost, 1);
}

/// It comes when nothing is due, so its slack would say nothing.
#[tokio::test]
async fn to_name_other_holders_is_no_renewal() {
    let (recorder, client) = recorded();
    let lease = client.mutex("a").lock().await.unwrap();
    let deadline = lease.deadline();
    pause(2).await;
    lease.bind_to_processes(&[1]).await.unwrap();
    assert!(lease.deadline() > deadline);
    assert_eq!(client.stats().renewals.ok, 0);
    lease.extend().await.unwrap();
    assert_eq!(client.stats().renewals.ok, 1);
    lease.detach().await.unwrap().release().await.unwrap();
    until("one is reported", || recorder.renewals().len() == 1).await;
    let counted = client.stats().renewals;
    assert_eq!((counted.ok, counted.failed), (1, 0));
}

/// The clocks of the system, ahead by this many seconds.
#[derive(Clone, Default)]
struct Ahead(Arc<AtomicU64>);

impl TimeSource for Ahead {
    fn now(&self) -> Moment {
        Moment::now() + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn unix_us(&self) -> u64 {
        leasehold_testkit::unix_us()
    }
}

/// More leases than the queue has room for requests are lost at once, before any of it is delivered: the
/// only thread of the runtime is busy.
#[tokio::test]
async fn no_loss_is_dropped_when_many_leases_are_lost_at_once() {
    const LEASES: usize = 2000;
    let (recorder, clock) = (Recorder::default(), Ahead::default());
    let builder = in_memory().without_restart_guard();
    let builder = builder.time_source(clock.clone());
    let client = builder.observer(recorder.clone()).build().unwrap();
    let hour = |o: Options| o.ttl(Duration::from_secs(3600)).without_renewal();
    let mut leases = Vec::new();
    for number in 0..LEASES {
        let mutex = client.mutex(format!("{number}")).with_options(hour);
        leases.push(mutex.lock().await.unwrap());
    }
    clock.0.store(4000, Ordering::Relaxed);
    until("all leases are lost", || client.stats().leases_held == 0).await;
    assert_eq!(client.stats().lost.not_renewed, LEASES as u64);
    until("every loss is reported", || {
        recorder.ended().len() == LEASES
    })
    .await;
}

/// A downgraded lease is one hold, of which the end is reported once.
#[tokio::test]
async fn a_downgraded_lease_is_one_hold() {
    let (seen, client) = recorded();
    let writing = client.rw_lock("a").write().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    let token = reading.token();
    assert_eq!((client.stats().leases_held, seen.ended().len()), (1, 0));
    reading.release().await;
    let ended = seen.ended();
    assert_eq!((ended.len(), ended[0].token), (1, token));
    assert_eq!(client.stats().leases_held, 0);
}

/// The names of semaphores and latches are those that the caller used.
#[tokio::test]
async fn other_primitives_are_reported_by_their_names() {
    let (seen, client) = recorded();
    client
        .semaphore("exports/1", 3)
        .acquire()
        .await
        .unwrap()
        .release()
        .await;
    client
        .latch("deploy/17", ["a", "b"])
        .arrive("a")
        .await
        .unwrap();
    let calls = seen.acquires();
    let names: Vec<_> = calls
        .iter()
        .map(|c| (c.name.to_string(), &*c.class))
        .collect();
    assert_eq!(names[0], ("exports/1".to_owned(), "exports/*"));
    assert_eq!(names[1], ("deploy/17".to_owned(), "deploy/*"));
    assert_eq!(client.stats().leases_held, 0);
}

#[tokio::test]
async fn a_prefix_is_not_part_of_names() {
    let recorder = Recorder::default();
    let builder = in_memory().prefix("tenant-7/").observer(recorder.clone());
    let client = builder.build().unwrap();
    drop(client.mutex("orders").lock().await.unwrap());
    assert_eq!(recorder.acquires()[0].name.to_string(), "orders");
    assert_eq!(&*recorder.acquires()[0].class, "orders");
}
