//! What is seen of real servers that stop, restart and forget.
#![cfg(feature = "redis")]

use std::time::Duration;

use leasehold::observe::{NodeChange, NodeState};
use leasehold::{Client, Options};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, builder, client, fresh, lock, patient, until};

use crate::Recorder;

fn kind(change: &NodeChange) -> &'static str {
    match change {
        NodeChange::Connected { again: false, .. } => "connected",
        NodeChange::Connected { .. } => "connected again",
        NodeChange::Up => "up",
        NodeChange::Down { .. } => "down",
        NodeChange::Epoch => "epoch",
        NodeChange::Quarantined { .. } => "quarantined",
        NodeChange::QuarantineOver => "votes",
        _ => "new",
    }
}

/// Keeps requests coming, as a busy program does: links notice what happens to a server when they use
/// it.
fn busy(client: &Client) -> tokio::task::JoinHandle<()> {
    let client = client.clone();
    tokio::spawn(async move {
        loop {
            let _ = client.mutex("busy").try_lock().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

#[tokio::test]
async fn a_server_that_goes_and_comes_is_reported_once_per_change() {
    let mut servers = RedisServer::start_many(3);
    let recorder = Recorder::default();
    let options = Options::default().outage_patience(LONG);
    let client = fresh(&servers).options(options).observer(recorder.clone());
    let client = client.build().unwrap();
    assert_eq!(client.stats().quorum_margin, -2, "nothing is known yet");
    assert!(
        client
            .stats()
            .nodes
            .iter()
            .all(|n| n.state == NodeState::Unknown)
    );
    client.ready(LONG).await.unwrap();
    until("all are up", || client.stats().quorum_margin == 1).await;
    let busy = busy(&client);
    servers[2].kill();
    until("it is down", || client.stats().quorum_margin == 0).await;
    // Many attempts to connect fail meanwhile.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(matches!(
        &client.stats().nodes[2].state,
        NodeState::Down { why: Some(_), .. }
    ));
    servers[2].restart();
    until("it is up again", || client.stats().quorum_margin == 1).await;
    until("the new epoch is known", || {
        client.stats().nodes[2].epochs == 1
    })
    .await;
    busy.abort();
    let count = |wanted| {
        let changes = recorder.changes();
        changes.iter().filter(|(c, _)| kind(c) == wanted).count()
    };
    until("all is reported", || {
        count("epoch") == 1 && count("up") == 4
    })
    .await;
    assert_eq!((count("connected"), count("down")), (3, 1));
    let stats = client.stats();
    assert_eq!(stats.nodes[2].reconnects as usize, count("connected again"));
    assert!(stats.nodes[2].reconnects >= 1 && stats.nodes[2].errors >= 1);
    assert_eq!((stats.nodes[0].epochs, stats.nodes[0].reconnects), (0, 0));
    let offset = stats.nodes[0].clock_offset_us.unwrap();
    assert!(offset.abs() < 60_000_000, "the same machine: {offset} µs");
    let changes = recorder.changes();
    let down = changes.iter().find(|(c, _)| kind(c) == "down").unwrap();
    assert_eq!(down.1, 0, "one more of three may not fail");
}

/// Requests that the caller gave up before they were sent are no failures of the node.
#[tokio::test]
async fn cancelled_calls_are_no_errors() {
    let servers = [RedisServer::start()];
    let client = client(&servers).await;
    let holder = lock(&client, "a").await;
    for _ in 0..5 {
        let waiters = (0..40).map(|wait_ms| {
            let mutex = client.mutex("a").with_options(patient);
            let waiting = async move {
                let limit = Duration::from_millis(wait_ms % 7);
                assert!(tokio::time::timeout(limit, mutex.lock()).await.is_err());
            };
            tokio::spawn(waiting)
        });
        for waiter in waiters.collect::<Vec<_>>() {
            waiter.await.expect("a waiter that gives up");
        }
    }
    holder.release().await;
    let node = &client.stats().nodes[0];
    assert_eq!(node.errors, 0, "of {} requests", node.requests);
}

#[tokio::test]
async fn a_quarantine_is_reported_until_the_node_votes() {
    let mut servers = vec![RedisServer::start()];
    let guard = Duration::from_secs(3);
    let recorder = Recorder::default();
    let client = builder(&servers)
        .restart_guard(guard)
        .options(
            Options::default()
                .ttl(Duration::from_secs(2))
                .outage_patience(LONG),
        )
        .observer(recorder.clone())
        .build()
        .unwrap();
    client.mutex("a").lock().await.unwrap().release().await;
    servers[0].restart();
    let busy = busy(&client);
    until("it is in quarantine", || {
        let stats = client.stats();
        !stats.nodes[0].quarantine_left.is_zero() && stats.quorum_margin == -1
    })
    .await;
    assert!(client.stats().nodes[0].quarantine_left <= guard + Duration::from_secs(1));
    let kinds = || {
        let changes = recorder.changes();
        changes
            .iter()
            .map(|(change, _)| kind(change))
            .collect::<Vec<_>>()
    };
    // The end of the quarantine needs no request.
    busy.abort();
    until("it votes again", || kinds().last() == Some(&"votes")).await;
    assert_eq!(client.stats().quorum_margin, 0);
    let quarantines = kinds()
        .iter()
        .filter(|kind| **kind == "quarantined")
        .count();
    assert!((1..=2).contains(&quarantines), "{:?}", kinds());
    assert_eq!(recorder.changes().last().unwrap().1, 0);
}
