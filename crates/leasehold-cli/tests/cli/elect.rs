//! `elect`: a command that runs on one machine at a time.

use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::{Place, Running, events, kinds, until};

const LEADS: &str = "echo $VALUE >> leaders; exec sleep 60";

fn candidate(place: &Place, value: &str, line: &str) -> Running {
    let mut command =
        place.command(&["elect", "boss", "--value", value, "--ttl", "2s", "-c", line]);
    Running(Some(
        command.env("VALUE", value).spawn().expect("it starts"),
    ))
}

fn leaders(place: &Place) -> Vec<String> {
    place.read("leaders").lines().map(str::to_owned).collect()
}

/// A candidate that is killed is followed by the other, and an observer sees both.
#[test]
fn another_candidate_follows_a_leader_that_dies() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let seen = std::fs::File::create(place.file("seen")).expect("created");
    let mut observer = place.command(&["elect", "boss", "--observe", "--json"]);
    let observer = Running(Some(observer.stdout(seen).spawn().expect("it starts")));
    until("the observer looks", || {
        place.read("seen").contains("no_leader")
    });
    let first = candidate(&place, "one", LEADS);
    // On an overloaded machine, a leader may lose its lease and lead again.
    let leads = |value: &str| leaders(&place).last().is_some_and(|last| last == value);
    until("one leads", || leads("one"));
    let second = candidate(&place, "two", LEADS);
    until("it is seen", || place.read("seen").contains("\"one\""));
    let shown = place.ok(&["show", "boss"]);
    assert!(shown.contains("(one)"), "{shown}");
    let killed = Instant::now();
    first.kill();
    until("two leads", || leads("two"));
    assert!(killed.elapsed() < Duration::from_secs(60));
    until("it is seen", || place.read("seen").contains("\"two\""));
    second.signal("TERM");
    assert_eq!(second.end().code, 143);
    until("nobody leads", || {
        kinds(&events(&place.read("seen"))).ends_with(&["no_leader".to_owned()])
    });
    observer.signal("TERM");
    assert_eq!(observer.end().code, 143);
    let tokens: Vec<_> = events(&place.read("seen"))
        .iter()
        .filter_map(|event| event["token"].as_u64())
        .collect();
    assert!(tokens.is_sorted() && tokens.len() >= 2, "{tokens:?}");
}

/// A command that fails is started again here after a pause, during which no other candidate leads.
#[test]
fn a_command_that_fails_stays_on_its_machine_for_the_pause() {
    let place = Place::local();
    let first = candidate(&place, "one", "echo one >> leaders; exit 1");
    until("it failed", || leaders(&place) == ["one"]);
    until("the name is kept", || {
        place.ok(&["show", "boss"]).contains("kept")
    });
    let ran = place.run(&["run", "boss", "-n", "--", "true"]);
    assert_eq!(ran.code, 75, "{}", ran.err);
    until("it leads again", || leaders(&place).len() >= 2);
    // The pause: it ends at once.
    until("it failed again", || {
        place.ok(&["show", "boss"]).contains("kept")
    });
    first.signal("TERM");
    assert_eq!(first.end().code, 143);
}

/// SIGTERM ends the command, and then the tool with the command's exit code. The name is free at once.
#[test]
fn a_signal_ends_the_command_and_the_tool() {
    let place = Place::local();
    let line = "trap 'exit 5' TERM; echo one >> leaders; while :; do sleep 0.01; done";
    let leader = candidate(&place, "one", line);
    until("it leads", || leaders(&place) == ["one"]);
    leader.signal("TERM");
    assert_eq!(leader.end().code, 5);
    assert!(place.ok(&["show", "boss"]).contains("free"));
    let ran = place.run(&["elect", "boss", "--", "/no/such/command"]);
    assert_eq!(ran.code, 127, "{}", ran.err);
}

/// A candidate that has stood in line stays a candidate, however long the nodes are away.
#[test]
fn a_candidate_in_line_survives_a_long_outage() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let lease = place.ok(&["acquire", "boss", "--ttl", "24h", "-o", "json"]);
    let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
    let err = std::fs::File::create(place.file("err")).expect("created");
    let mut standby = place.command(&["elect", "boss", "--json", "-c", LEADS]);
    let standby = Running::start(standby.env("VALUE", "two").stderr(err));
    place.until_waiters("boss", 1);
    servers[0].stop();
    until("the outage is reported", || {
        place.read("err").contains("\"pausing\"")
    });
    servers[0].resume();
    let owner = lease["owner"].as_str().expect("an owner");
    place.ok(&["release", "boss", "--owner", owner]);
    until("it leads", || leaders(&place) == ["two"]);
    standby.signal("TERM");
    assert_eq!(standby.end().code, 143);
    // At the start, it does not wait for ever.
    servers[0].kill();
    let ran = place.run(&["elect", "boss", "--", "true"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
}

#[test]
fn the_observer_prints_text() {
    let place = Place::local();
    let seen = std::fs::File::create(place.file("seen")).expect("created");
    let _leader = candidate(&place, "10.0.0.7:80", LEADS);
    until("it leads", || leaders(&place).len() == 1);
    let mut observer = place.command(&["elect", "boss", "--observe"]);
    let _observer = Running(Some(observer.stdout(seen).spawn().expect("it starts")));
    until("it is seen", || {
        place.read("seen").starts_with("10.0.0.7:80 (")
    });
}

/// An observer that cannot ask the nodes says so at the start.
#[test]
fn an_observer_without_nodes_fails() {
    let mut servers = RedisServer::start_many(1);
    servers[0].run("ACL SETUSER viewer on >x %R~* resetchannels +get +pttl +time +zcard +zrange");
    let port = servers[0].port();
    let observe = ["elect", "boss", "--observe"];
    for (user, part) in [("viewer:x@", "permission"), ("viewer:y@", "password")] {
        let mut place = Place::redis(&servers);
        place.nodes = Some(format!("redis://{user}127.0.0.1:{port}"));
        let ran = place.run(&observe);
        assert_eq!((ran.code, &*ran.out), (69, ""), "{}", ran.err);
        assert!(ran.err.contains(part), "{}", ran.err);
    }
    servers[0].kill();
    let ran = Place::redis(&servers).run(&observe);
    assert_eq!(ran.code, 69, "{}", ran.err);
    assert!(
        ran.err.contains("next: check that the servers"),
        "{}",
        ran.err
    );
}
