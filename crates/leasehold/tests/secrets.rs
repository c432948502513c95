//! No `Debug` output shows a secret: the owner value of a lock, or the password in a URL.

use std::fmt::Debug;
use std::time::Duration;

use leasehold::node::rules::View;
use leasehold::node::{Claim, Constants, MemoryLine};
use leasehold::{Client, MemoryNode, Name, Sighting};

/// Checks that the output contains the secret neither as text nor as a list of bytes.
fn assert_hides(secret: &str, value: &dyn Debug) {
    let text = format!("{value:?}");
    let bytes: Vec<_> = secret.bytes().map(|byte| byte.to_string()).collect();
    assert!(!text.contains(secret), "{text}");
    assert!(!text.contains(&bytes.join(", ")), "{text}");
}

#[test]
fn a_builder_does_not_show_passwords() {
    let url = "redis://user:hunter2@localhost";
    assert_hides("hunter2", &Client::builder().node(url));
}

#[test]
fn claims_and_lines_do_not_show_owner_values() {
    let (owner, name) = ("hunter2", Name::new("a").expect("a name"));
    let ttl = Duration::from_secs(1);
    let claim = Claim::new(name.clone(), owner.as_bytes(), 16, ttl);
    let mut line = MemoryLine::default();
    line.join(&claim, 1);
    assert_hides(owner, &claim);
    assert_hides(owner, &line);
    assert_hides(
        owner,
        &View {
            lock: Some(owner.as_bytes()),
            remaining: Some(ttl),
            fence: None,
            write_fence: None,
            share: None,
            floor: 0,
            now: 1,
            constants: Constants::for_nodes(1),
        },
    );
    assert_hides(owner, &Sighting::new(name, owner, None));
}

#[tokio::test(flavor = "current_thread")]
async fn leases_and_nodes_do_not_show_owner_values() {
    let node = MemoryNode::new("memory");
    let client = Client::builder()
        .custom_node(node.clone())
        .build()
        .expect("a client");
    let lease = client.mutex("a").lock().await.expect("free");
    let value = node.get(lease.name()).expect("locked");
    let owner = String::from_utf8(value).expect("text");
    let secret = &owner[..40];
    assert_hides(secret, &node);
    assert_hides(secret, &client);
    assert_hides(secret, &lease);
    let inspection = client.inspect("a").await.expect("an answer");
    assert_hides(secret, &inspection);
    let detached = lease.detach().await.expect("held");
    assert_eq!(detached.owner()[..40], *secret);
    assert_hides(secret, &detached);
}
