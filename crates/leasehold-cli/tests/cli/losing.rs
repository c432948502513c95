//! Losing the lease while the command runs.

use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::{Place, events, kinds, lives, until};

fn token(text: &str) -> u64 {
    text.trim().parse().expect("a token")
}

/// With no server answering, the deadline that is known here decides: TERM before it, KILL
/// at it; and nobody else gets the lock before the command is gone.
#[test]
fn a_majority_lost_while_running() {
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
    let command = "trap 'echo told > told' TERM; echo $LEASEHOLD_TOKEN > token; @@ \
                   sh -c 'trap \"\" TERM; echo $$ > inner; while :; do sleep 0.01; done' & \
                   while :; do sleep 0.01; done";
    let running = place.holding("a", &flags, command);
    let (first, inner) = (token(&place.await_file("token")), place.await_file("inner"));
    let outer = place.await_file("started.a");
    servers[0].stop();
    servers[1].stop();
    let stopped = Instant::now();
    // Somebody waits for it all the time, and notes whether the first still lives when it
    // gets it.
    let check = format!(
        "for p in {} {}; do case $(cut -d')' -f2 /proc/$p/stat 2>/dev/null) in ''|' Z'*) ;; \
         *) echo $p lives ;; esac; done; echo $LEASEHOLD_TOKEN",
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
        "TERM came too early"
    );
    assert_eq!(place.await_file("told"), "told\n");
    assert!(!lives(&outer) && !lives(&inner));
    servers[0].resume();
    servers[1].resume();
    let ran = next.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(token(&ran.out) > first, "{}", ran.out);
}

/// A holder that was stopped for longer than its TTL: when it goes on, its command is killed at once,
/// and the next holder had a larger token meanwhile.
#[test]
fn a_stopped_holder() {
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
        until("the command is gone", || !lives(&pid));
    }
}

/// A lock that was broken: the holder says why, stops the command in order, and ends.
#[test]
fn a_broken_lock() {
    let place = Place::local();
    let command = "trap 'echo told > told; exit 0' TERM; @@ while :; do sleep 0.01; done";
    let running = place.holding("a", &["--ttl", "3s", "-v"], command);
    let shown = place.ok(&["show", "a"]);
    let owner = shown
        .lines()
        .find_map(|line| line.trim().strip_prefix("owner"));
    let owner = owner.expect("an owner").trim();
    place.ok(&["break", "a", "--owner", owner, "--yes"]);
    let ran = running.end();
    assert_eq!(ran.code, 79);
    assert!(
        ran.err.contains("lost `a`: the lock was broken"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("released"), "{}", ran.err);
    assert_eq!(place.await_file("told"), "told\n");
}

/// Who only wants to be warned is, and keeps the command and its exit code.
#[test]
fn warned_only() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let args = ["--ttl", "3s", "--on-lost", "warn"];
    let running = place.holding("a", &args, "while [ ! -e go ]; do sleep 0.01; done; exit 5");
    servers[0].stop();
    std::thread::sleep(Duration::from_secs(6));
    servers[0].resume();
    std::fs::write(place.file("go"), "").expect("written");
    let ran = running.end();
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains("lost `a`"), "{}", ran.err);
}

/// A lost lease has one `lost` event and `was_lost: true`, whether the command ends in its grace,
/// is killed at the deadline, or goes on (`--on-lost warn`).
#[test]
fn the_events_of_a_loss_agree_with_the_exit_code() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    // The shell itself writes to stderr when what it waits for is terminated.
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
            std::fs::write(place.file("go"), "").expect("written");
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
    // Two of three failures decide, so two are named at least.
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

/// `-q` hides progress, not that the command was stopped because its lease was lost.
#[test]
fn a_loss_is_printed_with_quiet_too() {
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

/// Grandchildren that do not listen are killed too, before the lock is given back.
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
    assert!(!lives(&inner), "{}", ran.err);
    servers[0].resume();
}

/// Standard error may be a pipe that nobody reads: neither the lease nor the end of the
/// command waits for that.
#[test]
fn a_stderr_that_nobody_reads() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let command = "trap 'echo told > told; exit' TERM; @@ while :; do sleep 0.01; done";
    let running = place.holding("a", &["--ttl", "3s", "--json"], command);
    // More events than a pipe holds.
    let pid = running.pid().to_string();
    for _ in 0..2_000 {
        crate::kill("USR1", &pid);
    }
    // USR1 has no trap: the command is gone. The lock is given back all the same.
    let ran = place.run(&["run", "a", "-w", "30s", "--", "echo", "next"]);
    assert_eq!(ran.out, "next\n", "{}", ran.err);
    drop(running);

    let command = "exec 2>/dev/null; trap 'echo told > told; exit' TERM; trap : USR1; @@ \
                   while :; do sleep 0.01; done";
    let running = place.holding("b", &["--ttl", "3s", "--json"], command);
    let pid = running.pid().to_string();
    for _ in 0..2_000 {
        crate::kill("USR1", &pid);
    }
    std::thread::sleep(Duration::from_secs(4));
    let ran = place.run(&["run", "b", "-n", "--", "true"]);
    assert_eq!(ran.code, 75, "it was not renewed: {}", ran.err);
    servers[0].stop();
    // Nobody reads what it says until it has ended.
    until("the command is gone", || !lives(&place.read("started.b")));
    let ran = running.end();
    assert_eq!(
        (ran.code, place.read("told").as_str()),
        (79, "told\n"),
        "{}",
        ran.err
    );
    servers[0].resume();
}
