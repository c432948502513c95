//! `init`: new servers, growing, and what clients see of it.

use leasehold_testkit::RedisServer;

use super::Place;

/// Three servers that were just started vote at once after `init`, for clients without a flag.
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
        again.err.matches("was recorded before").count(),
        3,
        "{}",
        again.err
    );
}

/// A client that came before `init` has recorded the set. Then it has to be said that the servers
/// are new.
#[test]
fn after_the_first_client_init_needs_to_be_told_that_servers_are_new() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    assert_eq!(place.run(&["run", "x", "-n", "--", "true"]).code, 69);
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("init --assume-fresh"), "{}", ran.err);
    let ran = place.run(&["init", "--assume-fresh"]);
    assert_eq!(ran.err.matches("votes at once").count(), 3, "{}", ran.err);
    place.ok(&["run", "x", "-n", "--", "true"]);
}

/// From one node to three: refused until it is said, and then the old list is refused.
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
    assert!(run.err.contains("belongs to the nodes"), "{}", run.err);
    let done = three.run(&["init", "--replace", "--assume-fresh"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(done.err.matches("in place of").count(), 3, "{}", done.err);
    three.ok(&["run", "x", "--", "true"]);
    let old = one.run(&["run", "x", "-n", "--", "true"]);
    assert_ne!(old.code, 0, "{}", old.err);
    assert!(old.err.contains("belongs to the nodes"), "{}", old.err);
}

#[test]
fn the_embedded_store_needs_no_init() {
    let ran = Place::local().run(&["init"]);
    assert_eq!(ran.code, 64, "{}", ran.err);
    assert!(ran.err.contains("embedded store"), "{}", ran.err);
}
