//! At most so many holders of a semaphore.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Error, Invalid, Lease, Released, Semaphore};
use tokio::task::JoinSet;

use super::{Case, RENEWED, SHORT, pause, until};

async fn permit(semaphore: &Semaphore) -> Lease {
    let lease = semaphore.try_acquire().await.expect("a majority");
    lease.expect("a free permit")
}

async fn is_full(semaphore: &Semaphore) -> bool {
    semaphore.try_acquire().await.expect("a majority").is_none()
}

/// Permits of one client and of another are different ones, and there are no more than that.
pub async fn permits_are_limited(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let (one, two) = (one.semaphore("a", 3), two.semaphore("a", 3));
    let leases = [permit(&one).await, permit(&one).await, permit(&two).await];
    let mut numbers: Vec<_> = leases.iter().filter_map(Lease::permit).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
    assert!(leases.iter().all(|lease| lease.name().to_string() == "a"));
    for lease in leases {
        assert!(is_full(&one).await && is_full(&two).await);
        assert_eq!(lease.release().await, Released::Released);
        drop(until_permit(&two).await);
        until_full(&one, 2).await;
        // Keep the semaphore full for the next.
        std::mem::forget(permit(&one).await);
    }
}

/// Acquires a permit that is being released.
async fn until_permit(semaphore: &Semaphore) -> Lease {
    semaphore.acquire().await.expect("a lease")
}

/// Waits until this many permits are taken.
async fn until_full(semaphore: &Semaphore, taken: u32) {
    for _ in 0..1000 {
        let mut free = Vec::new();
        while let Some(lease) = semaphore.try_acquire().await.expect("a majority") {
            free.push(lease);
        }
        let count = free.len();
        for lease in free {
            lease.release().await;
        }
        if count == usize::try_from(semaphore.permits() - taken).expect("few") {
            return;
        }
        pause(10).await;
    }
    panic!("the permits are not free again");
}

/// The last free one of many permits is found, without waiting.
pub async fn a_free_permit_is_found(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let semaphore = one.semaphore("a", 20);
    let mut leases = Vec::new();
    for _ in 0..19 {
        leases.push(permit(&semaphore).await);
    }
    let last = permit(&two.semaphore("a", 20)).await;
    assert!(is_full(&semaphore).await);
    assert!(leases.iter().all(|lease| lease.permit() != last.permit()));
}

/// The same for more permits than a node looks at for one request: they are found, without waiting and
/// by a waiter.
pub async fn the_last_of_very_many_permits_is_found(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let many = one.semaphore("a", 150);
    let leases = many.acquire_many(149).await.expect("all but one");
    let semaphore = two.semaphore("a", 150);
    let last = permit(&semaphore).await;
    assert!(is_full(&semaphore).await && leases.get("a").is_some());
    let waiting = tokio::spawn(semaphore.acquire());
    pause(50).await;
    let number = last.permit();
    last.release().await;
    let next = waiting.await.expect("no panic").expect("a lease");
    assert_eq!(next.permit(), number);
}

/// Clients that wait are served in the order in which they came.
pub async fn waiters_get_permits_in_order_of_arrival(case: Case) {
    let holder = case.client().await.semaphore("a", 2);
    let held = [permit(&holder).await, permit(&holder).await];
    let served = Arc::new(AtomicU64::new(0));
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let (semaphore, served) = (case.client().await.semaphore("a", 2), Arc::clone(&served));
        waiting.push(tokio::spawn(async move {
            let lease = semaphore.acquire().await.expect("a lease");
            let place = served.fetch_add(1, Ordering::SeqCst);
            (lease, place)
        }));
        // Long enough that the nodes know the order.
        pause(300).await;
    }
    let mut next_to_release = Vec::from(held);
    for (place, waiter) in (0..).zip(waiting) {
        assert_eq!(
            served.load(Ordering::SeqCst),
            place,
            "nobody before its turn"
        );
        next_to_release.remove(0).release().await;
        let (lease, order) = waiter.await.expect("no panic");
        assert_eq!(order, place);
        next_to_release.push(lease);
    }
}

/// A client that does not wait gets no permit while another waits, also if one has just become free.
pub async fn no_caller_jumps_the_line_for_a_permit(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = permit(&one.semaphore("a", 1)).await;
    let semaphore = two.semaphore("a", 1);
    let waiter = tokio::spawn(async move { semaphore.acquire().await.expect("a lease") });
    pause(300).await;
    let jumper = case.client().await.semaphore("a", 1);
    held.release().await;
    while !waiter.is_finished() {
        assert!(is_full(&jumper).await || waiter.is_finished());
        pause(1).await;
    }
    assert!(is_full(&jumper).await);
    drop(waiter.await.expect("no panic"));
}

