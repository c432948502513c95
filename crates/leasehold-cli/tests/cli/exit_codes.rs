//! Exit codes.

use leasehold_testkit::RedisServer;

use crate::Place;

#[test]
fn exit_code_of_the_command() {
    let place = Place::local();
    for code in [0, 1, 7, 64, 255] {
        let ran = place.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ran.code, ran.err.as_str()), (code, ""));
    }
}

#[test]
fn exit_code_128_plus_signal() {
    let place = Place::local();
    for (signal, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("USR1", 10)] {
        let ran = place.run(&["run", "a", "-c", &format!("kill -s {signal} $$")]);
        assert_eq!(ran.code, 128 + number, "{}", ran.err);
    }
}

#[test]
fn exit_code_75_if_held_or_conflict_exit_code() {
    let place = Place::local();
    let holder = place.holding("a", &["--label", "nightly"], "exec sleep 60");
    // The first tokens of a new store are ahead of its clock, and tell no time.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let ran = place.run(&["run", "a", "-n", "--", "true"]);
    assert_eq!(ran.code, 75);
    // The message names the holder, its label, and for how long it has held the lock.
    let pid = format!("pid {}", holder.pid());
    for part in ["`a` is held by", &pid, "(nightly) for", "expires in"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let ran = place.run(&["run", "a", "-w", "50ms", "--", "true"]);
    assert_eq!(ran.code, 75);
    assert!(ran.err.contains("waited for"), "{}", ran.err);
    let ran = place.run(&["run", "a", "-n", "-E", "9", "--", "true"]);
    assert_eq!(ran.code, 9);
    let ran = place.run(&["run", "a", "-n", "-q", "-E", "0", "--", "false"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(place.run(&["acquire", "a", "-n"]).code, 75);
}

#[test]
fn exit_code_69_without_a_majority() {
    let servers = RedisServer::start_many(1);
    let mut place = Place::redis(&servers);
    let up = servers[0].url();
    place.nodes = Some(format!("{up},redis://127.0.0.1:1,redis://127.0.0.1:2"));
    for args in [
        &["run", "a", "-n", "--assume-fresh", "--", "true"][..],
        &["run", "a", "-w", "100ms", "--assume-fresh", "--", "true"],
        &["acquire", "a", "-n", "--assume-fresh"],
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 69, "{}", ran.err);
        for part in [
            "127.0.0.1:1",
            "refused",
            "2 of 3 nodes",
            "next: check that the servers are running",
        ] {
            assert!(ran.err.contains(part), "{part}: {}", ran.err);
        }
    }
    for args in [
        &["ls"][..],
        &["show", "a"],
        &["break", "a", "--owner", "x", "--yes"],
    ] {
        assert_eq!(place.run(args).code, 69, "{args:?}");
    }
    // For nodes that do not vote yet, the message says when they will.
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let ran = place.run(&["run", "a", "-n", "--", "true"]);
    assert_eq!(ran.code, 69);
    assert!(ran.err.contains("votes in"), "{}", ran.err);
    assert!(ran.err.contains("--assume-fresh"), "{}", ran.err);
}

#[test]
fn exit_code_64_for_wrong_usage() {
    let place = Place::local();
    let long = "x".repeat(1025);
    for (args, says) in [
        (&["run", "a"][..], "COMMAND"),
        (&["run", "", "--", "touch", "ran"], "1 to 1024 bytes"),
        (&["run", &long, "--", "touch", "ran"], "1 to 1024 bytes"),
        (&["run", "leasehold:x", "--", "touch", "ran"], "leasehold:"),
        (
            &["run", "a", "--ttl", "0s", "--", "touch", "ran"],
            "--ttl 0s must be between",
        ),
        (
            &["run", "a", "--ttl", "10 x", "--", "touch", "ran"],
            "examples: 30 (seconds)",
        ),
        (&["run", "a", "--ttl", "-5s", "--", "touch", "ran"], "-5"),
        (
            &["run", "a", "--grace", "6s", "--", "touch", "ran"],
            "half of --ttl",
        ),
        (
            &["run", "a", "--at-least-for", "48h", "--", "touch", "ran"],
            "--at-least-for 2days must be between 0s and",
        ),
        (
            &["run", "a", "-n", "-w", "1s", "--", "touch", "ran"],
            "cannot be used",
        ),
        (
            &["run", "a", "-q", "-v", "--", "touch", "ran"],
            "cannot be used",
        ),
        (&["run", "a", "-E", "256", "--", "touch", "ran"], "256"),
        (
            &["run", "a", "-c", "touch ran", "--", "touch", "ran"],
            "cannot be used",
        ),
        (
            &["run", "a", "--label", "a\nb", "--", "touch", "ran"],
            "label",
        ),
        (
            &["run", "a", "--node", "http://x", "--", "touch", "ran"],
            "expected redis://",
        ),
        (
            &["run", "a", "--node", "local:x.db", "--", "touch", "ran"],
            "absolute",
        ),
        (
            &[
                "run",
                "a",
                "--node",
                "local:/no/such/dir/x.db",
                "--",
                "touch",
                "ran",
            ],
            "does not exist",
        ),
        (
            &[
                "run",
                "a",
                "--node",
                "local:",
                "--node",
                "redis://x",
                "--",
                "touch",
                "ran",
            ],
            "only node",
        ),
        (
            &["run", "a", "--nodes-file", "none", "--", "touch", "ran"],
            "No such file",
        ),
        (&["extend", "a"], "--owner"),
        (&["release", "a", "--owner", "nonsense"], "invalid owner"),
        (&["man", "nonsense"], "unknown command `nonsense`"),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 64, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn exit_codes_126_and_127_release_the_lock() {
    let place = Place::local();
    std::fs::write(place.file("data"), "x").expect("written");
    let ran = place.run(&["run", "a", "--", "no-such-command"]);
    assert_eq!(ran.code, 127);
    assert!(
        ran.err.contains("cannot run `no-such-command`"),
        "{}",
        ran.err
    );
    assert_eq!(place.run(&["run", "a", "--", "./data"]).code, 126);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
}

#[test]
fn exit_code_0_for_help_and_version() {
    let place = Place::local();
    assert!(place.ok(&["--help"]).contains("Usage"));
    assert!(place.ok(&["run", "--help"]).contains("--at-least-for"));
    assert!(place.ok(&["--version"]).starts_with("leasehold "));
}

/// A writer that waits keeps readers from a lock that other readers hold. It is not the holder.
#[test]
fn a_waiter_is_not_called_the_holder() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let _reader = place.holding("a", &["--shared", "--label", "r"], "exec sleep 60");
        let ran = place.run(&["run", "a", "-n", "--", "true"]);
        assert_eq!(ran.code, 75);
        assert!(
            ran.err.contains("is held by readers (latest: "),
            "{}",
            ran.err
        );
        let writer = place.spawn(&["run", "a", "--label", "w", "--", "true"]);
        place.until_waiters("a", 1);
        let ran = place.run(&["run", "a", "-n", "--shared", "--", "true"]);
        assert_eq!(ran.code, 75);
        for part in ["`a` is wanted by ", "(w), which is first in line"] {
            assert!(ran.err.contains(part), "{}", ran.err);
        }
        writer.kill();
    }
}
