//! The command: its environment, its signals and its end.

use std::io::Write;
use std::process::Stdio;

use crate::{Place, is_alive, until};

#[test]
fn standard_streams_are_inherited() {
    let place = Place::local();
    let mut command = place.command(&["run", "a", "--", "sh", "-c", "cat; echo oops >&2"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"x\n").expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"x\n");
    assert_eq!(output.stderr, b"oops\n");
}

#[test]
fn environment_contains_lease_and_nodes() {
    let mut place = Place::local();
    place.nodes = Some(format!("local:{}", place.file("own.db").display()));
    let out = place.ok(&["run", "it's a", "--", "env"]);
    let value = |key: &str| {
        let start = format!("{key}=");
        let line = out.lines().find_map(|line| line.strip_prefix(&start));
        line.map(str::to_owned)
    };
    assert_eq!(value("LEASEHOLD_NAME").as_deref(), Some("it's a"));
    let token: u64 = value("LEASEHOLD_TOKEN")
        .expect("a token")
        .parse()
        .expect("a number");
    let deadline: u64 = value("LEASEHOLD_DEADLINE_MS")
        .expect("a deadline")
        .parse()
        .expect("a number");
    // A token is a time in µs. The deadline is at most a TTL of 10 s later.
    assert!(
        deadline > token / 1000 && deadline < token / 1000 + 11_000,
        "{token} {deadline}"
    );
    assert_eq!(value("LEASEHOLD_NODES"), place.nodes);
    let next = place.ok(&["run", "it's a", "-c", "echo $LEASEHOLD_TOKEN"]);
    assert!(next.trim().parse::<u64>().expect("a number") > token);
}

/// The command receives each signal once.
#[test]
fn signals_are_forwarded() {
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] {
        let place = Place::local();
        let command =
            format!("trap 'echo got >> heard; exit 3' {signal}; @@ while :; do sleep 0.01; done");
        let running = place.holding("a", &[], &command);
        running.signal(signal);
        let ran = running.end();
        assert_eq!(ran.code, 3, "{signal}: {}", ran.err);
        assert_eq!(place.read("heard"), "got\n", "{signal}");
    }
}

/// A signal without a handler ends the command and all its descendants.
#[test]
fn signals_reach_grandchildren() {
    let place = Place::local();
    let running = place.holding("a", &[], "sh -c 'echo $$ > inner; sleep 61' & wait");
    let inner = place.await_file("inner");
    running.signal("TERM");
    assert_eq!(running.end().code, 128 + 15);
    until("the grandchild has ended", || !is_alive(&inner));
}

#[test]
fn at_most_for_stops_the_command() {
    let place = Place::local();
    let args = ["--at-most-for", "5s", "--ttl", "5s"];
    let ran = place
        .holding("a", &args, "sleep 62 & echo $! > inner; wait")
        .end();
    assert_eq!(ran.code, 124, "{}", ran.err);
    let says = "time limit reached (--at-most-for 5s): sent SIGTERM, SIGKILL in ";
    assert!(ran.err.contains(says), "{}", ran.err);
    let inner = place.await_file("inner");
    until("its child has ended", || !is_alive(&inner));
    // A command that ignores SIGTERM is killed when its grace period is over.
    let args = ["--at-most-for", "5s", "--grace", "200ms", "--ttl", "5s"];
    let ran = place
        .holding("b", &args, "trap '' TERM; while :; do sleep 0.01; done")
        .end();
    assert_eq!(ran.code, 124, "{}", ran.err);
    assert_eq!(place.run(&["run", "b", "-n", "--", "true"]).code, 0);
    // The exit code is 124 even if the command exits with 0. The reason is printed with -q, too.
    let args = ["--at-most-for", "2", "-q"];
    let command = "trap 'exit 0' TERM; @@ while :; do sleep 0.01; done";
    let ran = place.holding("c", &args, command).end();
    assert_eq!(ran.code, 124, "{}", ran.err);
    assert!(ran.err.contains("time limit reached"), "{}", ran.err);
    // The message has the time as it was given.
    let ran = place.run(&["run", "c", "--at-most-for", "1900ms", "--", "sleep", "60"]);
    assert!(ran.err.contains("(--at-most-for 1900ms): "), "{}", ran.err);
    // A command that exits in time keeps its exit code.
    let ran = place.run(&["run", "d", "--at-most-for", "600", "-c", "exit 3"]);
    assert_eq!((ran.code, ran.err.as_str()), (3, ""));
}