/// Eight clients, some of whose calls are cancelled at random times, and three permits.
pub async fn at_most_so_many_of_8_clients_at_a_time(case: Case) {
    const PERMITS: u32 = 3;
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for number in 0..8_u64 {
        let semaphore = case.client().await.semaphore("a", PERMITS);
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        clients.spawn(async move {
            for round in 0..12 {
                let timeout = Duration::from_millis(1 + (number * 7 + round * 13) % 40);
                if (number + round) % 3 == 0 {
                    let _ = tokio::time::timeout(timeout, semaphore.acquire()).await;
                    continue;
                }
                let lease = semaphore.acquire().await.expect("a lease");
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                pause(1 + (number + round) % 4).await;
                assert!(lease.is_valid(), "the lease lasts");
                inside.fetch_sub(1, Ordering::SeqCst);
                match round % 2 {
                    0 => drop(lease),
                    _ => assert_eq!(lease.release().await, Released::Released),
                }
            }
        });
    }
    clients.join_all().await;
    let most = most.load(Ordering::SeqCst);
    assert!((1..=3).contains(&most), "{most} at a time");
    until_full(&case.client().await.semaphore("a", PERMITS), 0).await;
}

/// Every holder of a permit has a larger token than the holders of this permit before.
pub async fn tokens_of_a_permit_grow(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let mut last = BTreeMap::new();
    for round in 0..12 {
        let client = if round % 2 == 0 { &one } else { &two };
        let lease = client.semaphore("a", 2).acquire().await.expect("a lease");
        let before = last.insert(lease.permit(), lease.token());
        assert!(before.is_none_or(|before| before < lease.token()));
        lease.release().await;
    }
}

/// A permit comes back when its holder no longer renews it, and a waiter gets it.
pub async fn a_permit_is_free_after_its_ttl(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let short = one
        .semaphore("a", 1)
        .with_options(|o| o.ttl(SHORT).node_timeout(SHORT).without_renewal());
    let lease = short.acquire().await.expect("a lease");
    let (lost, token) = (lease.lost(), lease.token());
    let waiter = two.semaphore("a", 1);
    let mut next = std::pin::pin!(waiter.acquire());
    tokio::select! {
        biased;
        () = lost => {}
        _ = &mut next => panic!("acquired before the lease was lost"),
    }
    std::mem::forget(lease);
    assert!(next.await.expect("a lease").token() > token);
}

/// A permit is renewed like any lease.
pub async fn a_permit_is_renewed(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let renewed = one
        .semaphore("a", 1)
        .with_options(|o| o.ttl(RENEWED).node_timeout(RENEWED));
    let lease = renewed.acquire().await.expect("a lease");
    tokio::time::sleep(RENEWED * 2).await;
    assert!(lease.is_valid() && is_full(&two.semaphore("a", 1)).await);
    assert_eq!(lease.release().await, Released::Released);
}

/// Two clients that each want more than half of the permits get them one after the other.
pub async fn several_permits_at_once(case: Case) {
    let mut clients = JoinSet::new();
    let inside = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let (semaphore, inside) = (case.client().await.semaphore("a", 4), Arc::clone(&inside));
        clients.spawn(async move {
            for _ in 0..3 {
                let leases = semaphore.acquire_many(3).await.expect("leases");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                let mut numbers: Vec<_> = leases.iter().filter_map(Lease::permit).collect();
                numbers.sort_unstable();
                numbers.dedup();
                assert_eq!(numbers.len(), 3);
                pause(2).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(leases.release().await, Released::Released);
            }
        });
    }
    clients.join_all().await;
    let semaphore = case.client().await.semaphore("a", 4);
    let all = semaphore.acquire_many(4).await.expect("leases");
    assert!(is_full(&semaphore).await);
    drop(all);
}

