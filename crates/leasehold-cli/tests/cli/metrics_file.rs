//! `run --metrics-file`: a file for the textfile collector of node_exporter.

use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_testkit::RedisServer;
use nix::fcntl::{Flock, FlockArg};

use crate::{Place, Ran, UNTIL_GO, events, eventually, kinds, until};

const FILE: &str = "a.prom";

/// The value of a series of the lock `a`, if the file has it.
fn value(text: &str, metric: &str) -> Option<f64> {
    let key = match metric.split_once(' ') {
        None => format!("leasehold_{metric}{{name=\"a\"}} "),
        Some((metric, outcome)) => {
            format!("leasehold_{metric}{{name=\"a\",outcome=\"{outcome}\"}} ")
        }
    };
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(&key))?;
    Some(value.parse().expect("a number"))
}

/// Checks that each line is one of the text format: `# HELP` and `# TYPE` once for each metric, and
/// then its series, each once.
fn check_format(text: &str) {
    assert!(text.ends_with('\n'), "{text}");
    let (mut metrics, mut series) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').expect("a word");
            let (metric, rest) = rest.split_once(' ').expect("a text");
            match word {
                "HELP" => metrics.push(metric),
                _ => {
                    assert_eq!((word, Some(&metric)), ("TYPE", metrics.last()), "{line}");
                    let kind = match metric.ends_with("_total") {
                        true => "counter",
                        false => "gauge",
                    };
                    assert_eq!(rest, kind, "{line}");
                }
            }
            continue;
        }
        let (key, value) = line.rsplit_once(' ').expect("a value");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        let (metric, labels) = key.split_once('{').expect("labels");
        assert_eq!(Some(&metric), metrics.last(), "{line}");
        assert!(
            labels.starts_with("name=\"") && labels.ends_with("\"}"),
            "{line}"
        );
        series.push(key);
    }
    for names in [&mut metrics, &mut series] {
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{text}");
    }
}

