//! Looking at locks, and breaking them.

use leasehold_testkit::RedisServer;

use crate::{Place, eventually};

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
    assert!(field(&page, "holder").starts_with(&format!("pid {} on ", holder.pid())));
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
    assert_eq!(field(&ran.out, "state"), "unknown: not enough nodes answer");
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
        assert!(ran.err.contains("was taken away from pid"), "{}", ran.err);
        assert_eq!(waiting.end().out, "mine\n");
        assert_eq!(holder.end().code, 79);
    }
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
    assert!(ran.err.contains("was taken away from pid"), "{}", ran.err);
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
    assert!(ran.err.contains("was taken away from pid"), "{}", ran.err);
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
