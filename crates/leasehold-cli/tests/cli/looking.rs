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