impl Place {
    /// Runs a command under the lock `a`, and returns the file, too.
    fn measured(&self, args: &[&str]) -> (Ran, String) {
        let ran = self.run(&[&["run", "a", "--metrics-file", FILE], args].concat());
        let text = self.read(FILE);
        check_format(&text);
        (ran, text)
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_secs_f64()
}

#[test]
fn a_run_that_succeeds_and_one_that_fails() {
    let place = Place::local();
    let before = now() - 0.001;
    let (ran, text) = place.measured(&["-c", "echo $LEASEHOLD_TOKEN"]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let get = |metric| value(&text, metric);
    assert_eq!(get("run_token"), ran.out.trim().parse().ok());
    assert_eq!(get("run_exit_code"), Some(0.0));
    assert_eq!(get("run_holding"), Some(0.0));
    assert_eq!(get("runs_total success"), Some(1.0));
    assert_eq!(get("runs_total failed"), Some(0.0));
    // There was none, unless this machine is slow.
    assert!(get("run_renewals_total ok").is_some());
    let success = get("run_last_end_time_seconds success").expect("a time");
    let start = get("run_last_start_time_seconds").expect("a time");
    assert!(
        before <= start && start <= success && success <= now(),
        "{text}"
    );
    assert!(get("run_hold_seconds") >= Some(0.0), "{text}");
    assert!(get("run_acquire_wait_seconds") >= Some(0.0), "{text}");
    assert!(get("run_deadline_time_seconds") > Some(start), "{text}");

    // The last success survives a run that fails, and one that does not begin.
    let (ran, _) = place.measured(&["-c", "exit 3"]);
    assert_eq!(ran.code, 3);
    let (ran, text) = place.measured(&["--", "no-such-command"]);
    assert_eq!(ran.code, 127);
    let get = |metric| value(&text, metric);
    assert_eq!(get("run_last_end_time_seconds success"), Some(success));
    assert!(
        get("run_last_end_time_seconds failed") >= Some(success),
        "{text}"
    );
    assert_eq!(get("runs_total success"), Some(1.0));
    assert_eq!(get("runs_total failed"), Some(1.0));
    assert_eq!(get("runs_total error"), Some(1.0));
    assert_eq!(get("run_exit_code"), Some(127.0));
    assert_eq!(get("run_holding"), Some(0.0));
    let (ran, text) = place.measured(&["--at-most-for", "50ms", "--", "sleep", "60"]);
    assert_eq!(ran.code, 124, "{}", ran.err);
    assert_eq!(value(&text, "runs_total time_limit"), Some(1.0));
}

/// While the command runs, the file says so. A run that is skipped meanwhile counts itself, and leaves
/// alone what the file says about the holder.
#[test]
fn a_run_that_is_skipped_leaves_the_holder_alone() {
    let place = Place::local();
    let holder = place.holding("a", &["--metrics-file", FILE, "--ttl", "15s"], UNTIL_GO);
    let first = eventually("the file says that the lock is held", || {
        let text = place.read(FILE);
        (value(&text, "run_holding") == Some(1.0)).then_some(text)
    });
    check_format(&first);
    assert_eq!(value(&first, "run_exit_code"), None);
    for args in [&["-n"][..], &["-w", "50ms", "-E", "0"]] {
        let (ran, text) = place.measured(&[args, &["--", "true"]].concat());
        assert_eq!(ran.code == 0, args.len() == 4, "{}", ran.err);
        assert_eq!(value(&text, "run_holding"), Some(1.0));
        assert_eq!(value(&text, "run_token"), value(&first, "run_token"));
        assert_eq!(value(&text, "run_exit_code"), None);
    }
    // The holder renews its lease, and keeps what the others have written.
    let text = eventually("a renewal", || {
        let text = place.read(FILE);
        (value(&text, "run_renewals_total ok") > value(&first, "run_renewals_total ok"))
            .then_some(text)
    });
    assert_eq!(value(&text, "runs_total held"), Some(2.0));
    assert!(value(&text, "run_last_end_time_seconds held") > Some(0.0));
    let slack = value(&text, "run_lease_slack_seconds").expect("slack");
    assert!(slack <= 15.0, "{text}");
    let deadline = "run_deadline_time_seconds";
    assert!(value(&text, deadline) > value(&first, deadline), "{text}");
    place.touch("go");
    assert_eq!(holder.end().code, 0);
    let text = place.read(FILE);
    assert_eq!(value(&text, "runs_total held"), Some(2.0));
    assert_eq!(value(&text, "runs_total success"), Some(1.0));
    assert_eq!(value(&text, "run_exit_code"), Some(0.0));
}

/// The file says that the lease is lost while the command still runs.
#[test]
fn a_lost_lease() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let args = ["--metrics-file", FILE, "--on-lost", "warn", "--ttl", "9s"];
        let running = place.holding("a", &args, UNTIL_GO);
        until("it holds", || {
            value(&place.read(FILE), "run_holding") == Some(1.0)
        });
        place.ok(&["break", "a", "--owner", &place.owner_id("a"), "--yes"]);
        until("it is lost", || {
            value(&place.read(FILE), "run_holding") == Some(0.0)
        });
        place.touch("go");
        let ran = running.end();
        assert_eq!(ran.code, 0, "{}", ran.err);
        let text = place.read(FILE);
        check_format(&text);
        assert_eq!(value(&text, "runs_total lost"), Some(1.0), "{text}");
        assert_eq!(value(&text, "runs_total success"), Some(0.0), "{text}");
    }
}

#[test]
fn no_majority() {
    let mut place = Place::local();
    place.nodes = Some("redis://127.0.0.1:1".into());
    let (ran, text) = place.measured(&["-n", "--", "true"]);
    assert_eq!(ran.code, 69, "{}", ran.err);
    assert_eq!(value(&text, "runs_total no_majority"), Some(1.0));
    assert_eq!(value(&text, "run_exit_code"), None);
}

