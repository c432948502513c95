//! Inspecting, breaking and detaching locks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use leasehold::{Client, Error, Loss, Options, Released, Wait};

use super::{Case, RENEWED, TTL, is_taken, pause, renewed, taken};
use crate::setup::{lease_of, spawn_lock};

/// Every node reports the holders of its locks. Free names are not shown.
pub async fn inspection_shows_the_holders(case: Case) {
    let client = case.client().await;
    assert!(
        client
            .inspect_all()
            .await
            .expect("a majority")
            .locks
            .is_empty()
    );
    let mutex = client.mutex("a").with_options(|o| o.label("first"));
    let lease = taken(&mutex).await;
    let _other = taken(&client.mutex("b{c}d")).await;
    taken(&client.mutex("free")).await.release().await;
    case.until_free("free").await;

    let inspection = client.inspect("a").await.expect("a name");
    assert!(inspection.is_conclusive());
    let lock = inspection.lock().expect("held");
    assert_eq!(lock.holder.token, Some(lease.token()));
    assert_eq!(lock.holder.label.as_deref(), Some("first"));
    assert_eq!(lock.fence, Some(lease.token()));
    assert!(
        lock.remaining
            .is_some_and(|left| left <= TTL && !left.is_zero())
    );
    let value = case.deployment.values(b"a")[0].clone().expect("a value");
    let secret = String::from_utf8_lossy(&value[..40]).into_owned();
    assert!(!format!("{inspection:?}").contains(&secret));

    let all = client.inspect_all().await.expect("a majority").locks;
    let names: Vec<_> = all.iter().map(|one| one.name.to_string()).collect();
    assert_eq!(names, ["a", "b{c}d"]);
    assert!(
        client
            .inspect("free")
            .await
            .expect("a name")
            .lock()
            .is_none()
    );
}

/// `since` is when the lock was granted, not when the holder sent its request or began to wait.
/// It is not the time of the token either, which is ahead of the clock of a recently started
/// node.
pub async fn inspection_shows_when_a_lock_was_granted(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    for _ in 0..2 {
        // A client that has just heard from a node sends a different request than one that has
        // not.
        taken(&one.mutex("a")).await.release().await;
        case.until_free("a").await;
        let before = SystemTime::now();
        let lease = taken(&one.mutex("a")).await;
        check_since(&one, before, SystemTime::now()).await;
        lease.release().await;
        case.until_free("a").await;
    }

    let lease = taken(&one.mutex("a")).await;
    let waiter = spawn_lock(two.mutex("a"));
    pause(1500).await;
    let before = SystemTime::now();
    lease.release().await;
    let next = lease_of(waiter).await;
    let after = SystemTime::now();
    check_since(&one, before, after).await;
    next.extend().await.expect("still held");
    check_since(&one, before, after).await;
}

/// Checks that the lock was granted between these two times.
async fn check_since(client: &Client, before: SystemTime, after: SystemTime) {
    // More than the difference between two clocks of one machine.
    let margin = Duration::from_millis(200);
    pause(500).await;
    let inspection = client.inspect("a").await.expect("a name");
    let since = inspection.lock().and_then(|lock| lock.since());
    let since = since.expect("held, with a token");
    assert!(since + margin >= before, "{since:?} is before {before:?}");
    assert!(since <= after + margin, "{since:?} is after {after:?}");
}

/// Locks of other libraries are shown and can be broken, by an id that does not reveal their
/// secret.
pub async fn shows_and_breaks_foreign_locks(case: Case) {
    let client = case.client().await;
    taken(&client.mutex("a")).await.release().await;
    case.until_free("a").await;
    case.deployment.set_foreign(b"a", b"of another", None);
    let inspection = client.inspect("a").await.expect("a name");
    let lock = inspection.lock().expect("held");
    assert_eq!((lock.holder.token, lock.remaining), (None, None));
    let id = lock.owner_id();
    assert!(!b"of another".windows(4).any(|part| id.as_bytes() == part));
    assert!(client.break_lock("a", &id).await.expect("a majority"));
    assert_eq!(case.locked("a"), 0);
    taken(&client.mutex("a")).await.release().await;
}

/// A lock is broken only for the named owner. The holder is notified, and cannot get the lock
/// back.
pub async fn breaks_only_the_lock_of_the_named_owner(case: Case) {
    let client = case.client().await;
    let lease = taken(&client.mutex("a")).await;
    let inspection = client.inspect("a").await.expect("a name");
    let id = inspection.lock().expect("held").owner_id();
    assert!(
        !client
            .break_lock("a", "000000000000")
            .await
            .expect("a majority")
    );
    assert!(is_taken(&client.mutex("a")).await);
    assert!(client.break_lock("a", &id).await.expect("a majority"));
    case.until_free("a").await;

    assert!(matches!(lease.extend().await, Err(Error::Lost { .. })));
    assert_eq!(lease.loss(), Some(Loss::Broken));
    lease.lost().await;
    let next = taken(&client.mutex("a")).await;
    assert!(next.token() > lease.token());
    // The same id does not break the lock of the next holder.
    assert!(!client.break_lock("a", &id).await.expect("a majority"));
    assert_eq!(lease.release().await, Released::WasLost);
    next.extend().await.expect("still held");
}

/// A holder that only renews learns of it, too.
pub async fn a_broken_lock_is_lost_at_the_next_renewal(case: Case) {
    let client = case.client().await;
    let lease = taken(&renewed(client.mutex("a"))).await;
    let inspection = client.inspect("a").await.expect("a name");
    let id = inspection.lock().expect("held").owner_id();
    assert!(client.break_lock("a", &id).await.expect("a majority"));
    lease.lost().await;
    assert!(lease.loss().is_some());
}

