//! `acquire`, `extend` and `release`, and options for scripts.

use std::os::unix::fs::PermissionsExt;

use leasehold_testkit::RedisServer;

use crate::{Place, Ran, events, kinds};

/// Runs a script with the tool in `PATH`.
fn script(place: &Place, text: &str) -> Ran {
    let tool = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let path = format!(
        "{}:{}",
        tool.parent().expect("a directory").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut shell = crate::wrapped("sh", &["-c", text], &place.command(&[]));
    let output = crate::output(shell.env("PATH", path));
    Ran {
        code: output.status.code().expect("it exits"),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// One process acquires the lock, another extends the lease, and a third releases it.
#[test]
fn acquire_extend_release() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let ran = script(
            &place,
            "set -e
             eval \"$(leasehold acquire \"it's\" --ttl 30s)\"
             echo name \"$LEASEHOLD_NAME\" token \"$LEASEHOLD_TOKEN\"
             leasehold run \"it's\" -n -q -- true && exit 1
             eval \"$(leasehold extend \"it's\" --ttl 40s)\"
             leasehold release \"it's\"
             leasehold run \"it's\" -n -- echo free
             code=0; leasehold extend \"it's\" > out || code=$?; echo $code; cat out
             code=0; leasehold release \"it's\" || code=$?; echo $code",
        );
        assert_eq!(ran.code, 0, "{}", ran.err);
        let lines: Vec<_> = ran.out.lines().collect();
        assert!(lines[0].starts_with("name it's token 1"), "{}", ran.out);
        assert_eq!(lines[1..], ["free", "79", "(exit 79)", "79"], "{}", ran.err);
        assert!(ran.err.contains("is not held"), "{}", ran.err);
    }
}

#[test]
fn json_output() {
    let place = Place::local();
    let out = place.ok(&["acquire", "a", "-o", "json", "--ttl", "20s"]);
    let lease: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&lease["name"], &lease["ttl_ms"]),
        (&"a".into(), &20_000.into())
    );
    let owner = lease["owner"].as_str().expect("an owner");
    assert!(owner.starts_with(|c: char| c.is_ascii_hexdigit()));
    let token = lease["token"].as_u64().expect("a token");
    let extended = place.ok(&["extend", "a", "--owner", owner, "-o", "json"]);
    let extended: serde_json::Value = serde_json::from_str(&extended).expect("JSON");
    assert_eq!(extended["token"].as_u64(), Some(token));
    assert!(extended["deadline_ms"].as_u64() > lease["deadline_ms"].as_u64());
    place.ok(&["release", "a", "--owner", owner]);
}

/// A lease expires after its TTL, although the process that acquired it exited long before.
#[test]
fn a_lease_expires_unless_extended() {
    let place = Place::local();
    let _ = place.ok(&["acquire", "a", "--ttl", "4s"]);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 75);
    assert_eq!(place.run(&["run", "a", "-w", "30s", "--", "true"]).code, 0);
}

/// `eval` of an empty text succeeds, but a script must not continue without the lock.
#[test]
fn a_script_stops_if_the_lock_is_not_acquired() {
    let place = Place::local();
    let _holder = place.holding("a", &[], "exec sleep 60");
    let ran = script(
        &place,
        "eval \"$(leasehold acquire a -n)\" || exit; touch ran",
    );
    assert_eq!(ran.code, 75, "{}", ran.err);
    let ran = script(
        &place,
        "set -e; eval \"$(leasehold acquire a -n -q -E 9)\"; touch ran",
    );
    assert_eq!((ran.code, ran.err.as_str()), (9, ""));
    // Nor must it continue after an unknown argument, or with an exit code that means success.
    for (line, code) in [
        (
            "eval \"$(leasehold acquire b --bogus)\" || exit; touch ran",
            64,
        ),
        (
            "eval \"$(leasehold acquire b --ttl)\" || exit; touch ran",
            64,
        ),
        (
            "eval \"$(leasehold acquire a -n -E 0)\" || exit; touch ran",
            64,
        ),
        (
            "eval \"$(leasehold extend a --owner x)\" || exit; touch ran",
            64,
        ),
        (
            "lease=$(leasehold acquire a -n) || exit; eval \"$lease\"; touch ran",
            75,
        ),
        (
            "lease=$(no-such-leasehold acquire a) || exit; eval \"$lease\"; touch ran",
            127,
        ),
    ] {
        assert_eq!(script(&place, line).code, code, "{line}");
        assert!(!place.file("ran").exists(), "{line}");
    }
    // JSON is not for `eval`: stdout contains the object or is empty. Help is not an error.
    for args in [
        &["acquire", "b", "--bogus", "-o", "json"][..],
        &["acquire", "b", "--bogus", "--output=json"],
        &["run", "b", "--bogus"],
    ] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{args:?}");
    }
    assert_eq!(
        place
            .run(&["acquire", "a", "-n", "-E", "0", "-o", "json"])
            .code,
        0
    );
    assert!(!place.ok(&["acquire", "--help"]).contains("(exit"));
}

