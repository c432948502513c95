//! `run --permits`: at most so many commands at a time.

use leasehold_testkit::RedisServer;

use crate::{Place, Running, UNTIL_GO, until};

const TOOL: &str = env!("CARGO_BIN_EXE_leasehold");

/// The permits that are held, as `show` reports them.
fn permits(place: &Place, name: &str) -> Vec<serde_json::Value> {
    let page = place.ok(&["show", name, "--permits", "-o", "json"]);
    serde_json::from_str(&page).expect("JSON")
}

/// Two commands hold the permits and know their numbers. A third waits, and gets the one that becomes
/// free.
#[test]
fn so_many_commands_run_at_a_time() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let args = ["--permits", "2"];
        let line = |file: &str| format!("echo $LEASEHOLD_PERMIT > {file}; @@ {UNTIL_GO}");
        let one = place.holding("x", &args, &line("one"));
        let two = place.holding("x", &args, &line("two"));
        let mut numbers = [place.await_file("one"), place.await_file("two")];
        numbers.sort();
        assert_eq!(numbers, ["0\n", "1\n"]);
        let ran = place.run(&["run", "x", "--permits", "2", "-n", "--", "true"]);
        assert_eq!(ran.code, 75, "{}", ran.err);
        assert!(
            ran.err.contains("all 2 permits of `x` are held"),
            "{}",
            ran.err
        );
        // A lock of the same name has nothing to do with it.
        place.ok(&["run", "x", "-n", "--", "true"]);
        let mut waiting = place.command(&["run", "x", "--permits", "2", "--", "true"]);
        let waiting = Running::start(&mut waiting);
        until("it waits", || {
            permits(&place, "x")
                .iter()
                .all(|permit| permit["waiters"] == 1)
        });
        let held = permits(&place, "x");
        let of = |field: &str| {
            held.iter()
                .map(|permit| permit[field].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(of("permit"), [0, 1]);
        assert_eq!(of("name"), ["x", "x"]);
        let list = place.ok(&["ls"]);
        assert!(
            list.contains("permit 0 held") && list.contains("permit 1 held"),
            "{list}"
        );
        place.touch("go");
        for running in [one, two, waiting] {
            assert_eq!(running.end().code, 0);
        }
        until("all are free", || permits(&place, "x").is_empty());
    }
}

/// Several permits, another number, and changing it.
#[test]
fn several_permits_and_another_number() {
    let place = Place::local();
    let line = "echo $LEASEHOLD_PERMIT, $LEASEHOLD_TOKENS";
    let out = place.ok(&["run", "x", "--permits", "3", "--take", "2", "-c", line]);
    let (numbers, tokens) = out.trim().split_once(", ").expect("both");
    assert_eq!(numbers.split(' ').count(), 2, "{out}");
    assert_eq!(tokens.split(' ').count(), 2, "{out}");
    let refused = place.run(&["run", "x", "--permits", "4", "--", "true"]);
    assert_eq!(refused.code, 64, "{}", refused.err);
    assert!(refused.err.contains("leasehold resize"), "{}", refused.err);
    let resized = place.run(&["resize", "x", "4"]);
    assert_eq!(
        (resized.code, &*resized.err),
        (0, "leasehold: `x` has 4 permits now\n")
    );
    place.ok(&["run", "x", "--permits", "4", "--take", "4", "--", "true"]);
    for args in [
        &["run", "x", "--permits", "0", "--", "true"][..],
        &["run", "x", "--permits", "1025", "--", "true"],
        &["run", "x", "--permits", "4", "--take", "5", "--", "true"],
        &["run", "x", "--permits", "4", "--shared", "--", "true"],
        &["run", "x", "--permits", "4", "--also", "y", "--", "true"],
        &["run", "x", "--take", "2", "--", "true"],
        &["resize", "x", "0"],
    ] {
        assert_eq!(place.run(args).code, 64, "{args:?}");
    }
}

