//! `run --also`: several locks, all or none.

use leasehold_testkit::RedisServer;

use crate::{Place, Running, UNTIL_GO, events, kinds, until};

const TOOL: &str = env!("CARGO_BIN_EXE_leasehold");

/// The state of a lock and its token, as `show` reports them.
fn state(place: &Place, name: &str) -> (String, Option<u64>) {
    let page = place.ok(&["show", name, "-o", "json"]);
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let state = page["state"].as_str().expect("a state").to_owned();
    (state, page["holder"]["token"].as_u64())
}

fn until_free(place: &Place, name: &str) {
    until("the lock is free", || state(place, name).0 == "free");
}

/// While the command runs, all locks are held, with the tokens that the command sees. When it has
/// ended, all are free.
#[test]
fn all_locks_are_held_while_the_command_runs() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let args = ["--also-shared", "d", "--also", "b c", "--also", "a"];
        let line = "echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN $LEASEHOLD_TOKENS > seen";
        let running = place.holding("x", &args, &format!("{line}; @@ {UNTIL_GO}"));
        let states = ["x", "b c", "a", "d"].map(|name| state(&place, name));
        let tokens = states.each_ref().map(|(_, token)| token.expect("a token"));
        let states = states.each_ref().map(|(state, _)| state.as_str());
        assert_eq!(states, ["held", "held", "held", "shared"]);
        let [first, second, third, fourth] = tokens;
        let seen = format!("x {first} {first} {second} {third} {fourth}\n");
        assert_eq!(place.await_file("seen"), seen);
        // Others share the shared lock, and wait for all others.
        place.ok(&["run", "d", "--shared", "-n", "--", "true"]);
        for name in ["x", "b c", "a", "d"] {
            let ran = place.run(&["run", name, "-n", "--", "true"]);
            assert_eq!(ran.code, 75, "{name}: {}", ran.err);
        }
        place.touch("go");
        assert_eq!(running.end().code, 0);
        for name in ["x", "b c", "a", "d"] {
            assert_eq!(state(&place, name).0, "free", "{name}");
        }
        // One lock has one token, also inside a run with several.
        let inner = format!("{TOOL} run y -c 'echo $LEASEHOLD_TOKEN = $LEASEHOLD_TOKENS'");
        let out = place.ok(&["run", "a", "--also", "b", "-c", &inner]);
        let (token, tokens) = out.trim().split_once(" = ").expect("both");
        assert_eq!(token, tokens);
        // `--shared` applies to the first name only.
        let args = ["--shared", "--also", "b"];
        let running = place.holding("a", &args, "exec sleep 60");
        assert_eq!(state(&place, "a").0, "shared");
        assert_eq!(state(&place, "b").0, "held");
        running.signal("TERM");
        running.end();
    }
}

/// Runs that want the same locks in opposite orders all finish, and exclude each other.
#[test]
fn opposite_orders_do_not_deadlock() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let line = |first: &str, second: &str| {
            let command = "mkdir inside || touch clash; sleep 0.01; rmdir inside";
            let run = format!("{TOOL} run {first} --also {second} -c '{command}'");
            format!("for i in 1 2 3 4 5; do {run} || exit; done")
        };
        let lines = [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")];
        let running = lines.map(|(first, second)| {
            let line = line(first, second);
            let mut shell = crate::wrapped("sh", &["-c", &line], &place.command(&[]));
            Running::start(&mut shell)
        });
        for running in running {
            let ran = running.end();
            assert_eq!(ran.code, 0, "{}", ran.err);
        }
        assert!(!place.file("clash").exists());
    }
}

/// One lock that is held makes the request fail, and nothing is left behind: not even with
/// `--at-least-for`.
#[test]
fn one_held_lock_is_enough_to_fail() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding("b", &["--ttl", "60s"], "exec sleep 60");
        for (args, code) in [
            (&["-n"][..], 75),
            (&["-n", "-E", "9"], 9),
            (&["-w", "300ms"], 75),
            (&["-n", "--at-least-for", "1h"], 75),
            (&["-w", "300ms", "--at-least-for", "1h"], 75),
        ] {
            let command = ["run", "c", "--also", "b", "--also-shared", "a"];
            let ran = place.run(&[&command[..], args, &["--", "touch", "ran"]].concat());
            assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
            let says = "`c`, `b` and `a` could not be acquired: ";
            assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
            assert!(ran.err.contains("`b` is held by"), "{args:?}: {}", ran.err);
            for name in ["a", "c"] {
                until_free(&place, name);
            }
        }
        assert!(!place.file("ran").exists());
        drop(holder);
    }
}

/// A waiter reports which of the locks it waits for.
#[test]
fn a_wait_names_the_lock_that_is_held() {
    let place = Place::local();
    let holder = place.holding("b", &[], UNTIL_GO);
    let run = |name: &str, flag: &str, errors: &str| {
        let args = ["run", name, "--also", "b", flag, "--", "true"];
        let errors = std::fs::File::create(place.file(errors)).expect("a file");
        Running::start(place.command(&args).stderr(errors))
    };
    let running = [run("a", "--json", "events"), run("c", "-v", "steps")];
    for (file, word) in [("events", "\"waiting\""), ("steps", "waiting for")] {
        until("it waits", || place.read(file).contains(word));
    }
    place.until_waiters("b", 2);
    assert_eq!(state(&place, "a").0, "held", "the smaller name is held");
    place.touch("go");
    assert_eq!(holder.end().code, 0);
    for running in running {
        assert_eq!(running.end().code, 0);
    }
    let steps = place.read("steps");
    for part in [
        "waiting for `c` and `b`: `b` is held by",
        "acquired `c` and `b`, tokens ",
        "released `c` and `b` after",
    ] {
        assert!(steps.contains(part), "{part}: {steps}");
    }
    let events = events(&place.read("events"));
    let kinds = kinds(&events);
    for (event, kind) in events.iter().zip(&kinds) {
        assert_eq!(event["name"], "a");
        assert_eq!(event["names"], serde_json::json!(["a", "b"]));
        match kind.as_str() {
            "waiting" => assert_eq!(event["lock"], "b"),
            "acquired" => {
                let tokens = event["tokens"].as_array().expect("tokens");
                assert_eq!((tokens.len(), &tokens[0]), (2, &event["token"]));
            }
            _ => {}
        }
    }
}