/// A released lease cannot be extended. The message lists what may have happened.
#[test]
fn extend_after_release_fails() {
    let place = Place::local();
    let ran = script(
        &place,
        "lease=$(leasehold acquire a) || exit; eval \"$lease\"
         leasehold release a && leasehold extend a",
    );
    assert_eq!(ran.code, 79, "{}", ran.err);
    let says = "`a` is not held: the lease with token";
    assert!(ran.err.contains(says), "{}", ran.err);
    assert!(ran.err.contains("was released"), "{}", ran.err);
}

/// Names in arguments and in the output do not include the prefix.
#[test]
fn prefix() {
    let place = Place::local();
    let out = place.ok(&["acquire", "a", "--prefix", "app:", "-o", "json"]);
    let lease: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(lease["name"], "a");
    let _ = place.ok(&["acquire", "other"]);
    let listed = place.ok(&["ls", "--prefix", "app:"]);
    assert!(
        listed.contains("\n a ") && !listed.contains("other"),
        "{listed}"
    );
    assert!(place.ok(&["ls"]).contains("app:a"));
    let owner = lease["owner"].as_str().expect("an owner");
    place.ok(&["release", "a", "--prefix", "app:", "--owner", owner]);
    assert_eq!(place.run(&["run", "app:a", "-n", "--", "true"]).code, 0);
}

/// If the lease cannot be printed, the caller does not know the owner. The lock is released then.
#[test]
fn a_lease_that_cannot_be_printed_is_released() {
    let place = Place::local();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("a device");
    let mut command = place.command(&["acquire", "a"]);
    let status = command.stdout(full).status().expect("it runs");
    assert_ne!(status.code(), Some(0));
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
}