/// A permit that is broken goes to the next in line.
#[test]
fn a_permit_can_be_broken() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let holder = place.holding("x", &["--permits", "1"], "exec sleep 60");
    let mut next = place.command(&["run", "x", "--permits", "1", "--", "true"]);
    let next = Running::start(&mut next);
    until("it waits", || {
        permits(&place, "x")
            .iter()
            .all(|permit| permit["waiters"] == 1)
    });
    let owner = permits(&place, "x")[0]["owner"]
        .as_str()
        .expect("an owner")
        .to_owned();
    let wrong = place.run(&["break", "x", "--permit", "0", "--owner", "0123", "--yes"]);
    assert_eq!(wrong.code, 1, "{}", wrong.err);
    let says = "permit 0 of `x` is not held by owner 0123";
    assert!(wrong.err.contains(says), "{}", wrong.err);
    let broken = place.run(&["break", "x", "--permit", "0", "--owner", &owner, "--yes"]);
    assert_eq!(broken.code, 0, "{}", broken.err);
    let says = "broke permit 0 of `x`";
    assert!(broken.err.contains(says), "{}", broken.err);
    assert_eq!(next.end().code, 0);
    let free = place.run(&["break", "x", "--permit", "0", "--owner", &owner, "--yes"]);
    assert_eq!(free.code, 1, "{}", free.err);
    assert_eq!(holder.end().code, 79);
}

/// A process that collects several permits is shown as such, and the name is that of the semaphore.
#[test]
fn a_collector_is_shown_with_its_semaphore() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let _one = place.holding("x", &["--permits", "2"], "exec sleep 600");
        let collects = ["run", "x", "--permits", "2", "--take", "2"];
        let err = std::fs::File::create(place.file("err")).expect("created");
        let mut collector = place.command(&[&collects[..], &["--", "true"]].concat());
        let collector = Running::start(collector.stderr(err));
        for args in [&["ls"][..], &["show", "x", "--permits"]] {
            until("it collects", || {
                let list = place.ok(args);
                assert!(!list.contains("leasehold:"), "{list}");
                let line = list
                    .lines()
                    .find(|line| line.contains("collecting permits"));
                line.is_some_and(|line| line.starts_with(" x ") || line.starts_with("x "))
            });
        }
        let json = permits(&place, "x");
        let of_collector = |permit: &&serde_json::Value| permit["collector"] == true;
        let shown = json.iter().find(of_collector).expect("the collector");
        assert_eq!(shown["holder"]["pid"], collector.pid());
        assert_eq!(place.ok(&["ls", "-o", "name"]), "x\n");
        let refused = place.run(&[&collects[..], &["-n", "--", "true"]].concat());
        assert_eq!(refused.code, 75, "{}", refused.err);
        let says = "is collecting several permits of `x`";
        assert!(refused.err.contains(says), "{}", refused.err);
        until("the wait is reported", || {
            place.read("err").contains("waiting for `x`")
        });
        let err = place.read("err");
        assert!(
            err.contains("more permits are needed") && !err.contains("ahead"),
            "{err}"
        );
        // The next one waits for the collector, not for permits.
        let err = std::fs::File::create(place.file("err")).expect("created");
        let args = [&collects[..], &["--", "true"]].concat();
        let _next = Running::start(place.command(&args).stderr(err));
        until("the wait is reported", || {
            place.read("err").contains("is collecting several permits")
        });
    }
    let place = Place::local();
    let prefix = ["--permits", "2", "--prefix", "p:"];
    let _one = place.holding("x", &prefix, "exec sleep 600");
    let collects = [&["run", "x", "--take", "2"], &prefix[..]].concat();
    let _collector = place.spawn(&[&collects[..], &["--", "true"]].concat());
    until("it collects", || {
        let refused = place.run(&[&collects[..], &["-n", "--", "true"]].concat());
        assert_eq!(refused.code, 75, "{}", refused.err);
        refused.err.contains("is collecting several permits of `x`")
    });
}

