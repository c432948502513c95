//! The lease is lost while the command runs.

use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::{Place, UNTIL_GO, events, is_alive, kinds, until};

fn token(text: &str) -> u64 {
    text.trim().parse().expect("a token")
}

/// If no majority answers, the local deadline decides: SIGTERM before it, SIGKILL at the deadline. No
/// other process acquires the lock before the command has ended.
#[test]
fn the_command_is_stopped_without_a_majority() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let flags = [
        "--ttl",
        "5s",
        "--grace",
        "1s",
        "--restart-guard",
        "5s",
        "--assume-fresh",
    ];
    let command = "trap 'echo stopped > stopped' TERM; echo $LEASEHOLD_TOKEN > token; @@ \
                   sh -c 'trap \"\" TERM; echo $$ > inner; while :; do sleep 0.01; done' & \
                   while :; do sleep 0.01; done";
    let running = place.holding("a", &flags, command);
    let (first, inner) = (token(&place.await_file("token")), place.await_file("inner"));
    let outer = place.await_file("started.a");
    servers[0].stop();
    servers[1].stop();
    let stopped = Instant::now();
    // A waiter checks whether the first command is still running when it acquires the lock.
    let check = format!(
        "for p in {} {}; do case $(cut -d')' -f2 /proc/$p/stat 2>/dev/null) in ''|' Z'*) ;; \
         *) echo $p is alive ;; esac; done; echo $LEASEHOLD_TOKEN",
        outer.trim(),
        inner.trim()
    );
    let mut next = vec!["run", "a", "-w", "50s"];
    next.extend(flags);
    next.extend(["-c", &check]);
    let next = place.spawn(&next);
    let ran = running.end();
    assert_eq!(ran.code, 79, "{}", ran.err);
    assert!(ran.err.contains("could not be renewed"), "{}", ran.err);
    assert!(
        stopped.elapsed() >= Duration::from_millis(800),
        "SIGTERM came too early"
    );
    assert_eq!(place.await_file("stopped"), "stopped\n");
    assert!(!is_alive(&outer) && !is_alive(&inner));
    servers[0].resume();
    servers[1].resume();
    let ran = next.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(token(&ran.out) > first, "{}", ran.out);
}

/// A holder is stopped for longer than its TTL. When it is continued, its command is killed at once.
/// The next holder has a larger token.
#[test]
fn a_stopped_holder_loses_the_lease() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let command =
            "echo $LEASEHOLD_TOKEN > token; trap '' TERM; @@ while :; do sleep 0.01; done";
        let running = place.holding("a", &["--ttl", "3s"], command);
        let pid = place.await_file("started.a");
        let first = token(&place.await_file("token"));
        running.signal("STOP");
        std::thread::sleep(Duration::from_secs(5));
        let out = place.ok(&["run", "a", "-w", "30s", "-c", "echo $LEASEHOLD_TOKEN"]);
        assert!(token(&out) > first);
        running.signal("CONT");
        assert_eq!(running.end().code, 79);
        until("the command has ended", || !is_alive(&pid));
    }
}

/// The holder of a broken lock reports the reason, stops its command and exits.
#[test]
fn the_command_of_a_broken_lock_is_stopped() {
    let place = Place::local();
    let command = "trap 'echo stopped > stopped; exit 0' TERM; @@ while :; do sleep 0.01; done";
    let running = place.holding("a", &["--ttl", "3s", "-v"], command);
    place.ok(&["break", "a", "--owner", &place.owner_id("a"), "--yes"]);
    let ran = running.end();
    assert_eq!(ran.code, 79);
    assert!(
        ran.err.contains("lost `a`: the lock was broken"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("released"), "{}", ran.err);
    assert_eq!(place.await_file("stopped"), "stopped\n");
}

/// A node that is slower than the others has no part in what they have answered.
#[test]
fn a_node_that_has_not_answered_is_not_the_cause() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let args = ["--ttl", "6s", "--on-lost", "warn", "--assume-fresh"];
    let running = place.holding("a", &args, UNTIL_GO);
    let owner = place.owner_id("a");
    servers[2].stop();
    let broken = place.run(&["break", "a", "--owner", &owner, "--yes"]);
    assert_eq!(broken.code, 0, "{}", broken.err);
    // The next renewal is due after 2 s.
    std::thread::sleep(Duration::from_secs(3));
    place.touch("go");
    let ran = running.end();
    servers[2].resume();
    let says = "lost `a`: the lock was broken";
    assert!(ran.err.contains(says), "{}", ran.err);
    assert!(!ran.err.contains("no answer yet"), "{}", ran.err);
}

/// With `--on-lost warn`, the command continues and its exit code is kept.
#[test]
fn on_lost_warn() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let args = ["--ttl", "3s", "--on-lost", "warn"];
    let running = place.holding("a", &args, "while [ ! -e go ]; do sleep 0.01; done; exit 5");
    servers[0].stop();
    std::thread::sleep(Duration::from_secs(6));
    servers[0].resume();
    place.touch("go");
    let ran = running.end();
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains("lost `a`"), "{}", ran.err);
}