/// Nodes from a file, to which other users must not have access.
#[test]
fn nodes_file() {
    let servers = [RedisServer::start_with(&["--requirepass", "secret"])];
    let place = Place::local();
    let url = servers[0].url().replace("redis://", "redis://:secret@");
    let file = place.file("nodes");
    std::fs::write(&file, format!("# the nodes\n\n  {url}  \n")).expect("written");
    let args = ["run", "a", "-n", "--nodes-file", "nodes", "--", "true"];
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let ran = place.run(&args);
    assert_eq!(ran.code, 64);
    assert!(ran.err.contains("chmod 600"), "{}", ran.err);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let ran = place.run(&args);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    std::fs::write(&file, "# nothing\n").expect("written");
    assert_eq!(place.run(&args).code, 64);
    // A password in an argument works, too. The warning does not repeat it.
    let ran = place.run(&["run", "a", "-n", "--node", &url, "--", "true"]);
    assert_eq!(ran.code, 0);
    assert!(
        ran.err
            .contains("warning: a password in an argument is visible"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("secret"), "{}", ran.err);
    let wrong = url.replace("secret", "guess");
    let ran = place.run(&["run", "a", "-n", "--node", &wrong, "--", "true"]);
    assert_eq!(ran.code, 69);
    assert!(ran.err.contains("authentication failed"), "{}", ran.err);
    assert!(!ran.err.contains("guess"), "{}", ran.err);
}

/// Events are JSON objects, one per line.
#[test]
fn events_as_json() {
    let place = Place::local();
    let ran = place.run(&["run", "a", "--json", "-c", "exit 3"]);
    let all = events(&ran.err);
    assert_eq!(kinds(&all), ["acquired", "started", "exited", "released"]);
    assert_eq!((&all[0]["name"], &all[2]["code"]), (&"a".into(), &3.into()));
    assert!(all[0]["token"].as_u64() > Some(0));
    // The time of the wait is not part of `held_ms`.
    let _ = place.ok(&["acquire", "b", "--ttl", "5s"]);
    let ran = place.run(&["run", "b", "--json", "--", "true"]);
    let all_of_b = events(&ran.err);
    let (waited, held) = (&all_of_b[1]["waited_ms"], &all_of_b[4]["held_ms"]);
    assert!(
        waited.as_u64() > Some(1_000) && held.as_u64() < waited.as_u64(),
        "{}",
        ran.err
    );

    let holder = place.holding("a", &["--label", "x"], "exec sleep 60");
    let ran = place.run(&["run", "a", "--json", "-w", "700ms", "--", "true"]);
    let all = events(&ran.err);
    assert_eq!(kinds(&all), ["waiting", "error"]);
    assert_eq!(all[0]["holder"]["label"], "x");
    assert_eq!(all[0]["holder"]["pid"], holder.pid());
    assert_eq!((ran.code, &all[1]["code"]), (75, &75.into()));
}

/// `acquire` reports success as an event. On failure, the event contains its exit code.
#[test]
fn events_of_acquire() {
    let place = Place::local();
    let ran = place.run(&["acquire", "a", "--json", "-o", "json", "--ttl", "60"]);
    let all = events(&ran.err);
    assert_eq!((ran.code, kinds(&all)), (0, vec!["acquired".to_owned()]));
    let lease: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(all[0]["token"], lease["token"]);
    for (args, code) in [
        (&["acquire", "a", "--json", "-n"][..], 75),
        (&["acquire", "a", "--json", "--node", "http://x"], 64),
    ] {
        let ran = place.run(args);
        let all = events(&ran.err);
        assert_eq!(kinds(&all), ["error"], "{}", ran.err);
        assert_eq!((ran.code, &all[0]["code"]), (code, &code.into()));
        assert_eq!(ran.out, format!("(exit {code})\n"));
    }
}

/// Events go to a descriptor that the caller opened. Text still goes to stderr, and the command does
/// not inherit the descriptor.
#[test]
fn events_go_to_an_open_descriptor() {
    let place = Place::local();
    let tool = |line: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", line, env!("CARGO_BIN_EXE_leasehold")]);
        let inner = place.command(&[]);
        let envs = inner
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?)));
        command.envs(envs).current_dir(place.dir.path());
        crate::output(&mut command)
    };
    let output = tool(
        "exec \"$0\" run a -v --events-fd 9 -c '[ ! -e /proc/self/fd/9 ] && echo closed' 9>events",
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"closed\n");
    let wanted = ["acquired", "started", "exited", "released"];
    assert_eq!(kinds(&events(&place.read("events"))), wanted);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("leasehold: acquired `a`"), "{text}");
    assert!(!text.contains("\"event\""), "{text}");
    // The tool writes at the current position of the file.
    let output = tool("(echo first; exec \"$0\" run a --events-fd 1 -- true)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        kinds(&events(text.strip_prefix("first\n").expect("first"))),
        wanted
    );
    for (line, says) in [
        (
            "exec \"$0\" run a --events-fd 9 -- touch ran",
            "descriptor 9: ",
        ),
        (
            "exec \"$0\" run a --events-fd 9 -- touch ran 9</dev/null",
            "for reading only",
        ),
        ("exec \"$0\" run a --events-fd 0 -- touch ran", "1 or more"),
        (
            "exec \"$0\" run a --events-fd x -- touch ran",
            "not a number",
        ),
    ] {
        let output = tool(line);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{line}: {text}");
        assert!(text.contains(says), "{line}: {text}");
    }
    assert!(!place.file("ran").exists());
}

/// `extend` never shortens a lease. Its default TTL is that of `acquire`.
#[test]
fn extend_keeps_the_ttl_of_the_acquire() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let ran = script(
            &place,
            "set -e
             eval \"$(leasehold acquire a --ttl 40m)\"
             leasehold extend a --ttl 1s > /dev/null
             leasehold show a -o json
             leasehold extend a -o json",
        );
        assert_eq!(ran.code, 0, "{}", ran.err);
        let texts: Vec<serde_json::Value> = serde_json::Deserializer::from_str(&ran.out)
            .into_iter()
            .map(|text| text.expect("JSON"))
            .collect();
        let left = &texts[0]["nodes"][0]["remaining_ms"];
        assert!(
            left.as_u64().is_some_and(|left| left > 1_200_000),
            "{}",
            ran.out
        );
        assert_eq!(texts[1]["ttl_ms"], 2_400_000, "{}", ran.out);
    }
}

/// An owner can release only its own lock. The message for another lock does not say that the lease
/// has expired.
#[test]
fn the_owner_of_another_lock_is_refused() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let ran = script(
            &place,
            "eval \"$(leasehold acquire b1)\"
             leasehold release a1; echo $?
             leasehold extend a1 > /dev/null; echo $?
             other=$LEASEHOLD_OWNER
             leasehold run a1 -- leasehold show a1 > /dev/null
             (eval \"$(leasehold acquire a1)\")
             leasehold release a1 --owner \"$other\" ; echo $?
             unset LEASEHOLD_NAME; leasehold release a1; echo $?
             leasehold release b1; echo $?",
        );
        let codes: Vec<_> = ran.out.lines().collect();
        assert_eq!(codes, ["64", "64", "64", "79", "0"], "{}", ran.err);
        assert!(ran.err.contains("owner of `b1`"), "{}", ran.err);
        assert!(
            ran.err.contains("not the owner of `a1`: it is held by"),
            "{}",
            ran.err
        );
        assert!(!ran.err.contains("expired"), "{}", ran.err);
    }
}