/// A run inside a run that has the only permit would wait forever. With more permits it need not.
#[test]
fn a_nested_run_needs_another_permit() {
    let place = Place::local();
    let inner = |permits: &str| format!("{TOOL} run x --permits {permits} -- true");
    let refused = place.run(&["run", "x", "--permits", "1", "-c", &inner("1")]);
    assert_eq!(refused.code, 64, "{}", refused.err);
    place.ok(&[
        "run",
        "y",
        "--permits",
        "2",
        "-c",
        &inner("2").replace("run x", "run y"),
    ]);
    // At any depth, and with several permits.
    let two = format!("{TOOL} run x --permits 2 --");
    for args in [
        &["--permits", "2", "-c", &format!("{two} {two} true")][..],
        &["--permits", "2", "-c", &format!("{two} {two} {two} true")],
        &[
            "--permits",
            "2",
            "-c",
            &format!("{two} {TOOL} run x --permits 2 -n -- true"),
        ],
        &[
            "--permits",
            "2",
            "-c",
            &format!("{TOOL} run x --permits 2 --take 2 -- true"),
        ],
    ] {
        let place = Place::local();
        let ran = place.run(&[&["run", "x"], args].concat());
        assert_eq!(ran.code, 64, "{args:?}: {}", ran.err);
        assert!(ran.err.contains("permits of `x`"), "{args:?}: {}", ran.err);
        assert!(ran.err.contains("next: take all permits"), "{}", ran.err);
        assert!(!ran.err.contains("--inherit"), "{}", ran.err);
    }
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let inner = format!("{TOOL} run x --permits 3 --take 2 -- true");
        let outer = ["run", "x", "--permits", "3", "--take", "2", "-c", &inner];
        let ran = place.run(&outer);
        assert_eq!(ran.code, 64, "{}", ran.err);
        assert!(ran.err.contains("hold 2 of the 3 permits"), "{}", ran.err);
        let enough = ["run", "x", "--permits", "3", "-c", &inner];
        place.ok(&enough);
    }
    // The inner command does not see the permit of the outer one.
    let line = format!("{TOOL} run z -c 'echo $LEASEHOLD_PERMIT.'");
    assert_eq!(
        place.ok(&["run", "y", "--permits", "2", "-c", &line]),
        ".\n"
    );
    let inner = format!("{TOOL} run z --inherit -c 'echo $LEASEHOLD_PERMIT.'");
    let line = format!(
        "{TOOL} run y --permits 2 -c \"{}\"",
        inner.replace('$', "\\$")
    );
    assert_eq!(place.ok(&["run", "z", "-c", &line]), ".\n");
}

/// A node that was away keeps the old number. `resize` names it, and the errors that follow say how to
/// repair that.
#[test]
fn nodes_with_different_numbers_of_permits() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    let run = |wait: &str| place.run(&["run", "x", "--permits", "4", "-w", wait, "--", "true"]);
    let resized_everywhere = |permits: &str| {
        until("all nodes have the number", || {
            let resized = place.run(&["resize", "x", permits]);
            assert_eq!(resized.code, 0, "{}", resized.err);
            resized.err == format!("leasehold: `x` has {permits} permits now\n")
        });
    };
    resized_everywhere("3");
    servers[2].stop();
    let resized = place.run(&["resize", "x", "4"]);
    assert_eq!(resized.code, 0, "{}", resized.err);
    let silent = format!("warning: 127.0.0.1:{} did not answer", servers[2].port());
    for part in [&*silent, "run `leasehold resize x 4` again"] {
        assert!(resized.err.contains(part), "{}", resized.err);
    }
    servers[2].resume();
    servers[1].stop();
    until("both numbers are reported", || {
        let ran = run("2s");
        assert_eq!(ran.code, 69, "{}", ran.err);
        let parts = ["different numbers of permits", "`leasehold resize x N`"];
        parts.iter().all(|part| ran.err.contains(part))
    });
    servers[1].resume();
    resized_everywhere("4");
    servers[1].stop();
    let ran = run("60s");
    servers[1].resume();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// A record that is not a number of permits is repaired by `resize`, and the error says so.
#[test]
fn a_damaged_number_of_permits() {
    let server = RedisServer::start();
    let place = Place::redis(std::slice::from_ref(&server));
    let reply = server.command(&[b"SET", b"leasehold:permits:{x}", b"garbage"]);
    assert_eq!(reply, "+OK\r\n");
    let run = ["run", "x", "--permits", "2", "-n", "--", "true"];
    let ran = place.run(&run);
    assert_eq!(ran.code, 64, "{}", ran.err);
    let next = "write it again with `leasehold resize x 2`";
    assert!(ran.err.contains(next), "{}", ran.err);
    assert_eq!(place.run(&["resize", "x", "2"]).code, 0);
    place.ok(&run);
}
