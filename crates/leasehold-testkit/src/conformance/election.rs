//! Elections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Moment;

use super::{Case, short};

/// Of 8 candidates, one leads at a time, each with a larger token, and all can see which.
pub async fn one_of_8_candidates_leads(case: Case) {
    let (leads, last) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut candidates = Vec::new();
    for number in 0..8 {
        let election = case.client().await.election("a");
        let (leads, last) = (Arc::clone(&leads), Arc::clone(&last));
        candidates.push(tokio::spawn(async move {
            let value = format!("candidate {number}");
            for _ in 0..3 {
                let term = election.lead(&value, async |lease| {
                    assert!(!leads.swap(true, Ordering::SeqCst), "two lead");
                    let leader = election
                        .leader()
                        .await
                        .expect("a majority")
                        .expect("a leader");
                    assert_eq!((&leader.value, leader.token), (&value, lease.token()));
                    assert!(last.swap(lease.token(), Ordering::SeqCst) < lease.token());
                    leads.store(false, Ordering::SeqCst);
                });
                term.await.expect("it leads");
            }
        }));
    }
    for candidate in candidates {
        candidate.await.expect("no panic");
    }
    let election = case.client().await.election("a");
    assert_eq!(election.leader().await.expect("a majority"), None);
}

/// A leader that disappears is followed by the next candidate, when its lease has ended.
pub async fn another_candidate_follows_a_leader_that_fails(case: Case) {
    let (dead, living) = (case.client().await, case.client().await);
    let lease = short(dead.mutex("a")).lock().await.expect("a lease");
    let before = Moment::now();
    let next = living
        .election("a")
        .campaign("next")
        .await
        .expect("it leads");
    let took = Moment::now().saturating_duration_since(before);
    assert!(next.token() > lease.token());
    assert!(took < Duration::from_secs(30), "{took:?}");
    let leader = dead.election("a").leader().await.expect("a majority");
    assert_eq!(leader.map(|leader| leader.value).as_deref(), Some("next"));
}

/// An observer sees each leader that leads for two seconds, and each time at which no candidate leads.
pub async fn an_observer_sees_each_leader(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let mut observer = two.election("a").observe();
    assert_eq!(observer.changed().await.expect("an answer"), None);
    let mut last = 0;
    for value in ["first", "second", ""] {
        let lease = one.election("a").campaign(value).await.expect("it leads");
        let leader = observer
            .changed()
            .await
            .expect("an answer")
            .expect("a leader");
        assert_eq!((&*leader.value, leader.token), (value, lease.token()));
        assert_eq!(leader.holder.pid, Some(std::process::id()));
        assert!(leader.token > last);
        last = leader.token;
        lease.release().await;
        assert_eq!(observer.changed().await.expect("an answer"), None);
    }
}

/// A name that is kept taken, shared by readers, or locked by another library, has no leader.
pub async fn a_name_without_a_holder_has_no_leader(case: Case) {
    let client = case.client().await;
    let election = client.election("a");
    let options = |o: leasehold::Options| o.min_hold(Duration::from_secs(60));
    let lease = election.clone().with_options(options).campaign("x").await;
    lease.expect("it leads").release().await;
    assert_eq!(election.leader().await.expect("a majority"), None);
    case.deployment.set_foreign(b"b", b"foreign", None);
    assert_eq!(
        client.election("b").leader().await.expect("a majority"),
        None
    );
    let _reading = client.rw_lock("c").read().await.expect("a lease");
    let leader = client.election("c").leader().await;
    assert_eq!(leader.expect("a majority"), None);
}
