//! Looking at locks, taking them away, and handing them on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Error, Loss, Released};

use super::{Case, TTL, is_taken, renewed, taken};

/// Every node says who holds what; what is free is not shown.
pub async fn shows_who_holds_what(case: Case) {
    let client = case.client().await;
    assert!(client.inspect_all().await.expect("a majority").is_empty());
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

    let all = client.inspect_all().await.expect("a majority");
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

/// Locks of other libraries are shown and can be broken, by an id that is not their secret.
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

/// A lock is taken away from the owner named and from nobody else; the holder is told, and
/// cannot get it back.
pub async fn breaks_the_lock_of_the_owner_named(case: Case) {
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
    assert_eq!(lease.loss(), Some(Loss::TakenAway));
    lease.lost().await;
    let next = taken(&client.mutex("a")).await;
    assert!(next.token() > lease.token());
    // The same id again takes nothing from the next.
    assert!(!client.break_lock("a", &id).await.expect("a majority"));
    assert_eq!(lease.release().await, Released::WasLost);
    next.extend().await.expect("still held");
}

/// A holder that does nothing but renew hears of it too.
pub async fn a_broken_lock_is_lost_at_the_next_renewal(case: Case) {
    let client = case.client().await;
    let lease = taken(&renewed(client.mutex("a"))).await;
    let inspection = client.inspect("a").await.expect("a name");
    let id = inspection.lock().expect("held").owner_id();
    assert!(client.break_lock("a", &id).await.expect("a majority"));
    lease.lost().await;
    assert!(lease.loss().is_some());
}

/// A lease without a guard lives by its owner value, in whoever's hands that is.
pub async fn a_detached_lease_is_known_by_its_owner(case: Case) {
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

/// Who waits can be shown who holds it.
pub async fn tells_the_waiting_who_holds_it(case: Case) {
    let client = case.client().await;
    let held = taken(&client.mutex("a").with_options(|o| o.label("busy"))).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let mutex = client.mutex("a").with_options(|o| {
        o.on_refusal(move |refusal| {
            let label = refusal.holder().and_then(|holder| holder.label.clone());
            told.lock().expect("no panic").push(label);
        })
    });
    let wait = Duration::from_millis(100);
    assert!(mutex.lock_timeout(wait).await.is_err());
    let seen = seen.lock().expect("no panic").clone();
    assert!(seen.contains(&Some("busy".to_owned())), "{seen:?}");
    held.release().await;
}
