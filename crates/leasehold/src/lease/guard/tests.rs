use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::base::error::Loss;
use crate::lease::state::{Progress, Purpose};
use crate::node::{Call, Node, NodeError, Verb};
use crate::{Client, Error, MemoryNode, Moment, Released, TimeSource};

/// A late renewal must not bring back a lock that was released.
#[tokio::test]
async fn no_extend_is_sent_after_the_release() {
    let client = Client::in_memory();
    let lease = client.mutex("a").lock().await.unwrap();
    let (core, held) = (lease.core.clone(), lease.held.clone());
    let extension = held
        .start_extension(&core.nodes, &core.clock, Purpose::Renewal)
        .unwrap();
    lease.release().await;
    assert!(
        held.start_extension(&core.nodes, &core.clock, Purpose::Renewal)
            .is_none()
    );
    // Its answer may arrive after the release. Nothing was lost.
    let progress = held.finish_extension(&extension, &core.clock);
    assert_eq!(progress, Progress::Over);
    assert_eq!(client.stats().renewals.failed, 0);
    assert!(client.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn the_last_guard_releases_the_lease() {
    let client = Client::in_memory();
    let mutex = client.mutex("a");
    let first = mutex.lock().await.unwrap();
    let (second, third) = (first.again().unwrap(), first.again().unwrap());
    assert_eq!(second.token(), first.token());
    assert_eq!(first.release().await, Released::StillHeld);
    drop(third);
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert_eq!(second.release().await, Released::Released);
    assert!(mutex.try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_lease_with_other_guards_is_neither_detached_nor_kept() {
    let client = Client::in_memory();
    let lease = client.mutex("a").lock().await.unwrap();
    let refused = lease.again().unwrap().detach().await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    let again = lease.again().unwrap();
    let refused = again.release_keeping(Duration::from_secs(1)).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(lease.release().await, Released::Released);
}

#[tokio::test]
async fn a_lost_lease_is_not_held_again() {
    let client = Client::in_memory();
    let lease = client.mutex("a").lock().await.unwrap();
    client.break_lock("a", &lease.owner_id()).await.unwrap();
    assert!(lease.extend().await.is_err());
    assert!(matches!(lease.again(), Err(Error::Lost { .. })));
}

/// A clock that the test moves, as after a suspend: timers have not noticed yet.
#[derive(Clone, Default)]
struct Jumping(Arc<AtomicU64>);

impl TimeSource for Jumping {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_millis(self.0.load(Ordering::SeqCst)))
    }

    fn unix_us(&self) -> u64 {
        1_800_000_000_000_000 + self.0.load(Ordering::SeqCst) * 1000
    }
}

/// After the deadline the lease is lost, even if only the clock shows it, and whatever a node
/// answers.
#[tokio::test]
async fn an_extend_after_the_deadline_does_not_count() {
    let clock = Jumping::default();
    let node = MemoryNode::with_time_source("memory", Arc::new(clock.clone()));
    clock.0.store(1, Ordering::SeqCst);
    let builder = Client::builder().time_source(clock.clone());
    let client = builder.custom_node(node).build().unwrap();
    let lease = client.mutex("a").lock().await.unwrap();
    let (core, deadline) = (lease.core.clone(), lease.deadline());
    let extension = lease
        .held
        .start_extension(&core.nodes, &core.clock, Purpose::Renewal)
        .unwrap();
    clock.0.store(9_950, Ordering::SeqCst);
    assert!(!lease.is_valid());
    let progress = lease.held.finish_extension(&extension, &core.clock);
    assert_eq!(progress, Progress::Over);
    assert_eq!(lease.deadline(), deadline);
    let renewals = client.stats().renewals;
    assert_eq!((renewals.ok, renewals.failed), (0, 1));
    lease.lost().await;
}

/// A node that refuses every EXTEND.
struct Unrenewed(MemoryNode);

impl Node for Unrenewed {
    fn label(&self) -> &str {
        "unrenewed"
    }

    fn submit(&self, call: Call) {
        let why = "no renewals".into();
        match call.verb() {
            Verb::Extend => call.answer(Err(NodeError::Refused { why })),
            _ => self.0.submit(call),
        }
    }
}

#[tokio::test]
async fn a_lost_lease_reports_what_the_nodes_answered() {
    let builder = Client::builder().custom_node(Unrenewed(MemoryNode::new("memory")));
    let client = builder.build().unwrap();
    let ttl = Duration::from_millis(200);
    let mutex = client.mutex("a").with_options(|o| o.ttl(ttl));
    let outcome = mutex.with(async |_| std::future::pending::<()>().await);
    let error = outcome.await.unwrap_err();
    let Error::Lost { why, nodes, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*why, nodes.len()), (Loss::NotRenewed, 1));
    let text = error.to_string();
    assert!(
        text.contains("without a renewal [unrenewed: no renewals]"),
        "{text}"
    );
}

/// After a stop or a suspend, tasks may run before the keeper has noticed the deadline.
/// No task of the runtime runs here, so only the clock can end the work.
#[tokio::test]
async fn work_is_not_polled_again_after_the_deadline() {
    let clock = Jumping::default();
    let node = MemoryNode::with_time_source("memory", Arc::new(clock.clone()));
    clock.0.store(1, Ordering::SeqCst);
    let builder = Client::builder().time_source(clock.clone());
    let client = builder.custom_node(node).build().unwrap();
    let polls = AtomicU64::new(0);
    let mutex = client.mutex("a");
    let mut with = std::pin::pin!(mutex.with(async |_| {
        poll_fn(|_| {
            polls.fetch_add(1, Ordering::SeqCst);
            Poll::<()>::Pending
        })
        .await;
    }));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(with.as_mut().poll(&mut cx).is_pending());
    assert_eq!(polls.load(Ordering::SeqCst), 1);
    clock.0.store(9_950, Ordering::SeqCst);
    let Poll::Ready(Err(Error::Lost { .. })) = with.as_mut().poll(&mut cx) else {
        panic!("the lease is lost by its deadline");
    };
    assert_eq!(polls.load(Ordering::SeqCst), 1, "the work was polled again");
}
