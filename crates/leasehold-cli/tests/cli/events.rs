//! Events as JSON, one object per line.

use crate::{Place, Running, events, kinds};

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
    let run = |line: &str| {
        let args = ["-c", line, env!("CARGO_BIN_EXE_leasehold")];
        Running::start(&mut crate::wrapped("sh", &args, &place.command(&[]))).end()
    };
    let ran = run(
        "exec \"$0\" run a -v --events-fd 9 -c '[ ! -e /proc/self/fd/9 ] && echo closed' 9>events",
    );
    assert_eq!((ran.code, ran.out.as_str()), (0, "closed\n"), "{}", ran.err);
    let wanted = ["acquired", "started", "exited", "released"];
    assert_eq!(kinds(&events(&place.read("events"))), wanted);
    assert!(ran.err.contains("leasehold: acquired `a`"), "{}", ran.err);
    assert!(!ran.err.contains("\"event\""), "{}", ran.err);
    // The tool writes at the current position of the file.
    let ran = run("(echo first; exec \"$0\" run a --events-fd 1 -- true)");
    let written = ran.out.strip_prefix("first\n").expect("first");
    assert_eq!(kinds(&events(written)), wanted);
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
        let ran = run(line);
        assert_eq!(ran.code, 64, "{line}: {}", ran.err);
        assert!(ran.err.contains(says), "{line}: {}", ran.err);
    }
    assert!(!place.file("ran").exists());
}