/// A lost lease has one `lost` event and `was_lost: true`, whether the command ends within its grace
/// period, is killed at the deadline, or continues (`--on-lost warn`).
#[test]
fn the_events_of_a_loss_agree_with_the_exit_code() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    // The shell writes to stderr when its child is terminated.
    let obeys = "exec 2>/dev/null; trap 'exit 0' TERM; @@ while :; do sleep 0.01; done";
    let ignores = "exec 2>/dev/null; trap '' TERM; @@ while :; do sleep 0.01; done";
    let goes_on = "@@ while [ ! -e go ]; do sleep 0.01; done; exit 5";
    for (name, flags, command, code) in [
        ("a", &["--grace", "2s"][..], obeys, 79),
        ("b", &["--grace", "1s"], ignores, 79),
        ("c", &["--on-lost", "warn"], goes_on, 5),
    ] {
        let mut args = vec!["--json", "--ttl", "6s"];
        args.extend(flags);
        let running = place.holding(name, &args, command);
        servers[0].stop();
        if code == 5 {
            std::thread::sleep(Duration::from_secs(7));
            place.touch("go");
        }
        let ran = running.end();
        servers[0].resume();
        let all = events(&ran.err);
        assert_eq!(ran.code, code, "{}", ran.err);
        let lost = kinds(&all).iter().filter(|kind| *kind == "lost").count();
        assert_eq!(lost, 1, "{}", ran.err);
        let lost = all.iter().find(|event| event["event"] == "lost");
        let cause = lost.expect("lost")["nodes"][0]["error"].as_str();
        let silent = |cause: &str| cause.contains("no answer") || cause.contains("timed out");
        assert!(cause.is_some_and(silent), "{}", ran.err);
        let released = all.last().expect("an event");
        assert_eq!(released["event"], "released", "{}", ran.err);
        assert_eq!(released["was_lost"], true, "{}", ran.err);
    }
}

/// The error of a loss names the nodes and what is wrong with each.
#[test]
fn the_error_of_a_loss_names_nodes_and_causes() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let flags = ["--ttl", "6s", "--grace", "2s", "--restart-guard", "6s"];
    let flags = [&flags[..], &["--assume-fresh"]].concat();
    let command = "exec 2>/dev/null; trap 'exit 0' TERM; @@ while :; do sleep 0.01; done";
    let running = place.holding("a", &flags, command);
    servers[0].stop();
    servers[1].kill();
    let _ = servers[2].command(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    let ran = running.end();
    servers[0].resume();
    assert_eq!(ran.code, 79, "{}", ran.err);
    let lines = || ran.err.lines();
    let line = lines()
        .find(|line| line.contains("lost `a`"))
        .expect("a loss");
    // Two of three failures decide, so at least two are named.
    let causes = [
        &["timed out", "no answer"][..],
        &["refused"],
        &["out of memory"],
    ];
    let mut named = 0;
    for (server, causes) in servers.iter().zip(causes) {
        let address = format!("127.0.0.1:{}: ", server.port());
        let Some(said) = line.split(&address).nth(1) else {
            continue;
        };
        let said = said.split("; ").next().unwrap_or_default();
        assert!(
            causes.iter().any(|cause| said.contains(cause)),
            "{causes:?}: {line}"
        );
        named += 1;
    }
    assert!(named >= 2, "{line}");
}

/// `-q` does not hide that the command was stopped because its lease was lost.
#[test]
fn quiet_prints_a_loss() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let args = ["-q", "--ttl", "4s", "--grace", "500ms"];
    let running = place.holding("a", &args, "trap '' TERM; @@ while :; do sleep 0.01; done");
    servers[0].stop();
    let ran = running.end();
    servers[0].resume();
    assert_eq!(ran.code, 79, "{}", ran.err);
    for part in [
        "error: lost `a`: the lease could not be renewed",
        "sent SIGTERM",
        "sent SIGKILL",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
}

/// Grandchildren that ignore SIGTERM are killed before the lock is released.
#[test]
fn grandchildren_do_not_outlive_the_lease() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let command = "sh -c 'trap \"\" TERM; echo $$ > inner; while :; do sleep 0.01; done' & wait";
    let running = place.holding("a", &["--ttl", "4s", "--grace", "500ms"], command);
    let inner = place.await_file("inner");
    servers[0].stop();
    let ran = running.end();
    assert_eq!(ran.code, 79, "{}", ran.err);
    assert!(!is_alive(&inner), "{}", ran.err);
    servers[0].resume();
}

/// Stderr may be a pipe that is not read. Neither the renewal of the lease nor the end of the command
/// waits for the reader.
#[test]
fn a_full_stderr_pipe_does_not_block() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let command = "trap 'echo stopped > stopped; exit' TERM; @@ while :; do sleep 0.01; done";
    let running = place.holding("a", &["--ttl", "3s", "--json"], command);
    // More events than a pipe holds.
    let pid = running.pid().to_string();
    for _ in 0..2_000 {
        crate::kill("USR1", &pid);
    }
    // SIGUSR1 has ended the command. The lock is released nevertheless.
    let ran = place.run(&["run", "a", "-w", "30s", "--", "echo", "next"]);
    assert_eq!(ran.out, "next\n", "{}", ran.err);
    drop(running);

    let command = "exec 2>/dev/null; trap 'echo stopped > stopped; exit' TERM; trap : USR1; @@ \
                   while :; do sleep 0.01; done";
    let running = place.holding("b", &["--ttl", "3s", "--json"], command);
    let pid = running.pid().to_string();
    for _ in 0..2_000 {
        crate::kill("USR1", &pid);
    }
    std::thread::sleep(Duration::from_secs(4));
    let ran = place.run(&["run", "b", "-n", "--", "true"]);
    assert_eq!(ran.code, 75, "the lease was not renewed: {}", ran.err);
    servers[0].stop();
    // The pipe is read only after the command has ended.
    until("the command has ended", || {
        !is_alive(&place.read("started.b"))
    });
    let ran = running.end();
    assert_eq!(
        (ran.code, place.read("stopped").as_str()),
        (79, "stopped\n"),
        "{}",
        ran.err
    );
    servers[0].resume();
}
