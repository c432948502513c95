//! A `leasehold` that runs inside the command of another `leasehold run`.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use leasehold_testkit::RedisServer;

use crate::{Place, events, kinds};

const TOOL: &str = env!("CARGO_BIN_EXE_leasehold");

/// An inner `leasehold` uses the nodes and the prefix of the outer one, whether they come from an
/// argument or a file.
#[test]
fn nodes_and_prefix_are_passed_on() {
    let servers = RedisServer::start_many(1);
    let url = servers[0].url();
    let place = Place::local();
    let file = place.file("nodes");
    std::fs::write(&file, format!("{url}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    std::fs::create_dir(place.file("elsewhere")).expect("created");
    let store = format!("local:{}", place.file("own.db").display());
    for (name, nodes) in [
        ("a", ["--node", url.as_str()]),
        ("b", ["--nodes-file", "nodes"]),
        ("c", ["--node", store.as_str()]),
    ] {
        let inner = format!("inner.{name}");
        // The path of the file is also valid in another directory.
        let line = format!("cd elsewhere; {TOOL} run {inner} -c 'cd ..; @@ exec sleep 60'");
        let outer = [&nodes[..], &["--prefix", "p:"]].concat();
        let running = place.holding(name, &outer, &line);
        let held = |options: &[&str]| {
            let args = [&["run", &inner, "-n"], options, &["--", "true"]].concat();
            place.run(&args).code == 75
        };
        let direct = if name == "c" { store.as_str() } else { &url };
        assert!(held(&["--node", direct, "--prefix", "p:"]), "{name}");
        assert!(!held(&["--node", direct]), "{name}: the prefix is lost");
        assert!(!held(&["--prefix", "p:"]), "{name}: on the embedded store");
        running.signal("TERM");
        assert_eq!(running.end().code, 128 + 15, "{name}");
    }
    // Nodes of the command line replace nodes in the environment.
    let mut command = place.command(&["run", "d", "--node", &store, "-c", "echo $LEASEHOLD_NODES"]);
    let output = crate::output(command.env("LEASEHOLD_NODES", &url));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.trim(), store, "{output:?}");
}

/// Nodes with a password are not passed on. An inner `leasehold` does not fall back to the embedded
/// store: it fails and suggests a next step, which works.
#[test]
fn nodes_with_a_password_are_not_passed_on() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = server.url().replace("redis://", "redis://:secret@");
    let mut place = Place::local();
    let inner = format!("env; {TOOL} run b -n -- echo inside");
    let refused = |ran: crate::Ran| {
        assert_eq!(ran.code, 64, "{}", ran.err);
        assert!(ran.err.contains("contain a password"), "{}", ran.err);
        assert!(
            ran.err.contains("next: put the URLs into a file"),
            "{}",
            ran.err
        );
        assert!(!ran.out.contains("secret"), "{}", ran.out);
    };
    refused(place.run(&["run", "a", "--node", &url, "-c", &inner]));
    place.nodes = Some(url.clone());
    refused(place.run(&["run", "a", "-c", &inner]));
    let file = place.file("nodes");
    std::fs::write(&file, format!("{url}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let out = place.ok(&["run", "a", "--nodes-file", "nodes", "-c", &inner]);
    assert!(
        out.ends_with("inside\n") && !out.contains("secret"),
        "{out}"
    );
    let line = format!("{TOOL} run b -n --nodes-file nodes -- echo inside");
    assert_eq!(place.ok(&["run", "a", "-c", &line]), "inside\n");
}

/// Waiting for a lock that an enclosing run holds would never end, at any depth. The request fails at
/// once, with and without a limit of the wait.
#[test]
fn the_same_name_inside_itself_is_refused() {
    let servers = RedisServer::start_many(3);
    for (place, fresh) in [
        (Place::local(), ""),
        (Place::redis(&servers), "--assume-fresh"),
    ] {
        let first = ["run", "a", "--prefix", "p:"];
        let first: Vec<_> = first
            .into_iter()
            .chain((!fresh.is_empty()).then_some(fresh))
            .collect();
        for inner in [
            format!("{TOOL} run a {fresh} -- touch ran"),
            format!("{TOOL} run a {fresh} -n -- touch ran"),
            format!("{TOOL} run a {fresh} -q -w 50 -- touch ran"),
            format!("{TOOL} acquire a {fresh}"),
            format!("{TOOL} run b {fresh} -- {TOOL} run a {fresh} -- touch ran"),
        ] {
            let ran = place.run(&[&first[..], &["-c", &inner]].concat());
            assert_eq!(ran.code, 64, "{inner}: {}", ran.err);
            assert!(
                ran.err.contains("enclosing `leasehold run` holds `a`"),
                "{}",
                ran.err
            );
            assert!(ran.err.contains("--inherit"), "{}", ran.err);
        }
        assert!(!place.file("ran").exists());
        // Another prefix or other nodes make it another lock.
        let own = format!("--node local:{}", place.file("own.db").display());
        for other in ["--prefix q:", own.as_str()] {
            let inner = format!("{TOOL} run a {fresh} {other} -- echo inside");
            let out = place.ok(&[&first[..], &["-c", &inner]].concat());
            assert_eq!(out, "inside\n", "{other}");
        }
        // The tool waits as usual for a lock that another process holds.
        let holder = place.holding("c", &[&first[2..]].concat(), "exec sleep 60");
        let inner = format!("{TOOL} run c {fresh} -w 1 -- touch ran");
        let ran = place.run(&[&first[..], &["-c", &inner]].concat());
        assert_eq!(ran.code, 75, "{}", ran.err);
        drop(holder);
    }
}

/// With `--inherit`, the command replaces the tool and runs under the enclosing lease, with its token
/// and in its process group.
#[test]
fn inherit_runs_under_the_enclosing_lease() {
    let place = Place::local();
    let command = "echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN $(ps -o pgid= -p $$)";
    let line = format!("({command}); {TOOL} run a --inherit --json -c '{command}; exit 7'");
    let ran = place.run(&["run", "a", "-c", &line]);
    assert_eq!(ran.code, 7, "{}", ran.err);
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{}", ran.out);
    assert_eq!(kinds(&events(&ran.err)), ["inherited"]);
    // With another lease in between, the token is that of the inherited lock.
    let inner = format!(
        "{TOOL} run b -- {TOOL} run a --inherit -c 'echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN'"
    );
    let line = format!("echo a $LEASEHOLD_TOKEN; {inner}");
    let out = place.ok(&["run", "a", "-c", &line]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{out}");
    // If no enclosing run holds the lock, it is acquired.
    let line = format!("{TOOL} run b --inherit -c 'echo $LEASEHOLD_NAME'");
    assert_eq!(place.ok(&["run", "a", "-c", &line]), "b\n");
    assert_eq!(
        place.ok(&["run", "a", "--inherit", "--", "echo", "alone"]),
        "alone\n"
    );
    // A lease that a script acquired is inherited, too.
    let acquired = place.ok(&["acquire", "c", "--ttl", "600"]);
    let line = format!(
        "{acquired}{TOOL} run c --inherit -c 'echo $LEASEHOLD_TOKEN'; echo $LEASEHOLD_TOKEN"
    );
    let out = place.ok(&["run", "d", "-c", &line]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{out}");
    // A command that cannot be run has the usual exit code.
    let line = format!("{TOOL} run a --inherit -- no-such-command");
    assert_eq!(place.run(&["run", "a", "-c", &line]).code, 127);
}

/// A refusal names no readers, but a reader must not wait for itself either. An inner reader can run
/// under the lease of an outer one.
#[test]
fn a_shared_lock_inside_itself() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let outer = |inner: &str| place.run(&["run", "a", "--shared", "-c", inner]);
        for (inner, part) in [
            ("run a -- touch ran", "an exclusive lock would never end"),
            ("run a -n -- touch ran", "an exclusive lock would never end"),
            ("run a --inherit -- touch ran", "--shared --inherit"),
            ("run a --shared -- touch ran", "--shared --inherit"),
            ("acquire a --shared", "--shared --inherit"),
            (
                "once a --for 1h -- touch ran",
                "an exclusive lock would never end",
            ),
            ("wait a", "the wait would never end"),
            ("wait a", "next: run `leasehold wait` outside"),
        ] {
            let ran = outer(&format!("{TOOL} {inner}"));
            assert_eq!(ran.code, 64, "{inner}: {}", ran.err);
            assert!(ran.err.contains(part), "{inner}: {}", ran.err);
        }
        assert!(!place.file("ran").exists());
        let token = "echo $LEASEHOLD_TOKEN";
        let ran = outer(&format!(
            "{token}; {TOOL} run a --shared --inherit -c '{token}'"
        ));
        let lines: Vec<_> = ran.out.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, lines[1]), "{}", ran.err);
        // An exclusive lock excludes itself, whoever wants to share it.
        let inner = format!("{TOOL} run a --shared -- touch ran");
        assert_eq!(place.run(&["run", "a", "-c", &inner]).code, 64);
        let ran = place.run(&["run", "a", "--", TOOL, "wait", "a"]);
        assert_eq!(ran.code, 64, "{}", ran.err);
        // Other locks are not concerned.
        assert_eq!(
            outer(&format!("{TOOL} run b --shared -- {TOOL} wait c")).code,
            0
        );
    }
}