/// The lock stays held for this time from the start, however early the command exits.
#[test]
fn at_least_for_keeps_the_lock() {
    let place = Place::local();
    let started = std::time::Instant::now();
    let ran = place.run(&["run", "a", "-v", "--at-least-for", "3s", "--", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("; the name is kept for "), "{}", ran.err);
    let ran = place.run(&["run", "a", "-n", "--", "true"]);
    if started.elapsed().as_millis() < 2_900 {
        assert_eq!(ran.code, 75, "{}", ran.err);
        assert!(ran.err.contains("` was released by "), "{}", ran.err);
    }
    assert_eq!(place.run(&["run", "a", "-w", "30s", "--", "true"]).code, 0);
    assert!(
        started.elapsed().as_millis() >= 2_990,
        "{:?}",
        started.elapsed()
    );
}

/// If the tool is killed, the command gets SIGTERM. On the embedded store, the lock is free as soon as
/// both processes have ended.
#[test]
fn the_command_gets_sigterm_when_the_tool_is_killed() {
    let place = Place::local();
    let command = "trap 'echo stopped > stopped; sleep 1; echo done >> stopped; exit' TERM; @@ \
                   while :; do sleep 0.01; done";
    let running = place.holding("a", &["--ttl", "60s"], command);
    let pid = place.await_file("started.a");
    place.await_bound("a");
    running.kill();
    place.await_file("stopped");
    // The command is still cleaning up, so no other process may hold the lock.
    let ran = place.run(&["run", "a", "-n", "-q", "--", "cat", "stopped"]);
    match ran.code {
        75 => {}
        // The machine is slow, and the command has ended in the meantime.
        0 => assert_eq!(ran.out, "stopped\ndone\n"),
        code => panic!("{code}: {}", ran.err),
    }
    // Well before the TTL.
    let out = place.ok(&["run", "a", "-w", "30s", "--", "cat", "stopped"]);
    assert_eq!(out, "stopped\ndone\n");
    assert!(!is_alive(&pid));
}

#[test]
fn option_c_runs_a_shell() {
    let place = Place::local();
    assert_eq!(place.ok(&["run", "a", "-c", "echo one | tr o 0"]), "0ne\n");
}

/// Background processes of a command that exits by itself are not stopped.
#[test]
fn background_processes_continue() {
    let place = Place::local();
    place.ok(&[
        "run",
        "a",
        "-c",
        "sleep 5 >/dev/null 2>&1 & echo $! > inner",
    ]);
    let inner = place.await_file("inner");
    assert!(is_alive(&inner));
    crate::kill("KILL", &inner);
}

#[test]
fn arguments_may_contain_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::local();
    let odd = std::ffi::OsStr::from_bytes(b"a\xff b");
    let mut command = place.command(&["run"]);
    command.arg(odd).args(["--", "printf", "%s"]).arg(odd);
    let output = crate::output(&mut command);
    assert_eq!(
        output.stdout,
        b"a\xff b",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Options after the command belong to the command.
    assert_eq!(place.ok(&["run", "a", "echo", "-n", "--ttl"]), "--ttl");
}

/// The lease of a stopped command is still renewed.
#[test]
fn a_stopped_command_keeps_its_lease() {
    let place = Place::local();
    place.pipe("go");
    let running = place.holding("a", &["--ttl", "4s"], "read x < go; echo done");
    let pid = place.await_file("started.a");
    crate::kill("STOP", &pid);
    std::thread::sleep(std::time::Duration::from_secs(9));
    let ran = place.run(&["run", "a", "-n", "--", "true"]);
    assert_eq!(ran.code, 75, "{}", ran.err);
    crate::kill("CONT", &pid);
    std::fs::write(place.file("go"), "go\n").expect("the command reads");
    assert_eq!(running.end().out, "done\n");
    until("free", || {
        place.run(&["run", "a", "-n", "-q", "--", "true"]).code == 0
    });
}

/// A signal that ends a process also ends a stopped one.
#[test]
fn a_signal_ends_a_stopped_command() {
    let place = Place::local();
    let running = place.holding("a", &[], "exec sleep 60");
    let pid = place.await_file("started.a");
    crate::kill("STOP", &pid);
    running.signal("TERM");
    assert_eq!(running.end().code, 128 + 15);
}

/// `nohup` works: signals that were ignored at the start stay ignored, also for the command.
#[test]
fn ignored_signals_stay_ignored() {
    let place = Place::local();
    place.pipe("go");
    let tool = place.command(&["run", "a", "-c", "echo $$ > up; read x < go; echo survived"]);
    let mut nohup = crate::wrapped("sh", &["-c", "trap '' HUP; exec \"$@\"", "sh"], &tool);
    let running = crate::Running::start(&mut nohup);
    let child = place.await_file("up");
    running.signal("HUP");
    crate::kill("HUP", &child);
    std::fs::write(place.file("go"), "go\n").expect("the command reads");
    let ran = running.end();
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "survived\n"),
        "{}",
        ran.err
    );
}

