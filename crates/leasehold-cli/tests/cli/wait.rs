//! Waiting for the lock.

use std::time::{Duration, Instant};

use leasehold_testkit::{RedisServer, process};

use crate::{Place, UNTIL_GO, until};

/// A waiter acquires the lock when the holder releases it.
#[test]
fn a_waiter_follows_the_holder() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding(
            "a",
            &[],
            "while [ ! -e go ]; do sleep 0.01; done; echo 1 >> log",
        );
        let next = place.spawn(&["run", "a", "-c", "echo 2 >> log"]);
        std::thread::sleep(Duration::from_millis(100));
        place.touch("go");
        assert_eq!((holder.end().code, next.end().code), (0, 0));
        assert_eq!(place.read("log"), "1\n2\n");
    }
}

/// On the embedded store, a waiter that has died does not delay the next one.
#[test]
fn a_dead_waiter_does_not_delay_others() {
    let place = Place::local();
    let holder = place.holding("a", &[], UNTIL_GO);
    let dead = place.spawn(&["run", "a", "--", "true"]);
    place.until_waiters("a", 1);
    let next = place.spawn(&["run", "a", "--", "true"]);
    place.until_waiters("a", 2);
    dead.kill();
    place.touch("go");
    assert_eq!((holder.end().code, next.end().code), (0, 0));
    // The socket of the dead waiter has been removed.
    let sockets = std::fs::read_dir(place.file("state/leasehold/locks.db.wake"));
    assert_eq!(sockets.expect("a directory").count(), 0);
}

/// Every signal that ends a process ends the wait. Neither a lock nor a waiter is left on the nodes.
#[test]
fn signals_end_the_wait() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding("a", &[], "exec sleep 60");
        for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3)] {
            let waiting = place.spawn(&["run", "a", "--json", "--", "true"]);
            // Usually enough to join the line. The outcome is the same otherwise.
            std::thread::sleep(Duration::from_millis(300));
            waiting.signal(signal);
            let ran = waiting.end();
            assert_eq!(ran.code, 128 + number, "{}", ran.err);
            let all = crate::events(&ran.err);
            let error = all.iter().find(|event| event["event"] == "error");
            let code = error.map(|event| &event["code"]);
            assert_eq!(code, Some(&ran.code.into()), "{}", ran.err);
        }
        if place.nodes.is_none() {
            assert!(place.ok(&["show", "a"]).contains("waiters  0"));
        }
        holder.signal("TERM");
        assert_eq!(holder.end().code, 128 + 15);
        assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
    }
}

/// Waiting uses less than 2 % of one processor.
#[test]
fn waiting_uses_little_processor_time() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let _holder = place.holding("a", &[], "exec sleep 60");
        let waiting = place.spawn(&["run", "a", "--", "true"]);
        std::thread::sleep(Duration::from_millis(500));
        let (before, start) = (process::cpu_time(waiting.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let used = process::cpu_time(waiting.pid()) - before;
        let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
        assert!(share < 0.02, "{:.1} %", share * 100.0);
    }
}

/// An outage ends the wait with its own exit code.
#[test]
fn an_outage_ends_the_wait() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    servers[0].kill();
    let ran = place.run(&["run", "a", "-w", "300ms", "--", "true"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
}

/// A waiter survives a short outage.
#[test]
fn a_waiter_survives_a_short_outage() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    servers[0].kill();
    let waiting = place.spawn(&["run", "a", "-w", "40s", "--", "echo", "got it"]);
    std::thread::sleep(Duration::from_millis(300));
    servers[0].restart();
    let ran = waiting.end();
    assert_eq!((ran.code, ran.out.as_str()), (0, "got it\n"), "{}", ran.err);
}

