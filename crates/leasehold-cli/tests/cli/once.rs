//! `once`: a command that runs once per period, and its output.

use leasehold_testkit::RedisServer;

use crate::{Place, events, kinds, until};

const LINE: &str = "echo ran >> runs; echo \"token $LEASEHOLD_TOKEN\"";

fn places(servers: &[RedisServer]) -> [Place; 2] {
    [Place::local(), Place::redis(servers)]
}

#[test]
fn all_print_the_output_of_one_run() {
    let servers = RedisServer::start_many(1);
    for place in places(&servers) {
        let args = ["once", "report", "--for", "1h", "-c", LINE];
        let all: Vec<_> = (0..6).map(|_| place.spawn(&args)).collect();
        let all: Vec<_> = all.into_iter().map(|one| one.end()).collect();
        assert_eq!(place.read("runs"), "ran\n");
        for ran in &all {
            assert_eq!((ran.code, &ran.out), (0, &all[0].out), "{}", ran.err);
            assert!(ran.out.starts_with("token 1"), "{}", ran.out);
        }
        let shown = place.ok(&["show", "report"]);
        assert!(
            shown.contains("result") && shown.contains("bytes"),
            "{shown}"
        );
        assert!(place.ok(&["ls"]).contains("bytes"));
        let json = place.ok(&["show", "report", "-o", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["state"], "result");
        assert_eq!(json["holder"]["result"]["bytes"], all[0].out.len());
    }
}

#[test]
fn a_command_that_fails_stores_nothing() {
    let servers = RedisServer::start_many(1);
    for place in places(&servers) {
        let fails = "echo ran >> runs; echo partial; exit 7";
        for runs in 1..3 {
            let ran = place.run(&["once", "report", "--for", "1h", "-c", fails]);
            assert_eq!((ran.code, &*ran.out), (7, "partial\n"));
            assert_eq!(place.read("runs").lines().count(), runs);
        }
        let ran = place.run(&["once", "report", "--for", "1h", "-c", "kill -9 $$"]);
        assert_eq!(ran.code, 137);
        let ran = place.run(&["once", "x", "--for", "1h", "--", "/no/such/command"]);
        assert_eq!(ran.code, 127, "{}", ran.err);
        assert_eq!(
            place.ok(&["once", "report", "--for", "1h", "--", "echo", "fine"]),
            "fine\n"
        );
    }
}

#[test]
fn a_cleared_output_is_produced_again() {
    let servers = RedisServer::start_many(1);
    for place in places(&servers) {
        let args = ["once", "report", "--for", "1h", "-c", LINE];
        let first = place.ok(&args);
        assert_eq!(place.run(&["once", "report", "--clear"]).code, 0);
        assert_ne!(place.ok(&args), first);
        assert_eq!(place.run(&["once", "report", "--clear", "-q"]).err, "");
        let ran = place.run(&["once", "report", "--clear"]);
        assert_eq!(ran.code, 1, "{}", ran.err);
    }
}

#[test]
fn skip_does_not_wait() {
    let servers = RedisServer::start_many(1);
    for place in places(&servers) {
        let line =
            "echo $$ > started.new; mv started.new started; while [ ! -e go ]; do sleep 0.01; done";
        let running = place.spawn(&["once", "report", "--for", "1h", "--ttl", "10m", "-c", line]);
        place.await_file("started");
        let skips = ["once", "report", "--for", "1h", "--skip", "-c", LINE];
        let ran = place.run(&skips);
        assert_eq!(ran.code, 75, "{}", ran.err);
        assert!(ran.err.contains("is held by"), "{}", ran.err);
        let quiet = [&skips[..5], &["-q", "-E", "0", "-c", LINE]].concat();
        let ran = place.run(&quiet);
        assert_eq!((ran.code, &*ran.err), (0, ""));
        std::fs::write(place.file("go"), "").expect("written");
        assert_eq!(running.end().code, 0);
        assert_eq!(place.ok(&skips), "");
        assert_eq!(place.read("runs"), "");
    }
}

/// A long output is passed through and not stored.
#[test]
fn an_output_that_is_too_long_is_not_stored() {
    let place = Place::local();
    let args = ["once", "a", "--for", "1h", "-c", "head -c 65537 /dev/zero"];
    let ran = place.run(&args);
    assert_eq!((ran.code, ran.out.len()), (70, 65537));
    assert!(ran.err.contains("was not stored"), "{}", ran.err);
    let args = ["once", "a", "--for", "1h", "-c", "head -c 65536 /dev/zero"];
    assert_eq!(place.ok(&args).len(), 65536);
    assert_eq!(place.ok(&args).len(), 65536);
}

/// The time limit stops the command, and nothing is stored. A process that the command leaves
/// running delays nobody.
#[test]
fn nothing_is_stored_after_the_time_limit() {
    let place = Place::local();
    let args = [
        "once",
        "a",
        "--for",
        "1h",
        "--at-most-for",
        "100ms",
        "-c",
        "sleep 60",
    ];
    assert_eq!(place.run(&args).code, 124);
    let args = [
        "once",
        "a",
        "--for",
        "1h",
        "-c",
        "sleep 60 2>/dev/null & echo left; echo $! > pid",
    ];
    assert_eq!(place.ok(&args), "left\n");
    crate::kill("KILL", place.read("pid").trim());
}

#[test]
fn events_tell_what_was_stored_and_found() {
    let place = Place::local();
    let args = ["once", "a", "--for", "1h", "--json", "--", "echo", "hi"];
    let ran = place.run(&args);
    let told = events(&ran.err);
    assert_eq!(
        kinds(&told),
        ["acquired", "started", "exited", "stored", "released"]
    );
    assert_eq!(
        (&told[3]["bytes"], &told[3]["for_ms"]),
        (&3.into(), &3_600_000.into())
    );
    let told = events(&place.run(&args).err);
    assert_eq!(kinds(&told), ["found"]);
    assert_eq!(told[0]["bytes"], 3);
}

/// `wait` returns when the lock is free, and takes no lock.
#[test]
fn wait_returns_when_the_lock_is_free() {
    let servers = RedisServer::start_many(1);
    for place in places(&servers) {
        assert_eq!(place.ok(&["wait", "job"]), "");
        let holder = place.holding(
            "job",
            &["--ttl", "10m"],
            "while [ ! -e go ]; do sleep 0.01; done",
        );
        let ran = place.run(&["wait", "job", "-w", "200ms"]);
        assert_eq!(ran.code, 75, "{}", ran.err);
        assert!(ran.err.contains("`job` is held by"), "{}", ran.err);
        let ran = place.run(&["wait", "job", "-w", "10ms", "-q", "-E", "3"]);
        assert_eq!((ran.code, &*ran.err), (3, ""));
        let waiter = place.spawn(&["wait", "job"]);
        std::fs::write(place.file("go"), "").expect("written");
        assert_eq!(holder.end().code, 0);
        assert_eq!(waiter.end().code, 0);
        until("nothing is left", || {
            place.ok(&["show", "job"]).contains("free")
        });
    }
    let waiter = {
        let place = Place::local();
        let holder = place.holding("job", &["--ttl", "10m"], "exec sleep 60");
        let waiter = place.spawn(&["wait", "job"]);
        std::thread::sleep(std::time::Duration::from_millis(300));
        waiter.signal("TERM");
        let ran = waiter.end();
        drop(holder);
        ran
    };
    assert_eq!(waiter.code, 143, "{}", waiter.err);
}

/// Output that cannot be printed is not lost silently, and it is stored.
#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::local();
    let args = ["once", "report", "--for", "1h", "--", "echo", "x"];
    let full = std::fs::File::create("/dev/full").expect("it is there");
    let mut command = place.command(&args);
    let ran = crate::Running::start(command.stdout(full)).end();
    assert_eq!(ran.code, 70, "{}", ran.err);
    for part in ["cannot write the output", "No space left", "stays stored"] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
    assert_eq!(place.ok(&args), "x\n");
    // The stored output.
    let full = std::fs::File::create("/dev/full").expect("it is there");
    let ran = crate::Running::start(place.command(&args).stdout(full)).end();
    assert_eq!(ran.code, 70, "{}", ran.err);
    let part = "cannot write the stored output to stdout: No space left";
    assert!(ran.err.contains(part), "{}", ran.err);
}

/// A closed stdout is such an error. Output that is discarded on purpose, or empty, is not.
#[test]
fn a_closed_stdout_is_an_error() {
    let place = Place::local();
    let once = |name: &str, command: &str, stdout: &str| {
        let line =
            format!("exec \"$0\" once {name} --for 1h -c '{command}; echo >> runs' {stdout}");
        let mut shell = crate::wrapped("sh", &["-c", &line], &place.command(&[]));
        crate::Running::start(&mut shell).end()
    };
    for (what, runs) in [("output of the command", 1), ("stored output", 1)] {
        let ran = once("report", "echo x", ">&-");
        assert_eq!(ran.code, 70, "{}", ran.err);
        let part = format!("cannot write the {what} to stdout: stdout is closed");
        assert!(ran.err.contains(&part), "{}", ran.err);
        assert_eq!(place.read("runs").lines().count(), runs);
    }
    for stdout in ["> /dev/null", "1<> /dev/null"] {
        assert_eq!(once("report", "echo x", stdout).code, 0, "{stdout}");
    }
    assert_eq!(once("report", "echo x", "").out, "x\n");
    for _ in 0..2 {
        assert_eq!(once("nothing", "true", ">&-").code, 0);
    }
}