/// A parent that ignores SIGCHLD does not confuse the tool.
#[test]
fn an_ignored_sigchld_does_no_harm() {
    let place = Place::local();
    for (args, code) in [
        (&["run", "a", "-n", "--", "no-such-command"][..], 127),
        (&["run", "a", "-n", "-c", "exit 3"], 3),
    ] {
        let tool = place.command(args);
        let mut shell = crate::wrapped("bash", &["-c", "trap '' CHLD; exec \"$@\"", "bash"], &tool);
        let running = crate::Running::start(&mut shell);
        let ran = running.end();
        assert_eq!(ran.code, code, "{}", ran.err);
    }
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
}

/// As process 1 of a container, the tool must reap the orphans of its command itself.
#[test]
fn the_tool_exits_as_process_one() {
    let place = Place::local();
    let tool = place.command(&[
        "run",
        "a",
        "--at-most-for",
        "1s",
        "--grace",
        "500ms",
        "-c",
        "sleep 100 & sleep 100",
    ]);
    let unshare = ["--pid", "--fork", "--mount-proc"];
    let probe = std::process::Command::new("unshare")
        .args(unshare)
        .arg("true")
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no permission for a pid namespace");
        return;
    }
    let mut command = crate::wrapped("unshare", &unshare, &tool);
    let running = crate::Running::start(&mut command);
    assert_eq!(running.end().code, 124);
}

/// If the tool is killed and its command ends because of that, descendants of the command may still
/// be working. The lock is not free then.
#[test]
fn grandchildren_keep_the_lock_of_a_killed_tool() {
    let place = Place::local();
    let command = "sh -c 'trap \"\" TERM; echo $$ > inner; while [ ! -e go ]; do sleep 0.01; done' & \
                   @@ wait";
    let running = place.holding("a", &["--ttl", "60s"], command);
    let inner = place.await_file("inner");
    place.await_bound("a");
    running.kill();
    let ran = place.run(&["run", "a", "-w", "1500ms", "--", "true"]);
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(is_alive(&inner));
    place.touch("go");
    assert_eq!(place.run(&["run", "a", "-w", "30s", "--", "true"]).code, 0);
}

/// A command that cannot be started does not keep the lock.
#[test]
fn at_least_for_does_not_apply_to_a_missing_command() {
    let place = Place::local();
    let ran = place.run(&["run", "a", "--at-least-for", "1h", "--", "no-such-command"]);
    assert_eq!(ran.code, 127);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
}