/// A script that holds the lock must not wait for itself. When it has released the lock, or for another
/// lock, its lease does not matter.
#[test]
fn a_script_does_not_wait_for_its_own_lease() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        for how in ["", "--shared"] {
            let acquired = {
                let args = ["acquire", "a", "--ttl", "24h", how];
                place.ok(&args[..if how.is_empty() { 4 } else { 5 }])
            };
            let script = |line: &str| {
                let line = format!("{acquired}{line}");
                crate::Running::start(&mut crate::wrapped(
                    "sh",
                    &["-c", &line],
                    &place.command(&[]),
                ))
                .end()
            };
            let inherit = format!("`leasehold run {how} --inherit`").replace("  ", " ");
            for (inner, next) in [
                ("run a -- touch ran", &*inherit),
                ("run a -n -- touch ran", &inherit),
                ("once a --for 1h -- touch ran", &inherit),
                ("elect a -- touch ran", &inherit),
                ("acquire a -o json", &inherit),
                ("wait a", "leasehold release a"),
            ] {
                let ran = script(&format!("{TOOL} {inner}"));
                assert_eq!(ran.code, 64, "{inner}: {}", ran.err);
                assert!(ran.err.contains("this script holds `a`"), "{}", ran.err);
                assert!(ran.err.contains(next), "{inner}: {}", ran.err);
            }
            assert!(!place.file("ran").exists());
            let ran = script(&format!(
                "{TOOL} run b -- true && {TOOL} release a && {TOOL} wait a && {TOOL} run a -- echo in"
            ));
            assert_eq!((ran.code, &*ran.out), (0, "in\n"), "{}", ran.err);
        }
    }
}