/// Losing one lock is losing all: the command is stopped, and the others are released.
#[test]
fn a_lost_lock_stops_the_command() {
    let place = Place::local();
    let command = "exec 2>/dev/null; trap 'echo stopped > stopped; exit 0' TERM; @@ \
                   while :; do sleep 0.01; done";
    for broken in ["a", "b"] {
        let args = ["--also", "b", "--ttl", "3s", "--json"];
        let running = place.holding("a", &args, command);
        place.ok(&["break", broken, "--owner", &place.owner_id(broken), "--yes"]);
        let ran = running.end();
        assert_eq!(ran.code, 79, "{}", ran.err);
        assert_eq!(place.await_file("stopped"), "stopped\n");
        let all = events(&ran.err);
        let lost: Vec<_> = all
            .iter()
            .filter(|event| event["event"] == "lost")
            .collect();
        assert_eq!(lost.len(), 1, "{}", ran.err);
        assert_eq!(lost[0]["lock"], broken, "{}", ran.err);
        let released = all.last().expect("an event");
        assert_eq!(released["was_lost"], true, "{}", ran.err);
        for name in ["a", "b"] {
            until_free(&place, name);
        }
        std::fs::remove_file(place.file("stopped")).expect("removed");
        std::fs::remove_file(place.file("started.a")).expect("removed");
    }
}

/// If no majority answers, all locks are lost at the same deadline.
#[test]
fn the_command_does_not_outlive_its_locks() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let command = "trap '' TERM; @@ while :; do sleep 0.01; done";
    let args = ["--also", "b", "--ttl", "3s", "--grace", "1s"];
    let running = place.holding("a", &args, command);
    servers[0].stop();
    let ran = running.end();
    servers[0].resume();
    assert_eq!(ran.code, 79, "{}", ran.err);
    assert!(!crate::is_alive(&place.read("started.a")));
    assert!(ran.err.contains("could not be renewed"), "{}", ran.err);
}

/// If the tool is killed, the embedded store frees all locks as soon as the command has ended.
#[test]
fn the_locks_of_a_killed_run_are_free() {
    let place = Place::local();
    let args = ["--also", "b", "--ttl", "10m"];
    let running = place.holding("a", &args, "exec sleep 60");
    for name in ["a", "b"] {
        place.await_bound(name);
    }
    running.kill();
    for name in ["a", "b"] {
        until_free(&place, name);
    }
}

/// A run inside the command knows all locks that are held.
#[test]
fn an_enclosing_run_is_recognised_by_all_its_locks() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let other = place.holding("held", &[], "exec sleep 60");
        for inner in [
            "run b -- touch ran",
            "run b -n -- touch ran",
            "run c --also b -- touch ran",
            "run c --also a --also b -w 50 -- touch ran",
            // Another process holds a lock that comes before it.
            "run held --also x -n -- touch ran",
            "run held --also x -- touch ran",
            "acquire b",
        ] {
            let inner = format!("{TOOL} {inner}");
            let args = ["run", "a", "--also", "b", "--also", "x", "-c"];
            let ran = place.run(&[&args[..], &[&inner]].concat());
            assert_eq!(ran.code, 64, "{inner}: {}", ran.err);
            let says = "an enclosing `leasehold run` holds `";
            assert!(ran.err.contains(says), "{inner}: {}", ran.err);
        }
        assert!(!place.file("ran").exists());
        let inner = format!("{TOOL} run b --inherit -c 'echo $LEASEHOLD_NAME $LEASEHOLD_TOKENS'");
        let line = format!("set -- $LEASEHOLD_TOKENS; echo b $2; {inner}");
        let out = place.ok(&["run", "a", "--also", "b", "-c", &line]);
        let lines: Vec<_> = out.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{out}");
        drop(other);
    }
}

#[test]
fn wrong_usage() {
    let place = Place::local();
    let many: Vec<_> = (0..64).map(|n| format!("--also=n{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for (args, says) in [
        (&["run", "a", "--also", "a"][..], "`a` is among the names"),
        (&["run", "a", "--also", "b", "--also-shared", "b"], "`b` is"),
        (&[&["run", "a"], &many[..]].concat(), "between 1 and 64"),
        (&["run", "a", "--also", ""], "must be 1 to 1024 bytes"),
        (&["run", "a", "--also", "b", "--inherit"], "--inherit"),
        (
            &["run", "a", "--also-shared", "b", "--inherit"],
            "--inherit",
        ),
        (&["once", "a", "--also", "b", "--for", "5m"], "--also"),
        (&["elect", "a", "--also", "b"], "--also"),
        (&["acquire", "a", "--also", "b"], "--also"),
    ] {
        let ran = place.run(&[args, &["--", "touch", "ran"]].concat());
        assert_eq!(ran.code, 64, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
    }
    assert!(!place.file("ran").exists());
    // As many as are allowed.
    let line = ["-c", "echo $LEASEHOLD_TOKENS | wc -w"];
    let out = place.ok(&[&["run", "a"], &many[1..], &line].concat());
    assert_eq!(out.trim(), "64");
}
