//! `show`, `ls` and `break`.

use leasehold_testkit::RedisServer;

use crate::{Place, Ran, Running, eventually, until};

fn field(page: &str, key: &str) -> String {
    let line = page.lines().find_map(|line| line.trim().strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {page}"))
        .trim()
        .to_owned()
}

#[test]
fn show_prints_the_holder() {
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
    // The id is not the secret owner value, which is longer.
    assert!(field(&page, "owner").len() < 20);
}

#[test]
fn ls_lists_held_locks() {
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
fn show_prints_every_node() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    // A lease needs only a majority. A node whose floor was not known when the token was chosen never
    // joins it. Ten seconds after the first request, all floors are in the past.
    let everywhere = || place.ok(&["show", "a"]).matches("held by owner").count() == 3;
    let holder = eventually("all nodes have granted the lock", || {
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
        state.starts_with("unknown: not enough nodes answered"),
        "{state}"
    );
    for dead in &servers[1..] {
        assert!(state.contains(&format!(":{}", dead.port())), "{state}");
    }
    drop(holder);
}

#[test]
fn watch_prints_repeatedly() {
    let place = Place::local();
    let out = std::fs::File::create(place.file("out")).expect("a file");
    let mut watching = place.command(&["ls", "--watch=100ms", "-o", "json"]);
    let mut watching = watching.stdout(out).spawn().expect("it starts");
    let lines = || {
        place
            .read("out")
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    until("it has printed", || lines().len() > 2);
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
fn break_affects_only_the_given_owner() {
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
        // Without a terminal, nothing can be confirmed.
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
            .find(|line| line.contains("broke the lock `a` of "));
        let line = line.unwrap_or_else(|| panic!("{}", ran.err));
        // The message does not say for how long the lock was held.
        assert!(line.contains(" pid ") && !line.contains(" for "), "{line}");
        assert_eq!(waiting.end().out, "mine\n");
        assert_eq!(holder.end().code, 79);
    }
}

/// `break` frees a lock that `--at-least-for` keeps.
#[test]
fn break_frees_a_kept_lock() {
    let place = Place::local();
    let ran = place.run(&["run", "a", "--at-least-for", "1h", "--", "false"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 75);
    let owner = field(&place.ok(&["show", "a"]), "owner");
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err.contains("was kept after its release by "),
        "{}",
        ran.err
    );
    place.ok(&["run", "a", "-n", "--", "true"]);
}

/// Acquires `a` for a minute on all of three servers and returns the owner's id. Retries until all
/// servers have granted the lock, because a lease needs only a majority.
fn acquired_everywhere(place: &Place) -> String {
    eventually("all nodes have granted the lock", || {
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

/// A majority is enough to break a lock. A warning names the node that was not reached.
#[test]
fn break_needs_only_a_majority() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let owner = acquired_everywhere(&place);
    servers[2].kill();
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("broke the lock `a` of "), "{}", ran.err);
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

/// Two of three nodes hold a lock and one of them is dead. When the other has released it, no
/// majority holds the lock, so it is broken.
#[test]
fn break_works_if_a_dead_node_holds_the_lock() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let owner = acquired_everywhere(&place);
    assert_eq!(servers[1].command(&[b"DEL", b"a"]), ":1\r\n");
    servers[2].kill();
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(servers[0].get(b"a"), None);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("broke the lock `a` of "), "{}", ran.err);
    place.ok(&["run", "a", "-n", "--assume-fresh", "--", "true"]);
}

/// Without a majority the holder is unknown, so nothing is broken on any node. The error names the
/// nodes, the cause and the next step.
#[test]
fn break_fails_without_a_majority() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let owner = acquired_everywhere(&place);
    let before = servers[0].get(b"a");
    assert!(before.is_some());
    servers[1].kill();
    servers[2].kill();
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    let dead = [1, 2].map(|index: usize| format!("127.0.0.1:{}", servers[index].port()));
    for part in [
        "not enough nodes answered",
        &dead[0],
        &dead[1],
        "Connection refused",
        "next: check that the servers are running",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains("broke the lock"), "{}", ran.err);
    assert_eq!(servers[0].get(b"a"), before);
}

/// `ls` skips a key that used to be a lock and now has another type.
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

/// Locks of other programs are shown and respected, and can be broken.
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
    assert_eq!(field(&page, "left"), "no TTL");
    place.ok(&["break", "a", "--yes", "--owner", &field(&page, "owner")]);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
}

/// A node is missing and the answers of the others do not decide. The state is `unknown`, and the
/// output names the missing node.
#[test]
fn the_state_may_be_unknown() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    acquired_everywhere(&place);
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
    // A lock that no node knows is free anyway.
    assert_eq!(field(&place.ok(&["show", "b"]), "state"), "free");
}