/// A path that cannot be written is an error before the lock is acquired.
#[test]
fn a_path_that_cannot_be_written() {
    let place = Place::local();
    std::fs::create_dir(place.file("dir.prom")).expect("created");
    std::fs::write(place.file("notes"), "mine").expect("written");
    std::os::unix::fs::symlink("notes", place.file("link.prom")).expect("linked");
    place.pipe("pipe.prom");
    let regular = "next: name a regular file, or one";
    let too_long = format!("{}.prom", "x".repeat(251));
    for (path, says, next) in [
        (
            "none/a.prom",
            "No such file or directory",
            "next: name a file in a directory",
        ),
        ("dir.prom", "it is a directory", regular),
        ("link.prom", "it is a symbolic link", regular),
        ("pipe.prom", "it is a pipe", regular),
        (&too_long, "name too long", "next: use a shorter name"),
        ("notes", "must end in `.prom`", ""),
        ("..", "must end in `.prom`", ""),
    ] {
        let ran = place.run(&["run", "a", "--metrics-file", path, "--", "touch", "ran"]);
        assert_eq!(ran.code, 64, "{path}: {}", ran.err);
        assert!(ran.err.contains("--metrics-file"), "{path}: {}", ran.err);
        assert!(ran.err.contains(says), "{path}: {}", ran.err);
        assert!(ran.err.contains(next), "{path}: {}", ran.err);
    }
    assert_eq!(place.read("notes"), "mine");
    assert!(!place.file("ran").exists() && !place.file("state").exists());
    let left = std::fs::read_dir(place.dir.path()).expect("a directory");
    assert_eq!(left.count(), 4, "temporary files are left");
}