/// A closed pipe is not an error, except for `acquire`: a lease that cannot be printed is released.
#[test]
fn a_closed_pipe_is_not_an_error() {
    let place = Place::local();
    let _holder = place.holding("held", &[], "exec sleep 60");
    let lease = place.ok(&["acquire", "a", "-o", "json"]);
    let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
    let owner = lease["owner"].as_str().expect("an owner");
    let run = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = place.command(args);
        crate::Running(Some(command.stdout(writer).spawn().expect("it starts"))).end()
    };
    for args in [
        &["ls"][..],
        &["ls", "-o", "name"],
        &["ls", "-o", "json"],
        &["ls", "--watch", "20ms"],
        &["show", "held"],
        &["show", "held", "-o", "json"],
        &["show", "held", "--watch", "20ms"],
        &["extend", "a", "--owner", owner],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let ran = run(args);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
    }
    let ran = run(&["acquire", "b"]);
    assert_eq!(ran.code, 70, "{}", ran.err);
    assert!(ran.err.contains("the lock was released"), "{}", ran.err);
    place.ok(&["run", "b", "-n", "--", "true"]);
}

/// Every option about nodes has an environment variable. Arguments take precedence.
#[test]
fn node_options_in_the_environment() {
    let servers = RedisServer::start_many(1);
    let place = Place::local();
    let file = place.file("nodes");
    std::fs::write(&file, servers[0].url()).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    std::fs::write(place.file("empty.pem"), "").expect("written");
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = place.command(args);
        command.envs(variables.iter().copied());
        crate::Running(Some(command.spawn().expect("it starts"))).end()
    };
    let nodes = ("LEASEHOLD_NODES_FILE", "nodes");
    let ran = run(&[nodes, ("LEASEHOLD_PREFIX", "app:")], &["acquire", "a"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(servers[0].get(b"app:a").is_some());
    let ran = run(&[nodes], &["show", "app:a", "--node", "local:"]);
    assert!(ran.out.contains("free"), "{}", ran.out);
    let both = [nodes, ("LEASEHOLD_NODES", "local:")];
    let ran = run(&both, &["ls"]);
    assert_eq!(ran.code, 64);
    assert!(ran.err.contains("are both set"), "{}", ran.err);
    for (variable, value, says) in [
        ("LEASEHOLD_RESTART_GUARD", "soon", "--restart-guard"),
        (
            "LEASEHOLD_TLS_CA",
            "empty.pem",
            "--tls-ca: it contains no certificate",
        ),
        ("LEASEHOLD_TLS_CERT", "empty.pem", "--tls-key"),
        ("LEASEHOLD_TLS_KEY", "empty.pem", "--tls-cert"),
    ] {
        let ran = run(&[(variable, value)], &["ls"]);
        assert_eq!(ran.code, 64, "{variable}: {}", ran.err);
        assert!(ran.err.contains(says), "{variable}: {}", ran.err);
    }
    // Three new servers vote only if the restart guard is off or they are known to be new.
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let run = |variable: &str, value: &str| {
        let mut command = place.command(&["run", "a", "-n", "--", "true"]);
        command.env(variable, value);
        crate::Running(Some(command.spawn().expect("it starts")))
            .end()
            .code
    };
    assert_eq!(run("LEASEHOLD_ASSUME_FRESH", "0"), 69);
    assert_eq!(run("LEASEHOLD_ASSUME_FRESH", "1"), 0);
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["run", "a", "-n", "--restart-guard", "off", "--", "true"]);
    let ran = place.run(&["acquire", "a", "--ttl", "5m"]);
    assert_eq!(ran.code, 64);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.contains("add --restart-guard 5m"), "{}", ran.err);
}

/// The tool waits for the votes of three servers that have just started, and says so.
#[test]
fn run_waits_for_new_servers() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    let ran = place.run(&[
        "run",
        "a",
        "-v",
        "--restart-guard",
        "20s",
        "--",
        "echo",
        "mine",
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "mine\n"), "{}", ran.err);
    assert!(
        ran.err.contains("the nodes vote in") && ran.err.contains("the set was replaced recently"),
        "{}",
        ran.err
    );
}
