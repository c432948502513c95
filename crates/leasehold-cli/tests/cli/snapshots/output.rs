//! What commands print when nothing goes wrong.

use expect_test::expect_file;
use leasehold_testkit::RedisServer;

use super::transcript::{Transcript, is_duration, until_tokens_are_times};
use crate::{Place, Ran, Running, UNTIL_GO, eventually, until};

const SLEEP: &str = "exec sleep 60";

/// A TTL that no test outlives: a slow machine must not let a lock expire.
const LONG: [&str; 2] = ["--ttl", "30m"];

/// Tables are as wide as the longest value, and one of their columns is a time.
fn squeezed(text: &str) -> String {
    let squeeze = |line: &str| {
        let columns: Vec<_> = line.split("  ").map(str::trim).collect();
        let columns = columns.into_iter().filter(|one| !one.is_empty());
        let columns = columns.map(|one| match one.split(' ').all(is_duration) {
            true => "TIME",
            false => one,
        });
        columns.collect::<Vec<_>>().join("  ")
    };
    let lines: Vec<_> = text.lines().map(squeeze).collect();
    lines.join("\n") + "\n"
}

#[test]
fn show_on_the_embedded_store() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    transcript.run(&place, &["show", "backup"]);
    let args = [&LONG[..], &["--label", "nightly"]].concat();
    let holder = place.holding("backup", &args, SLEEP);
    let _waiter = place.spawn(&["run", "backup", "--", "true"]);
    until("one process waits", || {
        place.ok(&["show", "backup"]).contains("waiters  1")
    });
    transcript.run(&place, &["show", "backup"]);
    transcript.run(&place, &["show", "backup", "-o", "wide"]);
    transcript.run(&place, &["show", "backup", "-o", "json"]);
    drop(holder);
    place.ok(&["run", "report", "--at-least-for", "1h", "--", "true"]);
    transcript.run(&place, &["show", "report"]);
    transcript.run(&place, &["show", "report", "-o", "json"]);
    expect_file!["show-local.txt"].assert_eq(transcript.text());
}

#[test]
fn show_readers() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    for label in ["first", "second"] {
        place.ok(&["acquire", "catalog", "--shared", "--label", label]);
    }
    until_tokens_are_times();
    transcript.run(&place, &["show", "catalog"]);
    transcript.run(&place, &["acquire", "catalog", "-n"]);
    transcript.run(&place, &["run", "catalog", "--shared", "--", "true"]);
    expect_file!["show-readers.txt"].assert_eq(transcript.text());
}

#[test]
fn show_on_three_servers() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let mut transcript = Transcript::new().servers(&servers);
    place.ok(&["init"]);
    let count = |text: &'static str, count| move |ran: &Ran| ran.out.matches(text).count() == count;
    let show = ["show", "backup"];
    transcript.run_until(&place, &show, count(": free", 3));
    acquire_everywhere(&place, "backup");
    transcript.run_until(&place, &show, count("held by owner", 3));
    servers[2].kill();
    transcript.run_until(&place, &show, count("refused", 1));
    transcript.run_until(
        &place,
        &["show", "backup", "-o", "json"],
        count("refused", 1),
    );
    servers[1].kill();
    transcript.run_until(&place, &show, |ran| {
        count("refused", 2)(ran) && count("held by owner", 1)(ran)
    });
    expect_file!["show-servers.txt"].assert_eq(transcript.text());
}

/// Acquires the lock on all of three servers: a lease needs only two.
fn acquire_everywhere(place: &Place, name: &str) {
    eventually("all nodes have granted the lock", || {
        let lease = place.ok(&["acquire", name, "-o", "json"]);
        let page = place.ok(&["show", name]);
        if page.matches("held by owner").count() == 3 {
            return Some(());
        }
        let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
        let owner = lease["owner"].as_str().expect("an owner");
        place.ok(&["release", name, "--owner", owner]);
        None
    });
}

#[test]
fn show_a_lock_of_another_program() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let mut transcript = Transcript::new().servers(&servers);
    let reply = servers[0].command(&[b"SET", b"backup", b"0123456789abcdef0123456789abcdef"]);
    assert_eq!(reply, "+OK\r\n");
    transcript.run(&place, &["show", "backup"]);
    transcript.run(&place, &["show", "backup", "-o", "json"]);
    expect_file!["show-foreign.txt"].assert_eq(transcript.text());
}

#[test]
fn ls() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    for output in ["table", "wide", "json", "name"] {
        transcript.run(&place, &["ls", "-o", output]);
    }
    let args = [&LONG[..], &["--label", "nightly"]].concat();
    let _one = place.holding("backup", &args, SLEEP);
    let _two = place.holding("deploy", &LONG, SLEEP);
    place.ok(&["run", "report", "--at-least-for", "1h", "--", "true"]);
    for args in [
        &["ls"][..],
        &["ls", "-o", "wide"],
        &["ls", "--no-headers", "deploy"],
        &["ls", "-o", "json", "*o*"],
        &["ls", "-o", "name"],
    ] {
        transcript.run(&place, args);
    }
    expect_file!["ls.txt"].assert_eq(&squeezed(transcript.text()));
}