/// Users with access to the same file share its locks and notify each other.
#[test]
fn two_users_share_a_store() {
    use std::os::unix::fs::{PermissionsExt, chown};
    const NOBODY: u32 = 65_534;
    let place = Place::local();
    let (dir, tool) = (place.file("shared"), place.file("leasehold"));
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &tool).expect("copied");
    std::fs::create_dir(&dir).expect("a directory");
    let file = dir.join("locks.db");
    std::fs::write(&file, "").expect("written");
    for (path, mode) in [(&dir, 0o2770), (&file, 0o660)] {
        if chown(path, None, Some(NOBODY)).is_err() {
            eprintln!("SKIPPED: no permission to change the group of a file");
            return;
        }
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("chmod");
    }
    let node = format!("local:{}", file.display());
    let as_nobody = |args: &[&str]| {
        let id = NOBODY.to_string();
        let user = ["--reuid", &id, "--regid", &id, "--clear-groups"];
        let mut command = crate::wrapped("setpriv", &user, &std::process::Command::new(&tool));
        command.args(args).current_dir("/");
        command
    };
    let args = ["run", "a", "--node", &node, "--json", "--", "sleep", "2"];
    for ours_first in [true, false] {
        let (mut first, mut second) = match ours_first {
            true => (place.command(&args), as_nobody(&args)),
            false => (as_nobody(&args), place.command(&args)),
        };
        let first = crate::Running::start(&mut first);
        let held = || place.ok(&["show", "a", "--node", &node]).contains("held");
        until("the first holds the lock", held);
        let second = crate::Running::start(&mut second);
        let waits = || {
            place
                .ok(&["show", "a", "--node", &node])
                .contains("waiters  1")
        };
        until("the second waits", waits);
        let (first, second) = (first.end(), second.end());
        assert_eq!(
            (first.code, second.code),
            (0, 0),
            "{} {}",
            first.err,
            second.err
        );
    }
}

/// If stderr is not a terminal, one line names the holder after a second. With `-q` nothing is printed.
#[test]
fn one_line_names_the_holder_if_stderr_is_not_a_terminal() {
    let place = Place::local();
    let holder = place.holding("a", &[], UNTIL_GO);
    let waiting = |args: &[&str], err: &str| {
        let err = std::fs::File::create(place.file(err)).expect("created");
        let mut command = place.command(args);
        crate::Running::start(command.stderr(err))
    };
    let loud = waiting(&["run", "a", "--", "true"], "loud");
    let quiet = waiting(&["run", "a", "-q", "--", "true"], "quiet");
    let line = place.await_file("loud");
    let says = "leasehold: waiting for `a`: held by ";
    assert!(line.starts_with(says), "{line}");
    assert!(line.contains(&format!("pid {}", holder.pid())), "{line}");
    // After that, no further line is printed.
    std::thread::sleep(Duration::from_secs(2));
    place.touch("go");
    assert_eq!((loud.end().code, quiet.end().code), (0, 0));
    assert_eq!(place.read("loud"), line);
    assert_eq!(place.read("quiet"), "");
}

/// During an outage, the `waiting` event contains the error of each node.
#[test]
fn the_event_of_an_outage_contains_the_errors() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    servers[0].kill();
    let ran = place.run(&["run", "a", "-w", "5", "--json", "--", "true"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    let all = crate::events(&ran.err);
    assert_eq!(crate::kinds(&all), ["waiting", "error"], "{}", ran.err);
    let node = &all[0]["nodes"][0];
    let url = servers[0].url();
    let address = url.trim_start_matches("redis://");
    assert!(
        node["node"].as_str().expect("a node").contains(address),
        "{}",
        ran.err
    );
    assert!(
        node["error"].as_str().expect("why").contains("refused"),
        "{}",
        ran.err
    );
}

/// A waiter that is stopped by SIGSTOP does not use a lease that it was granted during the stop. When
/// it is continued, it acquires the lock again and runs its command.
#[test]
fn a_stopped_waiter_acquires_a_new_lease() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding("a", &[], UNTIL_GO);
        let args = [
            "run",
            "a",
            "--ttl",
            "6s",
            "--json",
            "-c",
            "sleep 1; echo done",
        ];
        let waiting = place.spawn(&args);
        place.until_waiters("a", 1);
        waiting.signal("STOP");
        place.touch("go");
        assert_eq!(holder.end().code, 0);
        std::thread::sleep(Duration::from_secs(7));
        waiting.signal("CONT");
        let ran = waiting.end();
        assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
        let kinds = crate::kinds(&crate::events(&ran.err));
        assert!(kinds.contains(&"resumed".to_owned()), "{}", ran.err);
        assert!(!kinds.contains(&"lost".to_owned()), "{}", ran.err);
    }
}
