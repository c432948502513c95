//! Looking at locks, and breaking them.

use leasehold_testkit::RedisServer;

use crate::{Place, Ran, eventually};

fn field(page: &str, key: &str) -> String {
    let line = page.lines().find_map(|line| line.trim().strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {page}"))
        .trim()
        .to_owned()
}

#[test]
fn show_says_who_holds_it() {
    let place = Place::local();
    assert_eq!(field(&place.ok(&["show", "a"]), "state"), "free");
    let holder = place.holding(
        "a",
        &["--label", "nightly"],
        "echo $LEASEHOLD_TOKEN > token; exec sleep 60",
    );
    let token = place.await_file("token");
    let page = place.ok(&["show", "a"]);
    assert_eq!(field(&page, "state"), "held");
    assert!(field(&page, "holder").contains(&format!(" pid {} (", holder.pid())));
    assert!(field(&page, "holder").ends_with("(nightly)"));
    assert_eq!(field(&page, "token"), token.trim());
    assert!(field(&page, "since").contains("ago"));
    assert!(!page.contains("node "), "{page}");
    assert!(place.ok(&["show", "a", "-o", "wide"]).contains("local:/"));

    let json: serde_json::Value =
        serde_json::from_str(&place.ok(&["show", "a", "-o", "json"])).expect("JSON");
    assert_eq!(json["held"], true);
    assert_eq!(json["holder"]["pid"], holder.pid());
    assert_eq!(json["owner"], field(&page, "owner"));
    assert_eq!(json["nodes"].as_array().map(Vec::len), Some(1));
    // The secret of the owner is nowhere.
    assert!(field(&page, "owner").len() < 20);
}

#[test]
fn ls_lists_what_is_held() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        assert_eq!(place.ok(&["ls"]), "no locks are held\n");
        let _one = place.holding("jobs-one", &[], "exec sleep 60");
        let _two = place.holding("jobs-two", &[], "exec sleep 60");
        let _other = place.holding("other", &[], "exec sleep 60");
        let names = |args: &[&str]| -> Vec<String> {
            let out = place.ok(args);
            let rows = out.lines().skip(1);
            rows.map(|row| row.split_whitespace().next().unwrap_or_default().to_owned())
                .collect()
        };
        assert_eq!(names(&["ls"]), ["jobs-one", "jobs-two", "other"]);
        assert_eq!(names(&["ls", "jobs-*"]), ["jobs-one", "jobs-two"]);
        let wide = place.ok(&["ls", "other", "-o", "wide"]);
        assert!(wide.contains("OWNER") && wide.contains("1/1"), "{wide}");
        let json: serde_json::Value =
            serde_json::from_str(&place.ok(&["ls", "-o", "json"])).expect("JSON");
        assert_eq!(json.as_array().map(Vec::len), Some(3));
    }
}

#[test]
fn every_node_is_shown_with_its_vote() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    // A lease needs a majority only, and a node whose floor was not known yet when the token
    // was chosen never joins it. Ten seconds after the first touch all floors are in the past.
    let everywhere = || place.ok(&["show", "a"]).matches("held by owner").count() == 3;
    let holder = eventually("all nodes have it", || {
        let holder = place.holding("a", &["--assume-fresh"], "exec sleep 60");
        if (0..20).any(|_| everywhere()) {
            return Some(holder);
        }
        holder.signal("TERM");
        holder.end();
        None
    });
    servers[2].kill();
    let page = place.ok(&["show", "a"]);
    assert_eq!(field(&page, "state"), "held");
    assert_eq!(page.matches("held by owner").count(), 2, "{page}");
    assert_eq!(page.matches("Connection refused").count(), 1, "{page}");
    assert!(place.ok(&["ls", "-o", "wide"]).contains("2/3"));
    servers[1].kill();
    let ran = place.run(&["show", "a"]);
    assert_eq!(ran.code, 69);
    let state = field(&ran.out, "state");
    assert!(
        state.starts_with("unknown: not enough nodes answer"),
        "{state}"
    );
    for dead in &servers[1..] {
        assert!(state.contains(&format!(":{}", dead.port())), "{state}");
    }
    drop(holder);
}