#[test]
fn ls_formats() {
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

/// A shared lock is free when its last reader is gone, also if that is only kept.
#[test]
fn a_shared_lock_lasts_as_long_as_its_last_reader() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let show = || -> serde_json::Value {
            serde_json::from_str(&place.ok(&["show", "a", "-o", "json"])).expect("JSON")
        };
        place.ok(&["run", "a", "--shared", "--at-least-for", "1h", "--", "true"]);
        assert_eq!(show()["state"], "kept");
        let shown = place.ok(&["show", "a"]);
        assert!(
            shown.contains("kept: released") && shown.contains(", kept, "),
            "{shown}"
        );
        let _ = place.ok(&["acquire", "a", "--shared", "--ttl", "10m"]);
        let json = show();
        assert_eq!(json["state"], "shared");
        assert_eq!(json["readers"].as_array().map(Vec::len), Some(2));
        let remaining = json["remaining_ms"].as_u64().expect("a time");
        assert!(remaining > 15 * 60 * 1000, "{json}");
        let row = place.ok(&["ls", "--no-headers"]);
        assert!(!row.contains(" 9m"), "{row}");
        // The part that is kept can be removed.
        let kept = json["readers"].as_array().expect("readers");
        let kept = kept.iter().find(|reader| reader["holder"]["kept"] == true);
        let owner = kept.expect("it is kept")["owner"].as_str().expect("an id");
        let ran = place.run(&["break", "a", "--yes", "--owner", owner]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.err.contains("`a` is no longer kept by "), "{}", ran.err);
        assert_eq!(show()["readers"].as_array().map(Vec::len), Some(1));
    }
}

/// The time of `--watch` follows `=` or a space, or is omitted.
#[test]
fn the_time_of_watch_is_optional() {
    let place = Place::local();
    for args in [
        &["show", "a", "--watch", "100ms"][..],
        &["show", "--watch", "100ms", "a"],
        &["show", "--watch", "a"],
        &["show", "a", "--watch"],
        &["show", "a", "--watch=100ms"],
    ] {
        let out = std::fs::File::create(place.file("out")).expect("a file");
        let mut watching = place.command(args);
        let watching = Running::start(watching.stdout(out));
        until("it prints twice", || {
            place.read("out").matches("free").count() > 1
        });
        watching.kill();
    }
}

/// A restart guard that is shorter than the default TTL does not matter to commands that acquire
/// nothing: `show`, `ls`, `release` and `break`.
#[test]
fn inspection_works_with_a_short_restart_guard() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let guard = ["--restart-guard", "4s"];
    let with = |args: &[&str]| place.ok(&[args, &guard].concat());
    // At first, the server does not vote because of the restart guard.
    let lease = with(&["acquire", "a", "--ttl", "4s", "-o", "json"]);
    let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
    let owner = lease["owner"].as_str().expect("an owner");
    with(&["show", "a"]);
    with(&["ls"]);
    let released: Ran = place.run(&[&["release", "a", "--owner", owner], &guard[..]].concat());
    // The lease may have expired by now.
    assert!([0, 79].contains(&released.code), "{}", released.err);
    assert_eq!(servers[0].command(&[b"SET", b"b", b"x"]), "+OK\r\n");
    let page = with(&["show", "b"]);
    with(&["break", "b", "--yes", "--owner", &field(&page, "owner")]);
}