/// A detached lease is identified by its owner value, whichever client uses that.
pub async fn a_detached_lease_is_identified_by_its_owner(case: Case) {
    let client = case.client().await;
    let lease = taken(&client.mutex("a").with_options(|o| o.detached())).await;
    let token = lease.token();
    let owner = lease.detach().await.expect("held").owner().to_owned();
    assert_eq!(client.shutdown(Duration::from_secs(20)).await, 0);
    drop(client);

    let client = case.client().await;
    assert!(is_taken(&client.mutex("a")).await);
    assert!(client.mutex("a").detached("nonsense").is_err());
    let lease = client.mutex("a").detached(&owner).expect("an owner");
    assert_eq!(lease.token(), token);
    assert!(!format!("{lease:?}").contains(&owner[..40]));
    let remaining = lease.extend().await.expect("held");
    assert!(remaining <= TTL && remaining > Duration::ZERO);
    assert_eq!(
        lease.release().await.expect("a majority"),
        Released::Released
    );
    case.until_free("a").await;

    let again = client.mutex("a").detached(&owner).expect("an owner");
    assert!(matches!(again.extend().await, Err(Error::Lost { .. })));
    assert_eq!(
        again.release().await.expect("a majority"),
        Released::WasLost
    );
}

/// A lease that has ended is not extended, although no other claim has been granted since.
pub async fn a_detached_lease_that_has_ended_is_not_extended(case: Case) {
    let client = case.client().await;
    let brief = |o: Options| o.ttl(RENEWED).node_timeout(RENEWED).without_renewal();
    let writing = client.mutex("a").with_options(brief).lock().await;
    let writing = writing.expect("a lease").detach().await.expect("held");
    let reading = client.rw_lock("b").with_options(brief).read().await;
    let reading = reading.expect("a lease").detach().await.expect("held");
    for (name, lease) in [("a", writing), ("b", reading)] {
        case.until_free(name).await;
        let extended = lease.extend().await;
        assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
        case.until_free(name).await;
    }
}

/// A waiter can be shown the holder of the lock.
pub async fn shows_the_holder_to_a_waiter(case: Case) {
    let client = case.client().await;
    let held = taken(&client.mutex("a").with_options(|o| o.label("busy"))).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let labels = Arc::clone(&seen);
    let mutex = client.mutex("a").with_options(|o| {
        o.on_refusal(move |refusal| {
            let label = refusal.holder().and_then(|holder| holder.label.clone());
            labels.lock().expect("no panic").push(label);
        })
    });
    let wait = Duration::from_millis(100);
    assert!(mutex.lock_timeout(wait).await.is_err());
    let seen = seen.lock().expect("no panic").clone();
    assert!(seen.contains(&Some("busy".to_owned())), "{seen:?}");
    held.release().await;
}

/// The names in leases, inspections and errors are those that the client's methods accept.
pub async fn names_round_trip_under_a_prefix(case: Case) {
    let client = case.builder().prefix("app/").connect().await;
    let client = client.expect("the nodes work");
    // Locks outside of the prefix do not belong to this client.
    let other = case.client().await;
    let _other = taken(&other.mutex("other")).await;
    let lease = taken(&client.mutex("a")).await;
    assert_eq!(lease.name().as_bytes(), b"a");
    assert_eq!(lease.key().as_bytes(), b"app/a");
    assert!(is_taken(&client.mutex(lease.name())).await);
    let inspection = client.inspect(lease.name()).await.expect("a name");
    assert_eq!(&inspection.name, lease.name());
    assert_eq!(&inspection.key, lease.key());
    let owner_id = inspection.lock().expect("held").owner_id();
    let all = client.inspect_all().await.expect("a majority");
    let all: Vec<_> = all.locks.iter().map(|one| one.name.to_string()).collect();
    assert_eq!(all, ["a"]);
    let broken = client.break_lock(&inspection.name, &owner_id).await;
    assert!(broken.expect("a majority"));
    let error = lease.extend().await.expect_err("broken");
    let Error::Lost { name, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, lease.name());
    let held = taken(&client.mutex("a")).await;
    let at_once = client.mutex("a").with_options(|o| o.wait(Wait::No));
    let Err(Error::Held(refusal)) = at_once.lock().await else {
        panic!("held");
    };
    assert_eq!(refusal.name.as_ref(), Some(held.name()));
    let detached = held.detach().await.expect("detached");
    assert_eq!(detached.name().as_bytes(), b"a");
    let again = client.mutex(detached.name()).detached(detached.owner());
    let again = again.expect("its owner");
    assert_eq!(again.name(), detached.name());
    assert_eq!(
        again.release().await.expect("a majority"),
        Released::Released
    );
}

/// The error of a lost lease says whether the lock was broken, and who holds it now.
pub async fn the_error_of_a_lost_lease_names_the_new_holder(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    for taken_over in [false, true] {
        let lease = taken(&one.mutex("a")).await;
        let inspection = one.inspect("a").await.expect("a name");
        let owner_id = inspection.lock().expect("held").owner_id();
        assert!(one.break_lock("a", &owner_id).await.expect("a majority"));
        let next = two.mutex("a").with_options(|o| o.label("the next one"));
        let next = match taken_over {
            true => Some(taken(&next).await),
            false => None,
        };
        let error = lease.extend().await.expect_err("over");
        let Error::Lost { why, .. } = &error else {
            panic!("{error}");
        };
        let holder = error.holder().map(ToString::to_string);
        match taken_over {
            true => {
                assert_eq!(*why, Loss::TakenAway);
                assert!(holder.expect("a holder").contains("the next one"));
            }
            false => assert_eq!((*why, holder), (Loss::Broken, None)),
        }
        assert!(!error.nodes().is_empty());
        if let Some(next) = next {
            next.release().await;
        }
    }
}
