//! Locks for scripts.

use std::os::unix::fs::PermissionsExt;

use leasehold_testkit::RedisServer;

use crate::{Place, Ran};

/// Runs a script with the tool on the path.
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

/// Taken by one process, kept by another, given back by a third.
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
             code=0; leasehold extend \"it's\" || code=$?; echo $code
             code=0; leasehold release \"it's\" || code=$?; echo $code",
        );
        assert_eq!(ran.code, 0, "{}", ran.err);
        let lines: Vec<_> = ran.out.lines().collect();
        assert!(lines[0].starts_with("name it's token 1"), "{}", ran.out);
        assert_eq!(lines[1..], ["free", "79", "79"], "{}", ran.err);
        assert!(ran.err.contains("was lost"), "{}", ran.err);
    }
}

#[test]
fn a_lease_as_json() {
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

/// It ends with its TTL although the process that took it is long gone.
#[test]
fn a_lease_that_nobody_extends_ends() {
    let place = Place::local();
    let _ = place.ok(&["acquire", "a", "--ttl", "4s"]);
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 75);
    assert_eq!(place.run(&["run", "a", "-w", "30s", "--", "true"]).code, 0);
}

/// `eval` of nothing succeeds: a script must not go on without the lock.
#[test]
fn a_script_stops_where_it_does_not_get_the_lock() {
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
    assert!(!place.file("ran").exists());
}

/// With a prefix, names are given and shown without it.
#[test]
fn a_prefix_is_put_before_every_name() {
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

/// If its output cannot be written nobody knows the owner: then it is given back.
#[test]
fn a_lease_that_cannot_be_printed_is_given_back() {
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

/// The nodes in a file, which others may not read.
#[test]
fn a_file_of_nodes() {
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
    // In an argument it works too, with a warning that does not show it.
    let ran = place.run(&["run", "a", "-n", "--node", &url, "--", "true"]);
    assert_eq!(ran.code, 0);
    assert!(
        ran.err
            .contains("warning: every user of this machine can see"),
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

/// Events for machines: one JSON object on each line.
#[test]
fn events_as_json() {
    let place = Place::local();
    let events = |ran: &Ran| -> Vec<serde_json::Value> {
        let lines = ran.err.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    };
    let kinds = |events: &[serde_json::Value]| -> Vec<String> {
        let kinds = events
            .iter()
            .map(|event| event["event"].as_str().expect("a kind"));
        kinds.map(str::to_owned).collect()
    };
    let ran = place.run(&["run", "a", "--json", "-c", "exit 3"]);
    let all = events(&ran);
    assert_eq!(kinds(&all), ["acquired", "started", "exited", "released"]);
    assert_eq!((&all[0]["name"], &all[2]["code"]), (&"a".into(), &3.into()));
    assert!(all[0]["token"].as_u64() > Some(0));
    // The time that it was held does not contain that for which it was waited.
    let _ = place.ok(&["acquire", "b", "--ttl", "5s"]);
    let ran = place.run(&["run", "b", "--json", "--", "true"]);
    let all_of_b = events(&ran);
    let (waited, held) = (&all_of_b[1]["waited_ms"], &all_of_b[4]["held_ms"]);
    assert!(
        waited.as_u64() > Some(1_000) && held.as_u64() < waited.as_u64(),
        "{}",
        ran.err
    );

    let holder = place.holding("a", &["--label", "x"], "exec sleep 60");
    let ran = place.run(&["run", "a", "--json", "-w", "700ms", "--", "true"]);
    let all = events(&ran);
    assert_eq!(kinds(&all), ["waiting", "error"]);
    assert_eq!(all[0]["holder"]["label"], "x");
    assert_eq!(all[0]["holder"]["pid"], holder.pid());
    assert_eq!((ran.code, &all[1]["code"]), (75, &75.into()));
}