/// `ls -o name` prints names that are valid arguments. Bytes that a line of text cannot have are escaped.
#[test]
fn listed_names_are_arguments() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::local();
    for name in [r"back\slash", r"a\xff", "é {x} ", "it's", "*"] {
        place.ok(&["acquire", name]);
        let listed = place.ok(&["ls", "-o", "name"]);
        assert_eq!(listed, format!("{name}\n"));
        let listed = listed.trim_end_matches('\n');
        let owner = place.owner_id(listed);
        place.ok(&["break", listed, "--owner", &owner, "--yes"]);
    }
    let mut command = place.command(&["acquire"]);
    command.arg(std::ffi::OsStr::from_bytes(b"a\xff\nb\\"));
    assert_eq!(Running::start(&mut command).end().code, 0);
    assert_eq!(place.ok(&["ls", "-o", "name"]), "a\\xff\\nb\\\\\n");
}

/// Permits are listed by number, and without any the message says what is missing.
#[test]
fn permits_are_listed_by_number() {
    let place = Place::local();
    place.ok(&["acquire", "other"]);
    let page = place.ok(&["show", "x", "--permits"]);
    assert_eq!(page, "no permit of `x` is held\n");
    assert_eq!(place.ok(&["ls", "acc*"]), "no held lock matches `acc*`\n");
    let _all = place.holding("x", &["--permits", "12", "--take", "12"], "exec sleep 600");
    // The lock of the collector is released in the background.
    until("it has collected them", || {
        !place.ok(&["ls"]).contains("collecting")
    });
    let json = place.ok(&["ls", "x", "-o", "json"]);
    let json: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    let numbers: Vec<_> = json.iter().map(|lock| lock["permit"].as_u64()).collect();
    assert_eq!(numbers, (0..12).map(Some).collect::<Vec<_>>());
}

/// The arrivals at a latch are listed under its name.
#[test]
fn parties_of_a_latch_are_listed() {
    let place = Place::local();
    place.ok(&["ls"]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let store = format!("local:{}", place.file("state/leasehold/locks.db").display());
    let arrived = runtime.block_on(async {
        let client = leasehold::Client::builder().node(&store).build()?;
        let latch = client.latch("import", ["orders", "customers"]);
        latch.arrive("orders").await
    });
    arrived.expect("it arrives");
    let list = place.ok(&["ls"]);
    assert!(list.contains("import  party orders arrived"), "{list}");
    assert!(!list.contains("leasehold:"), "{list}");
    let json = place.ok(&["ls", "import", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[0]["party"], "orders");
}

/// A holder renews its lease every third of the TTL, and the message of `break` says no more.
#[test]
fn break_says_when_the_holder_notices() {
    let place = Place::local();
    let _holder = place.holding("a", &["--ttl", "60s"], "exec sleep 600");
    let owner = place.owner_id("a");
    let ran = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    let (_, time) = ran
        .err
        .trim()
        .split_once("renewal, within ")
        .expect("a time");
    let seconds: u64 = time.trim_end_matches('s').parse().expect("seconds");
    assert!((1..=20).contains(&seconds), "{}", ran.err);
}

/// A label of another user cannot change how the line around it is shown.
#[test]
fn labels_are_visible() {
    let place = Place::local();
    let label = "a\u{202e}b";
    let command = place.holding("l", &["--label", label], crate::UNTIL_GO);
    let refused = place.run(&["run", "l", "-n", "--", "true"]);
    assert_eq!(refused.code, 75);
    for text in [place.ok(&["show", "l"]), place.ok(&["ls"]), refused.err] {
        assert!(text.contains("(a\\u{202e}b)"), "{text}");
        assert!(!text.contains('\u{202e}'), "{text}");
    }
    let shown: serde_json::Value =
        serde_json::from_str(&place.ok(&["show", "l", "-o", "json"])).expect("JSON");
    assert_eq!(shown["holder"]["label"], label);
    place.touch("go");
    assert_eq!(command.end().code, 0);
}