/// Two locks may have equal tokens: in the first seconds of a server, the first token of each lock is
/// the smallest that the server grants. The leases are different nevertheless.
#[test]
fn an_equal_token_of_another_name_is_not_an_enclosing_lease() {
    // If the machine stalls for seconds the tokens differ and the test proves nothing: retry.
    for _ in 0..10 {
        let server = RedisServer::start();
        let place = Place::redis(std::slice::from_ref(&server));
        let stranger = place.holding("y", &[], "echo $LEASEHOLD_TOKEN > token; @@ exec sleep 60");
        let inner = format!("{TOOL} run y -n -- echo in; {TOOL} run y --inherit -n -- echo in");
        let line = format!("echo $LEASEHOLD_TOKEN; {inner}");
        let ran = place.run(&["run", "x", "-c", &line]);
        let (token, rest) = ran.out.split_once('\n').expect("a token");
        assert_eq!((ran.code, rest), (75, ""), "{}", ran.err);
        assert!(!ran.err.contains("enclosing"), "{}", ran.err);
        drop(stranger);
        if place.read("token").trim() == token {
            return;
        }
    }
    panic!("the tokens of two locks were never equal");
}

/// When the enclosing lease is lost, the inherited command is stopped.
#[test]
fn an_inherited_command_is_stopped_with_the_enclosing_lease() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let line = format!(
        "{TOOL} run a --inherit -c 'trap \"echo stopped > stopped; exit\" TERM; @@ while :; do sleep 0.01; done'"
    );
    let running = place.holding("a", &["--ttl", "5s", "--grace", "2s"], &line);
    std::thread::sleep(Duration::from_millis(200));
    servers[0].stop();
    let ran = running.end();
    servers[0].resume();
    assert_eq!(ran.code, 79, "{}", ran.err);
    assert_eq!(place.await_file("stopped"), "stopped\n");
}
