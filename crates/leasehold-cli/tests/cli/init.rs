//! `init`: recording and replacing the set of nodes.

use leasehold_testkit::RedisServer;

use super::Place;

/// After `init`, three new servers vote at once. Clients need no option for that.
#[test]
fn new_servers_vote_at_once() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(
        ran.err.matches("recorded; votes at once").count(),
        3,
        "{}",
        ran.err
    );
    assert_eq!(
        place.ok(&["run", "x", "-n", "--", "echo", "done"]),
        "done\n"
    );
    let again = place.run(&["init"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert_eq!(
        again.err.matches("already recorded").count(),
        3,
        "{}",
        again.err
    );
}

/// A client that connected before `init` has recorded the set. `init` then needs `--assume-fresh` to
/// know that the servers are new.
#[test]
fn init_after_the_first_client_needs_assume_fresh() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    assert_eq!(place.run(&["run", "x", "-n", "--", "true"]).code, 69);
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("init --assume-fresh"), "{}", ran.err);
    let page = place.ok(&["show", "x"]);
    assert_eq!(page.matches("free; votes in ").count(), 3, "{page}");
    let ran = place.run(&["init", "--assume-fresh"]);
    assert_eq!(ran.err.matches("votes at once").count(), 3, "{}", ran.err);
    let page = place.ok(&["show", "x"]);
    assert!(!page.contains("votes in"), "{page}");
    place.ok(&["run", "x", "-n", "--", "true"]);
}

/// Growing from one node to three needs `--replace`. Clients of the old set are refused after it.
#[test]
fn a_deployment_grows_from_one_node_to_three() {
    let servers = RedisServer::start_many(3);
    let (one, three) = (Place::redis(&servers[..1]), Place::redis(&servers));
    one.ok(&["run", "x", "--", "true"]);
    let refused = three.run(&["init"]);
    assert_eq!(refused.code, 69, "{}", refused.err);
    assert!(refused.err.contains("init --replace"), "{}", refused.err);
    let run = three.run(&["run", "x", "-n", "--assume-fresh", "--", "true"]);
    assert_ne!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("set of nodes on record"), "{}", run.err);
    let done = three.run(&["init", "--replace", "--assume-fresh"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(
        done.err.matches("replacing another set").count(),
        3,
        "{}",
        done.err
    );
    three.ok(&["run", "x", "--", "true"]);
    let old = one.run(&["run", "x", "-n", "--", "true"]);
    assert_ne!(old.code, 0, "{}", old.err);
    assert!(old.err.contains("set of nodes on record"), "{}", old.err);
}

#[test]
fn the_embedded_store_needs_no_init() {
    let ran = Place::local().run(&["init"]);
    assert_eq!(ran.code, 64, "{}", ran.err);
    assert!(ran.err.contains("embedded store"), "{}", ran.err);
}

/// The error for a long TTL names the commands that make it possible.
#[test]
fn a_longer_ttl_needs_another_guard_on_record() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    let acquire = ["acquire", "deploy", "--ttl", "5m 1s"];
    let ran = place.run(&acquire);
    assert_eq!(ran.code, 64, "{}", ran.err);
    let command = "`leasehold init --replace --restart-guard 5m1s`";
    assert!(ran.err.contains(command), "{}", ran.err);
    let guarded = [&acquire[..], &["--restart-guard", "5m1s"]].concat();
    let ran = place.run(&guarded);
    assert_eq!(ran.code, 69, "{}", ran.err);
    let command = "`leasehold init --replace --restart-guard 301s`";
    assert!(ran.err.contains(command), "{}", ran.err);
    let replace = ["init", "--replace", "--restart-guard", "5m1s"];
    place.ok(&[&replace[..], &["--assume-fresh"]].concat());
    place.ok(&guarded);
}
