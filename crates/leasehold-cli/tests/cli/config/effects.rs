//! A setting of a file has the effect of its option.

use leasehold_testkit::RedisServer;

use super::{setting, settings, write};
use crate::{Place, Running, events, until};

/// Each case is a file, a command, its exit code, and a part of its output.
#[test]
fn settings_of_a_file_take_effect() {
    let place = Place::local();
    let holder = place.holding("held", &["--ttl", "30m"], "exec sleep 60");
    write(
        &place.file(".config/leasehold/nodes"),
        "redis://127.0.0.1:1\n",
    );
    let run = ["run", "x", "--", "true"];
    let held = ["run", "held", "--", "true"];
    for (file, args, code, says) in [
        (
            "nodes = [\"redis://127.0.0.1:1\"]",
            &["show", "x"][..],
            69,
            "127.0.0.1:1",
        ),
        // A path is relative to the file.
        ("nodes_file = \"nodes\"", &["show", "x"], 69, "127.0.0.1:1"),
        ("restart_guard = \"5s\"", &run, 64, "restart guard of 5s"),
        ("tls.ca = \"no.pem\"", &run, 64, ".config/leasehold/no.pem"),
        (
            "tls.cert = \"no.pem\"",
            &run,
            64,
            "--tls-cert needs --tls-key",
        ),
        (
            "[tls]\nkey = \"no.pem\"",
            &run,
            64,
            "--tls-key needs --tls-cert",
        ),
        ("ttl = \"1ms\"", &run, 64, "--ttl 1ms"),
        ("ttl = 0.001", &run, 64, "--ttl 1ms"),
        (
            "acquire_ttl = \"7s\"",
            &["acquire", "x1"],
            0,
            "LEASEHOLD_LEASE_TTL='7000ms'",
        ),
        ("wait = \"50ms\"", &held, 75, "waited for"),
        ("no_wait = true", &held, 75, "`held` is held"),
        (
            "no_wait = true\nconflict_exit_code = 9",
            &held,
            9,
            "`held` is held",
        ),
        // `eval` must not succeed without the lock.
        (
            "conflict_exit_code = 0",
            &["acquire", "held", "-n"],
            75,
            "(exit 75)",
        ),
        (
            "at_most_for = \"100ms\"",
            &["run", "x", "--", "sleep", "60"],
            124,
            "--at-most-for",
        ),
        (
            "at_least_for = \"1h\"\nverbose = true",
            &["run", "kept", "--", "true"],
            0,
            "kept for",
        ),
        ("grace = \"6s\"", &run, 64, "--grace 6s is more than half"),
        ("label = \"a\\nb\"", &run, 64, "label"),
        ("verbose = true", &run, 0, "acquired"),
        (
            "accept = [\"store-access\"]\nstrict = true",
            &["doctor", "-v"],
            0,
            "",
        ),
    ] {
        place.configure(file);
        let ran = place.run_configured(args);
        assert_eq!(ran.code, code, "{file}: {args:?}: {}{}", ran.out, ran.err);
        let all = ran.out + &ran.err;
        assert!(all.contains(says), "{file}: {args:?}: {all}");
    }
    place.configure("quiet = true");
    assert_eq!(
        place
            .run_configured(&["run", "held", "-n", "--", "true"])
            .err,
        ""
    );
    place.configure("json = true");
    assert!(!events(&place.run_configured(&run).err).is_empty());
    drop(holder);
}

#[test]
fn label_and_prefix_of_a_profile() {
    let servers = RedisServer::start_many(1);
    let place = Place::local();
    let url = servers[0].url();
    place.configure(&format!(
        "label = \"top\"\n[profile.p]\nnodes = [\"{url}\"]\nprefix = \"app:\"\nlabel = \"nightly\"\n"
    ));
    let ran = place.run_configured(&["acquire", "a", "--profile", "p"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(servers[0].get(b"app:a").is_some());
    let ran = place.run_configured(&["show", "a", "--profile", "p"]);
    assert!(ran.out.contains("nightly"), "{}", ran.out);
    // The top level uses the embedded store.
    let ran = place.run_configured(&["show", "a"]);
    assert!(ran.out.contains("free"), "{}", ran.out);
}

/// `on_lost = "warn"` lets the command continue after its lock was broken.
#[test]
fn on_lost_in_a_file() {
    let place = Place::local();
    place.configure("on_lost = \"warn\"\nttl = \"10s\"\n");
    let line = format!("touch started; {}; exit 3", crate::UNTIL_GO);
    let mut command = place.configured(&["run", "a", "-c", &line]);
    let running = Running::start(&mut command);
    until("the command runs", || place.file("started").exists());
    place.ok(&["break", "a", "--owner", &place.owner_id("a"), "--yes"]);
    place.touch("go");
    let ran = running.end();
    assert_eq!(ran.code, 3, "{}", ran.err);
}

/// The variables of a lease are not settings.
#[test]
fn a_lease_does_not_change_settings() {
    let place = Place::local();
    let script = format!(
        "eval \"$({0} acquire a --ttl 7m)\"; {0} config -o json; \
         {0} config -o json -- extend a > extend.json",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let inner = place.command(&[]);
    let mut shell = crate::wrapped("sh", &["-c", &script], &inner);
    let shown = settings(&mut shell);
    for row in shown["settings"].as_array().expect("a list") {
        assert_eq!(row["source"], "default", "{row}");
    }
    // But `extend` uses the TTL of the lease.
    let extend = serde_json::from_str(&place.read("extend.json")).expect("JSON");
    let row = setting(&extend, "acquire_ttl");
    assert_eq!(row["variable"], "LEASEHOLD_LEASE_TTL", "{row}");
    assert_eq!(row["value"], "420000ms");
    // An empty one is not the TTL of a lease.
    let mut command = place.command(&["config", "-o", "json", "--", "extend", "a"]);
    command
        .env("LEASEHOLD_LEASE_TTL", "")
        .env("LEASEHOLD_OWNER", "x")
        .env("LEASEHOLD_ACQUIRE_TTL", "30s");
    let row = setting(&settings(&mut command), "acquire_ttl").clone();
    assert_eq!(row["variable"], "LEASEHOLD_ACQUIRE_TTL", "{row}");
}
