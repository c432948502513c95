//! Locks that other programs hold under the same names.

use std::time::Duration;

use super::{Case, is_taken};

/// Values that other libraries write: hex, base64, raw bytes, the empty string.
const VALUES: [&[u8]; 4] = [
    b"3f2a9c0e5b7d4f618a9b0c1d2e3f4a5b",
    b"mB2Xn0Qm8hQp3Zb1kq7V9A==",
    b"\xff\x00\xfe\r\n\x80\xc3 raw bytes \xee",
    b"",
];

/// A value of any bytes counts as an owner.
pub async fn respects_foreign_owners(case: Case) {
    let client = case.client().await;
    for (index, value) in VALUES.into_iter().enumerate() {
        let name = format!("a{index}");
        let ttl = Some(Duration::from_secs(300));
        case.deployment.set_foreign(name.as_bytes(), value, ttl);
        for _ in 0..3 {
            assert!(is_taken(&client.mutex(&name)).await);
        }
        let values = case.deployment.values(name.as_bytes());
        assert!(values.iter().all(|v| v.as_deref() == Some(value)));
    }
    assert_eq!(client.shutdown(Duration::from_secs(20)).await, 0);
}

/// A lock without a TTL never expires, and the error says so.
pub async fn respects_foreign_owners_without_a_ttl(case: Case) {
    let client = case.client().await;
    case.deployment.set_foreign(b"a", b"forever", None);
    let wait = Duration::from_millis(100);
    let error = client.mutex("a").lock_timeout(wait).await;
    let text = error.expect_err("held").to_string();
    assert!(text.contains("without a TTL"), "{text}");
    assert!(
        !text.contains("forever"),
        "the text shows a foreign secret: {text}"
    );
}

/// A foreign release sends no notification, so the waiter follows the remaining TTL.
pub async fn takes_over_when_a_foreign_lock_expires(case: Case) {
    let client = case.client().await;
    let ttl = Some(Duration::from_millis(500));
    case.deployment.set_foreign(b"a", b"short", ttl);
    let lease = client.mutex("a").lock().await.expect("a lease");
    assert!(lease.is_valid());
}