#[test]
fn a_run_step_by_step() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let mut transcript = Transcript::new().servers(&servers);
    transcript.run(
        &place,
        &["run", "backup", "-v", "-c", "echo working; exit 3"],
    );
    transcript.run(&place, &["run", "backup", "-v", "-c", "kill -s USR1 $$"]);
    transcript.run(&place, &["run", "backup", "--json", "-c", "exit 3"]);
    let both = ["run", "backup", "--also", "reports"];
    transcript.run(&place, &[&both[..], &["-v", "--", "true"]].concat());
    transcript.run(&place, &[&both[..], &["--json", "--", "true"]].concat());
    let inner = format!(
        "{} run backup --inherit -v -- true",
        env!("CARGO_BIN_EXE_leasehold")
    );
    transcript.mask(env!("CARGO_BIN_EXE_leasehold"), "leasehold");
    transcript.run(&place, &["run", "backup", "-c", &inner]);
    expect_file!["run.txt"].assert_eq(transcript.text());
}

/// The lines that a waiter prints, as text and as events.
#[test]
fn a_wait() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    for flag in ["-v", "--json"] {
        // It may notice the holder before it has its place in line.
        let ran = eventually("the waiter has reported its place", || {
            let ran = wait(&place, flag);
            let place = ["next in line", "\"before\":0"];
            place
                .iter()
                .any(|text| ran.err.contains(text))
                .then_some(ran)
        });
        transcript.record(
            &place,
            &format!("leasehold run backup {flag} -- true"),
            &ran,
        );
    }
    expect_file!["wait.txt"].assert_eq(transcript.text());
}

/// Waits for a lock whose holder ends when the wait has been reported.
fn wait(place: &Place, flag: &str) -> Ran {
    let holder = place.holding("backup", &LONG, UNTIL_GO);
    let err = std::fs::File::create(place.file("err")).expect("created");
    let mut waiter = place.command(&["run", "backup", flag, "--", "true"]);
    let waiter = Running::start(waiter.stderr(err));
    until("the wait is reported", || {
        place.read("err").contains("waiting")
    });
    place.touch("go");
    assert_eq!(holder.end().code, 0);
    let ran = waiter.end();
    for file in ["go", "started.backup"] {
        std::fs::remove_file(place.file(file)).expect("removed");
    }
    Ran {
        err: place.read("err"),
        ..ran
    }
}

#[test]
fn once() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    let args = ["once", "report", "--for", "1h", "-v", "--", "echo", "done"];
    transcript.run(&place, &args);
    transcript.run(&place, &args);
    transcript.run(&place, &["show", "report"]);
    transcript.run(&place, &["show", "report", "-o", "json"]);
    transcript.run(&place, &["run", "report", "-n", "--", "true"]);
    transcript.run(&place, &["once", "report", "--clear"]);
    transcript.run(&place, &["once", "report", "--clear"]);
    transcript.run(
        &place,
        &["once", "report", "--for", "400days", "--", "true"],
    );
    expect_file!["once.txt"].assert_eq(transcript.text());
}

#[test]
fn scripts() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    let ran = place.run(&["acquire", "deploy", "--ttl", "5m"]);
    let mut lines = ran.out.lines();
    let owner = lines.find_map(|line| line.strip_prefix("export LEASEHOLD_OWNER="));
    let owner = owner.expect("an owner").trim_matches('\'').to_owned();
    transcript.mask(&owner, "SECRET");
    transcript.record(&place, "leasehold acquire deploy --ttl 5m", &ran);
    let extend = [
        "extend", "deploy", "--owner", &owner, "--ttl", "10m", "-o", "json",
    ];
    transcript.run(&place, &extend);
    transcript.run(&place, &["release", "deploy", "--owner", &owner]);
    expect_file!["scripts.txt"].assert_eq(transcript.text());
}

#[test]
fn break_() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    place.ok(&["acquire", "deploy", "--label", "release 7"]);
    let owner = place.owner_id("deploy");
    transcript.run(&place, &["break", "deploy", "--owner", &owner, "--yes"]);
    place.ok(&["run", "report", "--at-least-for", "1h", "--", "true"]);
    let owner = place.owner_id("report");
    transcript.run(&place, &["break", "report", "--owner", &owner, "--yes"]);
    place.ok(&["once", "rates", "--for", "1h", "--", "true"]);
    let owner = place.owner_id("rates");
    transcript.run(&place, &["break", "rates", "--owner", &owner, "--yes"]);
    expect_file!["break.txt"].assert_eq(transcript.text());
}

#[test]
fn init() {
    let mut servers = RedisServer::start_many(3);
    // Sets of nodes are printed in the order of their addresses.
    servers.sort_by_key(RedisServer::url);
    let (one, three) = (Place::redis(&servers[..1]), Place::redis(&servers));
    let mut transcript = Transcript::new().servers(&servers);
    transcript.run(&one, &["init"]);
    transcript.run(&three, &["init"]);
    transcript.run(&three, &["init", "--replace"]);
    transcript.run(&three, &["init"]);
    transcript.run(&three, &["init", "--assume-fresh"]);
    transcript.run(&Place::local(), &["init"]);
    expect_file!["init.txt"].assert_eq(transcript.text());
}
