//! Leases that outlive the process that acquired them.

use std::process::{Child, Command, Stdio};

use super::puppet::Puppet;
use super::store::Store;
use super::{client, forever};

#[test]
fn a_lease_acquired_detached_survives_its_process() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.request_lease("lock-detached a");
    assert_eq!(store.holders("a"), None);
    holder.kill();
    holder.reap();
    assert!(other.finds_held("a"));
}

#[tokio::test]
async fn a_detached_lease_survives_and_its_owner_value_ends_it() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let held = holder.lock("a");
    let owner = holder.request("detach a");
    holder.kill();
    holder.reap();
    assert!(other.finds_held("a"));
    other.send_lock("a");
    store.until_waiters(1);
    let client = client(&store.url()).await;
    let mutex = client.mutex("a").with_options(forever);
    let detached = mutex.detached(&owner).expect("an owner");
    detached.extend().await.expect("still held");
    let released = detached.release().await.expect("an answer");
    assert_eq!(released, leasehold::Released::Released);
    assert!(other.receive_lease().token > held.token);
}

/// A process that is idle until it is killed.
fn idle() -> Child {
    let mut command = Command::new("cat");
    let idle = command.stdin(Stdio::piped()).stdout(Stdio::null());
    idle.spawn().expect("it starts")
}

fn kill(mut child: Child) {
    child.kill().expect("killed");
    child.wait().expect("dead");
}

#[test]
fn a_lease_bound_to_processes_is_free_when_all_of_them_are_dead() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let held = holder.lock("a");
    let (first, second) = (idle(), idle());
    let bind = format!("bind a {} {}", first.id(), second.id());
    assert_eq!(holder.request(&bind), "bound");
    // It is no longer bound to the process that acquired it.
    holder.kill();
    holder.reap();
    assert!(other.finds_held("a"));
    let mut waiter = Puppet::of(&store.url());
    waiter.send_lock("a");
    store.until_waiters(1);
    kill(first);
    assert!(other.finds_held("a"));
    kill(second);
    assert!(waiter.receive_lease().token > held.token);
}

/// Also while the process that acquired it lives. That process finds out when it extends the
/// lease.
#[test]
fn a_lease_bound_to_a_process_ends_with_that_process() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.lock("a");
    let child = idle();
    let bind = format!("bind a {}", child.id());
    assert_eq!(holder.request(&bind), "bound");
    assert!(other.finds_held("a"));
    kill(child);
    other.lock("a");
    let said = holder.request("extend a");
    assert!(said.contains("was lost"), "{said}");
    assert_eq!(other.request("extend a"), "extended");
}
