//! Waiting for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Error, Invalid};
use tokio::task::JoinSet;

use super::{Case, pause};

/// A latch opens for clients that waited, and for those that come later.
pub async fn a_latch_opens_when_all_have_arrived(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let (one, two) = (one.latch("a", ["x", "y"]), two.latch("a", ["x", "y"]));
    let waiter = {
        let two = two.clone();
        tokio::spawn(async move { two.wait().await })
    };
    let missing = one.missing().await.expect("a majority");
    assert_eq!(missing.len(), 2);
    one.arrive("x").await.expect("a majority");
    let missing = two.missing().await.expect("a majority");
    assert_eq!(
        missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["y"]
    );
    pause(300).await;
    assert!(!waiter.is_finished(), "one is missing");
    two.arrive("y").await.expect("a majority");
    waiter.await.expect("no panic").expect("open");
    one.wait().await.expect("open");
    one.clear().await.expect("a majority");
    assert_eq!(two.missing().await.expect("a majority").len(), 2);
}

/// No party of a barrier goes on before the last has arrived.
pub async fn a_barrier_holds_all_until_the_last(case: Case) {
    let names = ["a", "b", "c", "d"];
    let arrived = Arc::new(AtomicUsize::new(0));
    let mut parties = JoinSet::new();
    for (number, party) in names.into_iter().enumerate() {
        let (latch, arrived) = (
            case.client().await.latch("round 1", names),
            Arc::clone(&arrived),
        );
        parties.spawn(async move {
            pause(100 * u64::try_from(number).expect("few")).await;
            arrived.fetch_add(1, Ordering::SeqCst);
            latch.arrive_and_wait(party).await.expect("open");
            assert_eq!(arrived.load(Ordering::SeqCst), 4);
        });
    }
    parties.join_all().await;
}

/// A party that arrives again, or in two processes at once, counts once. After its time it is gone.
pub async fn an_arrival_counts_once_and_ends(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let second = Duration::from_secs(1);
    let latch = |client: &leasehold::Client| client.latch("a", ["x", "y"]).kept_for(second);
    let (one, two) = (latch(&one), latch(&two));
    let (first, other) = tokio::join!(one.arrive("x"), two.arrive("x"));
    first.and(other).expect("a majority");
    one.arrive("x").await.expect("a majority");
    assert!(!two.missing().await.expect("a majority").is_empty());
    for _ in 0..100 {
        if two.missing().await.expect("a majority").len() == 2 {
            return;
        }
        pause(100).await;
    }
    panic!("the arrival never ends");
}

/// Parties that the latch does not have, too many, none, and one twice.
pub async fn refuses_bad_parties(case: Case) {
    let client = case.client().await;
    let unknown = client.latch("a", ["x"]).arrive("y").await;
    assert!(matches!(
        unknown,
        Err(Error::Invalid(Invalid::UnknownParty { .. }))
    ));
    let many: Vec<_> = (0..65).map(|number| number.to_string()).collect();
    for parties in [&[][..], &["x".to_owned(), "x".to_owned()], &many] {
        let refused = client.latch("a", parties).missing().await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let refused = client
        .latch("a", ["x"])
        .kept_for(Duration::ZERO)
        .arrive("x")
        .await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}
