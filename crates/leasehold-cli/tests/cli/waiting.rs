//! Waiting for the lock.

use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::{Place, until};

/// A holder that ends makes way at once.
#[test]
fn it_waits_for_its_turn() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding(
            "a",
            &[],
            "while [ ! -e go ]; do sleep 0.01; done; echo 1 >> log",
        );
        let next = place.spawn(&["run", "a", "-c", "echo 2 >> log"]);
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(place.file("go"), "").expect("written");
        assert_eq!((holder.end().code, next.end().code), (0, 0));
        assert_eq!(place.read("log"), "1\n2\n");
    }
}

/// On the embedded store a waiter is woken, and one that died does not stand in the way.
#[test]
fn the_next_is_woken_although_the_first_waiter_died() {
    let place = Place::local();
    let holder = place.holding("a", &[], "while [ ! -e go ]; do sleep 0.01; done");
    let dead = place.spawn(&["run", "a", "--", "true"]);
    until("it waits", || {
        place.ok(&["show", "a"]).contains("waiters  1")
    });
    let next = place.spawn(&["run", "a", "--", "true"]);
    until("both wait", || {
        place.ok(&["show", "a"]).contains("waiters  2")
    });
    dead.kill();
    std::fs::write(place.file("go"), "").expect("written");
    assert_eq!((holder.end().code, next.end().code), (0, 0));
    // And what it left behind is gone.
    let sockets = std::fs::read_dir(place.file("state/leasehold/locks.db.wake"));
    assert_eq!(sockets.expect("a directory").count(), 0);
}

/// Every signal that would end a process ends the wait, and nothing is left behind: neither
/// a lock nor a waiter.
#[test]
fn signals_end_the_wait() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding("a", &[], "exec sleep 60");
        for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3)] {
            let waiting = place.spawn(&["run", "a", "--json", "--", "true"]);
            // Long enough to have asked; the outcome is the same if it has not.
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

/// Time of the processor that a process has used, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<_> = stat
        .rsplit_once(") ")
        .expect("a stat")
        .1
        .split(' ')
        .collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

/// Waiting costs next to no time of the processor.
#[test]
fn waiting_costs_nothing() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let _holder = place.holding("a", &[], "exec sleep 60");
        let waiting = place.spawn(&["run", "a", "--", "true"]);
        std::thread::sleep(Duration::from_millis(500));
        let (before, start) = (ticks(waiting.pid()), Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let used = Duration::from_millis((ticks(waiting.pid()) - before) * 10);
        let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
        assert!(share < 0.02, "{:.1} %", share * 100.0);
    }
}

/// Outages are not contention: who waits is told, and not after the time for contention.
#[test]
fn an_outage_ends_the_wait_too() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    servers[0].kill();
    let ran = place.run(&["run", "a", "-w", "300ms", "--", "true"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
}

/// A short outage is ridden out.
#[test]
fn a_server_that_comes_back_is_waited_for() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    servers[0].kill();
    let waiting = place.spawn(&["run", "a", "-w", "40s", "--", "echo", "got it"]);
    std::thread::sleep(Duration::from_millis(300));
    servers[0].restart();
    let ran = waiting.end();
    assert_eq!((ran.code, ran.out.as_str()), (0, "got it\n"), "{}", ran.err);
}

/// A file that was made for several users serves them all, and each wakes the other.
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
            eprintln!("SKIPPED: no permission to hand files to another group");
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
        let first = crate::Running(Some(first.spawn().expect("it starts")));
        let held = || place.ok(&["show", "a", "--node", &node]).contains("held");
        until("the first has it", held);
        let second = crate::Running(Some(second.spawn().expect("it starts")));
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

/// Off a terminal, one line says after a second who holds the lock; with `-q` none does.
#[test]
fn off_a_terminal_one_line_says_who_is_waited_for() {
    let place = Place::local();
    let holder = place.holding("a", &[], "while [ ! -e go ]; do sleep 0.01; done");
    let waiting = |args: &[&str], err: &str| {
        let err = std::fs::File::create(place.file(err)).expect("created");
        let mut command = place.command(args);
        crate::Running(Some(command.stderr(err).spawn().expect("it starts")))
    };
    let loud = waiting(&["run", "a", "--", "true"], "loud");
    let quiet = waiting(&["run", "a", "-q", "--", "true"], "quiet");
    let line = place.await_file("loud");
    let says = "leasehold: waiting for `a`: held by ";
    assert!(line.starts_with(says), "{line}");
    assert!(line.contains(&format!("pid {}", holder.pid())), "{line}");
    // The second comes and the next one is not printed.
    std::thread::sleep(Duration::from_secs(2));
    std::fs::write(place.file("go"), "").expect("written");
    assert_eq!((loud.end().code, quiet.end().code), (0, 0));
    assert_eq!(place.read("loud"), line);
    assert_eq!(place.read("quiet"), "");
}

/// The event of a wait for nodes that do not answer says what is wrong with each.
#[test]
fn the_event_of_an_outage_says_why() {
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

/// A waiter that is stopped by SIGSTOP starts nothing on a lock that it was given meanwhile: when
/// it is continued, it acquires the lock again, and its command runs to its end.
#[test]
fn a_waiter_that_was_stopped_starts_its_command_on_a_new_lease() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let holder = place.holding("a", &[], "while [ ! -e go ]; do sleep 0.01; done");
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
        until("it waits", || {
            place.ok(&["show", "a"]).contains("waiters  1")
        });
        waiting.signal("STOP");
        std::fs::write(place.file("go"), "").expect("written");
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
