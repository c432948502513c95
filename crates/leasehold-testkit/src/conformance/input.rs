//! Options that apply, and invalid input.

use std::time::Duration;

use leasehold::{Error, Invalid, Moment, Name, Wait};

use super::{Case, taken};

/// The options of a call apply to that call only.
pub async fn takes_options_per_call(case: Case) {
    let client = case.client().await;
    let long = taken(&client.mutex("a")).await;
    let short = client.mutex("b").with_options(|o| {
        o.ttl(Duration::from_secs(20))
            .drift(Duration::from_secs(5))
            .wait(Wait::No)
    });
    let before = Moment::now();
    let lease = short.lock().await.expect("free");
    assert!(lease.deadline() <= Moment::now() + Duration::from_secs(15));
    assert!(lease.deadline() >= before + Duration::from_secs(15));
    assert!(long.remaining() > Duration::from_secs(15));
}

/// Names are bytes, 1 to 1024 of them.
pub async fn takes_names_of_any_bytes(case: Case) {
    let client = case.client().await;
    let names = [
        b"\x00".to_vec(),
        b"\xff\xfe\r\n$-1\r\n".to_vec(),
        vec![b'x'; Name::MAX_LEN],
        b"}{".to_vec(),
        "日本語".into(),
    ];
    for name in names {
        let lease = taken(&client.mutex(&name)).await;
        assert_eq!(lease.name().as_bytes(), name);
        let values = case.deployment.values(&name);
        assert!(values.iter().any(Option::is_some), "another key");
        lease.release().await;
    }
}

/// A name that is too short or too long is an error, and no request is sent.
pub async fn refuses_bad_names(case: Case) {
    let client = case.client().await;
    for len in [0, Name::MAX_LEN + 1] {
        let refused = client.mutex(vec![b'x'; len]).try_lock().await;
        match refused {
            Err(Error::Invalid(Invalid::Name { len: reported, .. })) => assert_eq!(reported, len),
            other => panic!("{other:?}"),
        }
    }
    let refused = client.mutex("leasehold:epoch").try_lock().await;
    assert!(
        matches!(refused, Err(Error::Invalid(Invalid::ReservedName))),
        "{refused:?}"
    );
}

/// A duration that a server would misinterpret is never sent: `PEXPIRE key 0` deletes the key.
pub async fn refuses_bad_durations(case: Case) {
    let client = case.client().await;
    let day = Duration::from_secs(24 * 3600);
    for ttl in [
        Duration::ZERO,
        Duration::from_millis(9),
        day * 2,
        Duration::MAX,
    ] {
        let mutex = client.mutex("a").with_options(|o| o.ttl(ttl));
        let refused = mutex.try_lock().await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        let refused = client.mutex("a").lock_timeout(Duration::MAX).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    assert_eq!(case.locked("a"), 0);
}
