//! `acquire`, `extend` and `release`, and options for scripts.

use leasehold_testkit::RedisServer;

use crate::{Place, Ran, Running};

/// Runs a script with the tool in `PATH`.
fn script(place: &Place, text: &str) -> Ran {
    let tool = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let path = format!(
        "{}:{}",
        tool.parent().expect("a directory").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut shell = crate::wrapped("sh", &["-c", text], &place.command(&[]));
    Running::start(shell.env("PATH", path)).end()
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

/// A shorter TTL changes nothing, and the printed lease says so.
#[test]
fn extend_never_shortens() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        for mode in ["", "--shared"] {
            let ran = script(
                &place,
                &format!(
                    "eval \"$(leasehold acquire a --ttl 10m {mode})\"
                     echo $LEASEHOLD_DEADLINE_MS
                     eval \"$(leasehold extend a --ttl 5s)\"
                     echo $LEASEHOLD_DEADLINE_MS
                     echo $LEASEHOLD_LEASE_TTL
                     leasehold release a"
                ),
            );
            let lines: Vec<_> = ran.out.lines().collect();
            let [before, after, ttl] = lines[..] else {
                panic!("{} {}", ran.out, ran.err);
            };
            let [before, after] = [before, after].map(|ms| ms.parse::<u64>().expect("a time"));
            assert!(after >= before, "{before} {after}");
            assert_eq!(ttl, "600000ms");
        }
    }
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

/// A closed stdout is noticed, and one that discards everything on purpose is not an error.
#[test]
fn a_lease_that_nobody_can_read_is_not_acquired() {
    let place = Place::local();
    let ran = script(
        &place,
        "leasehold acquire a >&-; echo $?
         leasehold run a -n -- true; echo $?
         leasehold acquire a > /dev/null; echo $?",
    );
    assert_eq!(ran.out, "70\n0\n0\n", "{}", ran.err);
    assert!(ran.err.contains("stdout is closed"), "{}", ran.err);
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
        Running::start(command.stdout(writer)).end()
    };
    for args in [
        &["ls"][..],
        &["ls", "-o", "name"],
        &["ls", "-o", "json"],
        &["ls", "--watch", "100ms"],
        &["show", "held"],
        &["show", "held", "-o", "json"],
        &["show", "held", "--watch", "100ms"],
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