#[test]
fn watch_prints_again_and_again() {
    let place = Place::local();
    let out = std::fs::File::create(place.file("out")).expect("a file");
    let mut watching = place.command(&["ls", "--watch=20ms", "-o", "json"]);
    let mut watching = watching.stdout(out).spawn().expect("it starts");
    let lines = || {
        place
            .read("out")
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    eventually("it has printed", || (lines().len() > 2).then_some(()));
    let _holder = place.holding("a", &[], "exec sleep 60");
    eventually("it shows the lock", || {
        lines()
            .last()
            .is_some_and(|line| line.contains("\"name\":\"a\""))
            .then_some(())
    });
    watching.kill().expect("it can be killed");
    watching.wait().expect("it ends");
}

#[test]
fn break_takes_a_lock_from_the_owner_named_only() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let ran = place.run(&["break", "a", "--owner", "x", "--yes"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("is free"), "{}", ran.err);
        let holder = place.holding("a", &[], "exec sleep 60");
        let owner = field(&place.ok(&["show", "a"]), "owner");
        let ran = place.run(&["break", "a", "--owner", "0123456789ab", "--yes"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains(&format!("owner {owner}")), "{}", ran.err);
        // Nobody to ask.
        let ran = place.run(&["break", "a", "--owner", &owner]);
        assert_eq!(ran.code, 64);
        assert!(ran.err.contains("--yes"), "{}", ran.err);
        assert_eq!(place.run(&["run", "a", "-n", "-q", "--", "true"]).code, 75);

        let waiting = place.spawn(&["run", "a", "-w", "50s", "--", "echo", "mine"]);
        let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let line = ran
            .err
            .lines()
            .find(|line| line.contains("was taken away from "));
        let line = line.unwrap_or_else(|| panic!("{}", ran.err));
        // Not for how long it was held: that reads as the time for which it is taken away.
        assert!(line.contains(" pid ") && !line.contains(" for "), "{line}");
        assert_eq!(waiting.end().out, "mine\n");
        assert_eq!(holder.end().code, 79);
    }
}

/// A name that a command keeps, although it failed, is free after `break`.
#[test]
fn break_ends_a_name_that_is_kept() {
    let place = Place::local();
    let ran = place.run(&["run", "a", "--at-least-for", "1h", "--", "false"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 75);
    let owner = field(&place.ok(&["show", "a"]), "owner");
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err.contains("was kept by --at-least-for of "),
        "{}",
        ran.err
    );
    place.ok(&["run", "a", "-n", "--", "true"]);
}

/// Takes `a` for a minute on all of three servers; the owner's id. Again until all have it: a
/// majority is enough for a lease.
fn taken_everywhere(place: &Place) -> String {
    eventually("all nodes have it", || {
        let lease = place.ok(&["acquire", "a", "-o", "json", "--assume-fresh"]);
        let page = place.ok(&["show", "a"]);
        if page.matches("held by owner").count() == 3 {
            return Some(field(&page, "owner"));
        }
        let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
        let owner = lease["owner"].as_str().expect("an owner");
        place.ok(&["release", "a", "--owner", owner]);
        None
    })
}

/// A majority is enough to break a lock; the node that was not reached is named.
#[test]
fn break_works_without_a_minority_and_says_so() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let owner = taken_everywhere(&place);
    servers[2].kill();
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("was taken away from "), "{}", ran.err);
    let dead = format!("127.0.0.1:{}", servers[2].port());
    let warning = ran.err.lines().find(|line| line.contains("warning: "));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {}", ran.err));
    for part in [&dead, "Connection refused"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    for server in &servers[..2] {
        assert_eq!(server.get(b"a"), None);
        let port = format!(":{}", server.port());
        assert!(!warning.contains(&port), "{warning}");
    }
    place.ok(&["run", "a", "-n", "--assume-fresh", "--", "true"]);
}

/// A lock that only a majority has, of which one is dead: nobody has it any more on a majority
/// when the other has given it up, so it is broken.
#[test]
fn break_works_where_a_dead_node_was_needed() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let owner = taken_everywhere(&place);
    assert_eq!(servers[1].command(&[b"DEL", b"a"]), ":1\r\n");
    servers[2].kill();
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(servers[0].get(b"a"), None);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("was taken away from "), "{}", ran.err);
    place.ok(&["run", "a", "-n", "--assume-fresh", "--", "true"]);
}

/// Without a majority nobody can say who holds a lock: nothing is broken, also where it could
/// be, and the error names the nodes, the cause and the next step.
#[test]
fn break_needs_a_majority() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let owner = taken_everywhere(&place);
    let before = servers[0].get(b"a");
    assert!(before.is_some());
    servers[1].kill();
    servers[2].kill();
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    let dead = [1, 2].map(|index: usize| format!("127.0.0.1:{}", servers[index].port()));
    for part in [
        "error: not enough nodes answer",
        &dead[0],
        &dead[1],
        "Connection refused",
        "next: check that the servers run",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains("was taken away"), "{}", ran.err);
    assert_eq!(servers[0].get(b"a"), before);
}

/// A key that was a lock once and is something else by now does not spoil the list.
#[test]
fn keys_of_another_type_are_not_listed() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    place.ok(&["run", "a", "--", "true"]);
    let reply = servers[0].command(&[b"HSET", b"a", b"x", b"y"]);
    assert_eq!(reply, ":1\r\n");
    let _holder = place.holding("b", &[], "exec sleep 60");
    assert_eq!(place.ok(&["ls"]).lines().count(), 2);
}