/// The name of the temporary file is longer.
#[test]
fn the_longest_names() {
    let place = Place::local();
    for name in [
        format!("{}.prom", "x".repeat(250)),
        format!("y{}.prom", "é".repeat(124)),
    ] {
        let ran = place.run(&["run", "a", "--metrics-file", &name, "--", "true"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(value(&place.read(&name), "runs_total success"), Some(1.0));
    }
}

/// The request that tells the embedded store the process of the command is no renewal.
#[test]
fn only_renewals_count() {
    let place = Place::local();
    // A renewal is due after 20 s.
    let args = ["--metrics-file", FILE, "--ttl", "60s"];
    let running = place.holding("a", &args, UNTIL_GO);
    place.await_bound("a");
    place.touch("go");
    assert_eq!(running.end().code, 0);
    let text = place.read(FILE);
    assert_eq!(value(&text, "run_renewals_total ok"), Some(0.0), "{text}");
    assert_eq!(value(&text, "run_lease_slack_seconds"), None, "{text}");
}

/// The deadline is that of the client, which allows for drift, also after renewals. Of several leases, it
/// is that of the first to end.
#[test]
fn the_deadline() {
    let place = Place::local();
    let args = ["--metrics-file", FILE, "--ttl", "6s", "--also", "b"];
    let running = place.holding("a", &args, UNTIL_GO);
    let deadline = |text: &str| value(text, "run_deadline_time_seconds");
    let first = eventually("the lock is held", || deadline(&place.read(FILE)));
    assert!(first < now() + 6.0, "{first}");
    // Both leases must be renewed before their first end moves so far.
    let text = eventually("renewals have moved the deadline", || {
        let text = place.read(FILE);
        let renewals = value(&text, "run_renewals_total ok");
        (deadline(&text) > Some(first + 1.0) && renewals >= Some(2.0)).then_some(text)
    });
    assert!(deadline(&text) < Some(now() + 6.0), "{text}");
    place.touch("go");
    assert_eq!(running.end().code, 0);
}

/// A write that fails later is one warning. The command goes on.
#[test]
fn a_directory_that_is_deleted() {
    let place = Place::local();
    std::fs::create_dir(place.file("metrics")).expect("created");
    let file = ["--metrics-file", "metrics/a.prom"];
    let args = [&file[..], &["--json", "--ttl", "3s", "--on-lost", "warn"]].concat();
    let command = "mv metrics gone; @@ while [ ! -e go ]; do sleep 0.01; done; exit 5";
    let running = place.holding("a", &args, command);
    // At least one renewal.
    std::thread::sleep(std::time::Duration::from_secs(4));
    place.touch("go");
    let ran = running.end();
    assert_eq!(ran.code, 5, "{}", ran.err);
    let all = events(&ran.err);
    let warnings = all.iter().filter(|event| event["event"] == "warning");
    let warnings: Vec<_> = warnings.collect();
    assert_eq!(warnings.len(), 1, "{:?}", kinds(&all));
    let message = warnings[0]["message"].as_str().expect("a message");
    assert!(message.contains("metrics/a.prom: "), "{message}");
}

/// Another process that has stopped while it writes the file keeps no run from starting.
#[test]
fn a_file_that_is_locked() {
    let place = Place::local();
    let locked = std::fs::File::create(place.file(".a.prom.tmp")).expect("created");
    let locked = Flock::lock(locked, FlockArg::LockExclusive).expect("locked");
    let args = ["run", "a", "--json", "--metrics-file", FILE, "-c", "exit 5"];
    let ran = place.run(&args);
    assert_eq!(ran.code, 5, "{}", ran.err);
    let all = events(&ran.err);
    assert_eq!(kinds(&all)[0], "warning");
    let warnings = all.iter().filter(|event| event["event"] == "warning");
    assert_eq!(warnings.count(), 1, "{:?}", kinds(&all));
    let message = all[0]["message"].as_str().expect("a message");
    assert!(
        message.ends_with("another process has had it locked for 10s"),
        "{message}"
    );
    drop(locked);
    let (ran, text) = place.measured(&["--", "true"]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert_eq!(value(&text, "runs_total success"), Some(1.0));
}

/// No reader sees a part of the file, and every user may read it.
#[test]
fn the_file_is_replaced_in_one_step() {
    let place = Place::local();
    let tool = place.command(&["run", "a", "--metrics-file", FILE, "-n", "-q", "--", "true"]);
    let line = "umask 077; for i in 1 2 3 4 5; do \"$@\"; done; touch done";
    let loops = (0..3).map(|_| crate::wrapped("sh", &["-c", line, "sh"], &tool));
    let loops: Vec<_> = loops
        .map(|mut shell| crate::Running::start(&mut shell))
        .collect();
    until("all have ended", || {
        if place.file(FILE).exists() {
            check_format(&place.read(FILE));
            let mode = std::fs::metadata(place.file(FILE)).expect("a file");
            assert_eq!(mode.permissions().mode() & 0o7777, 0o644);
        }
        place.file("done").exists()
    });
    for shell in loops {
        shell.end();
    }
    // No run was forgotten, although they wrote at the same time.
    let text = place.read(FILE);
    let count = |outcome| value(&text, outcome).expect("a counter");
    let runs = count("runs_total success") + count("runs_total held");
    assert_eq!(runs, 15.0, "{text}");
    assert!(!place.file(".a.prom.tmp").exists());
}

/// A name that needs escaping. A name that is not UTF-8 is shown as everywhere.
#[test]
fn the_name_is_escaped() {
    let place = Place::local();
    for (name, shown) in [
        (&b"a\\\"b\nc d"[..], "a\\\\\\\"b\\nc d"),
        (b"\xff", "\u{fffd}"),
    ] {
        for runs in 1..3 {
            let mut tool = place.command(&["run", "--metrics-file", "b.prom"]);
            tool.arg(std::os::unix::ffi::OsStrExt::from_bytes(name) as &std::ffi::OsStr);
            tool.args(["--", "true"]);
            let ran = crate::Running::start(&mut tool).end();
            assert_eq!(ran.code, 0, "{}", ran.err);
            let text = place.read("b.prom");
            check_format(&text);
            let line =
                format!("leasehold_runs_total{{name=\"{shown}\",outcome=\"success\"}} {runs}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