/// All clients must agree on the number of permits.
pub async fn another_number_of_permits_is_refused(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = permit(&one.semaphore("a", 2)).await;
    for waits in [false, true] {
        let other = two.semaphore("a", 5);
        let refused = match waits {
            false => other.try_acquire().await.map(drop),
            true => other.acquire().await.map(drop),
        };
        let Err(Error::Invalid(Invalid::OtherPermits { theirs, ours, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((theirs, ours), (2, 5));
    }
    held.release().await;
    assert!(two.semaphore("a", 5).try_acquire().await.is_err());
    drop(permit(&two.semaphore("a", 2)).await);
}

/// More permits are there at once; fewer when their holders have released them.
pub async fn a_semaphore_can_be_resized(case: Case) {
    let client = case.client().await;
    let (small, large) = (client.semaphore("a", 1), client.semaphore("a", 3));
    let one = permit(&small).await;
    large.resize().await.expect("a majority");
    assert!(small.try_acquire().await.is_err());
    let (two, three) = (permit(&large).await, permit(&large).await);
    assert!(is_full(&large).await);
    small.resize().await.expect("a majority");
    let first = [one, two, three]
        .into_iter()
        .partition::<Vec<_>, _>(|l| l.permit() == Some(0));
    // The permits that there are no more are offered to nobody when they are released.
    let waits = small.clone();
    let waiter = tokio::spawn(async move { waits.acquire().await.expect("a lease") });
    pause(300).await;
    for lease in first.1 {
        lease.release().await;
    }
    pause(300).await;
    assert!(!waiter.is_finished());
    assert!(is_full(&small).await);
    drop(first.0);
    assert_eq!(waiter.await.expect("no panic").permit(), Some(0));
}

/// A call that is dropped while it waits leaves the line.
pub async fn a_cancelled_call_for_a_permit_leaves_nothing(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let held = permit(&one.semaphore("a", 1)).await;
    let waiting = two.semaphore("a", 1);
    for _ in 0..3 {
        let timeout = Duration::from_millis(100);
        let waited = tokio::time::timeout(timeout, waiting.acquire()).await;
        assert!(waited.is_err(), "it is held");
    }
    let timed_out = waiting.acquire_timeout(Duration::from_millis(50)).await;
    assert!(
        matches!(timed_out, Err(Error::TimedOut { .. })),
        "{timed_out:?}"
    );
    held.release().await;
    let third = case.client().await.semaphore("a", 1);
    // For less than the time after which a silent waiter is removed from the line.
    let lease = third
        .acquire_timeout(Duration::from_secs(60))
        .await
        .expect("a lease");
    assert_eq!(lease.release().await, Released::Released);
}

/// If several permits become free at once, all waiters that can have one get one.
pub async fn a_released_permit_wakes_a_waiter_for_the_next(case: Case) {
    let holder = case.client().await.semaphore("a", 4);
    let held = holder.acquire_many(4).await.expect("leases");
    let served = Arc::new(AtomicUsize::new(0));
    let mut waiting = JoinSet::new();
    for _ in 0..4 {
        let (semaphore, served) = (case.client().await.semaphore("a", 4), Arc::clone(&served));
        waiting.spawn(async move {
            let lease = semaphore.acquire().await.expect("a lease");
            served.fetch_add(1, Ordering::SeqCst);
            lease
        });
    }
    pause(300).await;
    drop(held);
    until("all have a permit", || served.load(Ordering::SeqCst) == 4).await;
    assert!(is_full(&holder).await);
    drop(waiting.join_all().await);
}

/// Numbers of permits outside of 1 to 1024, and options that do not fit.
pub async fn refuses_bad_numbers_of_permits(case: Case) {
    let client = case.client().await;
    for permits in [0, 1025] {
        let refused = client.semaphore("a", permits).acquire().await;
        let Err(Error::Invalid(Invalid::Number { value, max, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((value, max), (permits.into(), 1024));
    }
    let semaphore = client.semaphore("a", 2);
    assert!(matches!(
        semaphore.acquire_many(3).await,
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        semaphore.acquire_many(0).await,
        Err(Error::Invalid(_))
    ));
    let unfenced = semaphore.clone().with_options(|o| o.without_fencing());
    assert!(matches!(unfenced.acquire().await, Err(Error::Invalid(_))));
    let lease = permit(&semaphore).await;
    assert!(matches!(lease.downgrade().await, Err(Error::Invalid(_))));
}

/// A detached permit is released by its owner value, and that wakes a waiter.
pub async fn a_detached_permit_is_identified_by_its_owner(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = permit(&one.semaphore("a", 1)).await;
    let detached = lease.detach().await.expect("a lease");
    let semaphore = two.semaphore("a", 1);
    assert!(is_full(&semaphore).await);
    let waiter = tokio::spawn(async move { semaphore.acquire().await.expect("a lease") });
    pause(300).await;
    assert_eq!(
        detached.release().await.expect("a majority"),
        Released::Released
    );
    drop(waiter.await.expect("no panic"));
}