/// Locks of programs in other languages are shown, respected and can be broken.
#[test]
fn foreign_locks() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let reply = servers[0].command(&[b"SET", b"a", b"0123456789abcdef0123456789abcdef"]);
    assert_eq!(reply, "+OK\r\n");
    let ran = place.run(&["run", "a", "-n", "--", "true"]);
    assert_eq!(ran.code, 75);
    assert!(ran.err.contains("it has no TTL"), "{}", ran.err);
    let page = place.ok(&["show", "a"]);
    assert_eq!(field(&page, "holder"), "another program");
    assert_eq!(field(&page, "left"), "for ever");
    place.ok(&["break", "a", "--yes", "--owner", &field(&page, "owner")]);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
}

/// A node is missing and the votes of the others do not decide: neither held nor free, but
/// unknown, with the nodes that are missing.
#[test]
fn unknown_is_an_answer_of_its_own() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    taken_everywhere(&place);
    assert_eq!(servers[1].command(&[b"DEL", b"a"]), ":1\r\n");
    let split: serde_json::Value =
        serde_json::from_str(&place.ok(&["show", "a", "-o", "json"])).expect("JSON");
    assert_eq!(
        (&split["held"], &split["state"]),
        (&true.into(), &"held".into())
    );
    servers[2].kill();
    let dead = format!("127.0.0.1:{}", servers[2].port());

    let ran = place.run(&["show", "a"]);
    assert_eq!(ran.code, 69);
    let state = field(&ran.out, "state");
    assert!(
        state.starts_with("unknown") && state.contains(&dead),
        "{state}"
    );
    let ran = place.run(&["show", "a", "-o", "json"]);
    assert_eq!(ran.code, 69);
    let json: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(json["held"].is_null(), "{json}");
    assert_eq!(json["state"], "unknown");

    let ran = place.run(&["break", "a", "--owner", "0123456789ab", "--yes"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    assert!(ran.err.contains(&dead), "{}", ran.err);
    assert!(!ran.err.contains("free"), "{}", ran.err);

    let ran = place.run(&["ls", "--no-headers"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let words: Vec<_> = ran.out.split_whitespace().take(2).collect();
    assert_eq!(words, ["a", "unknown"]);
    assert!(
        ran.err.contains(&format!("warning: {dead} did not answer")),
        "{}",
        ran.err
    );
    // A name of which no node has anything is free all the same.
    assert_eq!(field(&place.ok(&["show", "b"]), "state"), "free");
}

#[test]
fn ls_prints_names_only_or_no_header() {
    let place = Place::local();
    assert_eq!(place.ok(&["ls", "-o", "name"]), "");
    assert_eq!(place.ok(&["ls", "--no-headers"]), "");
    let _one = place.holding("jobs-one", &[], "exec sleep 60");
    let _two = place.holding("two", &[], "exec sleep 60");
    assert_eq!(place.ok(&["ls", "-o", "name"]), "jobs-one\ntwo\n");
    let table = place.ok(&["ls"]);
    assert!(
        table
            .lines()
            .next()
            .is_some_and(|line| line.contains("STATE")),
        "{table}"
    );
    let rows = place.ok(&["ls", "--no-headers"]);
    assert_eq!(rows.lines().count(), 2);
    assert!(rows.lines().all(|row| row.contains(" held ")), "{rows}");
    place.ok(&["run", "kept", "--at-least-for", "1h", "--", "true"]);
    assert!(place.ok(&["ls", "kept", "--no-headers"]).contains(" kept "));
}

/// The time of `--watch` stands behind `=` or a space, or is left out.
#[test]
fn watch_takes_a_time_or_none() {
    let place = Place::local();
    for args in [
        &["show", "a", "--watch", "20ms"][..],
        &["show", "--watch", "20ms", "a"],
        &["show", "--watch", "a"],
        &["show", "a", "--watch"],
        &["show", "a", "--watch=20ms"],
    ] {
        let out = std::fs::File::create(place.file("out")).expect("a file");
        let mut watching = place.command(args);
        let watching = watching.stdout(out).spawn().expect("it starts");
        let watching = crate::Running(Some(watching));
        eventually("it prints twice", || {
            (place.read("out").matches("free").count() > 1).then_some(())
        });
        watching.kill();
    }
}

/// A restart guard that is shorter than the default TTL is no reason to refuse what takes no
/// lock: what was taken can be looked at, released and broken.
#[test]
fn looking_needs_no_ttl() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let guard = ["--restart-guard", "4s"];
    let with = |args: &[&str]| place.ok(&[args, &guard].concat());
    // The guard keeps the server from voting at first.
    let lease = with(&["acquire", "a", "--ttl", "4s", "-o", "json"]);
    let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
    let owner = lease["owner"].as_str().expect("an owner");
    with(&["show", "a"]);
    with(&["ls"]);
    let released: Ran = place.run(&[&["release", "a", "--owner", owner], &guard[..]].concat());
    // It may be over by now.
    assert!([0, 79].contains(&released.code), "{}", released.err);
    assert_eq!(servers[0].command(&[b"SET", b"b", b"x"]), "+OK\r\n");
    let page = with(&["show", "b"]);
    with(&["break", "b", "--yes", "--owner", &field(&page, "owner")]);
}
