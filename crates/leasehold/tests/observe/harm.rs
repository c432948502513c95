//! Observers that panic, that are slow, or that use the client.

use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::{Client, Released};
use leasehold_testkit::setup::until;

use crate::{Recorder, in_memory};

#[tokio::test]
async fn an_observer_that_panics_breaks_nothing() {
    let after = Recorder::default();
    let client = in_memory()
        .observer(|_: &Event| panic!("an observer of a test panics"))
        .observer(after.clone())
        .build()
        .unwrap();
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(Duration::from_secs(1)));
    let lease = mutex.lock().await.unwrap();
    // The panics on the task that renews would end the renewals.
    until("it was renewed twice", || client.stats().renewals.ok >= 2).await;
    assert!(lease.is_valid());
    assert_eq!(lease.release().await, Released::Released);
    // In `Drop`, also while another panic unwinds.
    drop(mutex.lock().await.unwrap());
    let lease = mutex.lock().await.unwrap();
    let unwound = tokio::spawn(async move {
        let _lease = lease;
        panic!("a task of a test panics");
    });
    assert!(unwound.await.is_err());
    assert!(mutex.try_lock().await.unwrap().is_some(), "it was released");
    // Observers after it still receive everything.
    assert_eq!(after.acquires().len(), 4);
    until("every panic is counted", || {
        let received = after
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|e| !is_request(e))
            .count();
        client.stats().observer_panics >= received as u64
    })
    .await;
}

fn is_request(event: &Event) -> bool {
    matches!(event, Event::Request(_))
}

/// Each observer is asked, and receives requests only if it wants them.
#[tokio::test]
async fn requests_go_only_to_observers_that_want_them() {
    let [first, third] = [(); 2].map(|()| Recorder::default());
    let requests = Arc::new(Mutex::new(0));
    let count = Arc::clone(&requests);
    let client = in_memory()
        .observer(first.clone())
        .observer(move |event: &Event| *count.lock().unwrap() += usize::from(is_request(event)))
        .observer(third.clone())
        .build()
        .unwrap();
    client.mutex("a").lock().await.unwrap().release().await;
    for recorder in [first, third] {
        let seen = || {
            recorder
                .pick(|event| is_request(&event).then_some(()))
                .len()
        };
        until("both requests are reported", || seen() == 2).await;
    }
    assert_eq!(*requests.lock().unwrap(), 0);
}

/// Blocks for a moment at every renewal and request.
struct Slow;

impl Observer for Slow {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Renewal(_) | Event::Request(_)) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wants_requests(&self) -> bool {
        true
    }
}

/// A slow observer delays no renewal and no request. What does not fit into the queue is dropped and
/// counted: otherwise 512 pairs would take 50 s here.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_observer_delays_no_renewal() {
    let client = in_memory().observer(Slow).build().unwrap();
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(Duration::from_secs(3)));
    let lease = mutex.lock().await.unwrap();
    while client.stats().events_dropped == 0 {
        client.mutex("b").lock().await.unwrap().release().await;
    }
    until("it is renewed again and again", || {
        client.stats().renewals.ok >= 3
    })
    .await;
    assert!(lease.is_valid());
    assert_eq!(lease.release().await, Released::Released);
}

/// No lock of the client is held while an observer runs: it can use the client, and a lease that it
/// is told about. (A lock that was held would stop this test forever.)
#[tokio::test]
async fn an_observer_can_use_the_client() {
    let this: Arc<OnceLock<(Client, leasehold::Lease)>> = Arc::default();
    let uses = Arc::new(Mutex::new(0));
    let (client, count) = (Arc::clone(&this), Arc::clone(&uses));
    let observer = move |event: &Event| {
        let Some((client, lease)) = client.get() else {
            return;
        };
        // Its own calls would call it again.
        let name = match event {
            Event::Waiting(waiting) => &waiting.name,
            Event::Acquire(call) => &call.name,
            Event::Ended(end) => &end.name,
            _ => return,
        };
        if name.as_bytes() == b"by the observer" {
            return;
        }
        assert_eq!(client.stats().observer_panics, 0);
        let mut cx = Context::from_waker(Waker::noop());
        // Whether these succeed does not matter: they take the locks of the client and the lease.
        let mut locking = Box::pin(client.mutex("by the observer").try_lock());
        let _ = locking.as_mut().poll(&mut cx);
        let mut extending = Box::pin(lease.extend());
        let _ = extending.as_mut().poll(&mut cx);
        *count.lock().unwrap() += 1;
    };
    let client = in_memory().observer(observer).build().unwrap();
    let lease = client.mutex("held").lock().await.unwrap();
    assert!(this.set((client.clone(), lease)).is_ok());
    let mutex = client.mutex("a");
    let held = mutex.lock().await.unwrap();
    assert!(
        mutex
            .try_lock_for(Duration::from_millis(1))
            .await
            .unwrap()
            .is_none()
    );
    drop(held);
    until("events of all kinds were delivered", || {
        *uses.lock().unwrap() >= 4
    })
    .await;
    assert_eq!(client.stats().observer_panics, 0);
}
