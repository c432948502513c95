//! `doctor` and `nodes`, on real servers that have exactly the fault that a check looks for.

mod cases;
mod patient;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use leasehold::doctor::Check;
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::blocking::{eventually, until};
use serde_json::Value;

use crate::{Place, Ran};

/// What depends on how busy the machine is.
const MACHINE: [&str; 5] = ["clock", "latency", "slow-commands", "load", "fsync"];

/// The status of a check that is worst, and what was seen.
fn worst<'r>(report: &'r Value, id: &str) -> Option<&'r Value> {
    let rank = |finding: &&Value| match finding["status"].as_str() {
        Some("fail") => 3,
        Some("warn") => 2,
        Some("unknown") => 1,
        _ => 0,
    };
    let findings = report["findings"].as_array().expect("findings");
    findings
        .iter()
        .filter(|finding| finding["id"] == id)
        .max_by_key(rank)
}

fn parse(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("no JSON: {} {}", ran.out, ran.err))
}

/// Runs the tool. A server that a busy machine keeps from answering in time is another fault than the one
/// that a test is about: then it runs again.
fn examine(place: &Place, args: &[&str]) -> Ran {
    eventually(&format!("all servers answer: {args:?}"), || {
        let ran = place.run(args);
        let late = ["no answer within", "did not shake hands", "timed out"];
        let is_late = |text: &str| late.iter().any(|late| text.contains(late));
        (!is_late(&ran.out) && !is_late(&ran.err)).then_some(ran)
    })
}

/// Every check has a case in which a real server, or store, has its fault.
#[test]
fn every_check_has_a_case() {
    for check in Check::ALL {
        let has_case = cases::ALL.iter().any(|case| case.id == check.id());
        assert!(has_case, "no case for `{check}`");
    }
    for case in cases::ALL {
        assert!(
            Check::from_id(case.id).is_some(),
            "`{}` is no check",
            case.id
        );
    }
}

/// docs/doctor.md has a section for each check, and no other.
#[test]
fn every_check_is_documented() {
    let page = include_str!("../../../../../docs/doctor.md");
    for check in Check::ALL {
        let heading = format!("\n### {check}\n");
        assert!(page.contains(&heading), "no section `{check}`");
    }
    let sections = page.lines().filter_map(|line| line.strip_prefix("### "));
    for section in sections {
        assert!(Check::from_id(section).is_some(), "`{section}` is no check");
    }
}

/// The list of permissions in docs/deployment.md is enough: nothing is refused, and what it does not
/// contain is unknown.
#[test]
fn the_documented_permissions_are_enough() {
    let page = include_str!("../../../../../docs/deployment.md");
    let acl = page
        .lines()
        .find(|line| line.starts_with("ACL SETUSER locks "));
    let acl = acl.expect("the permissions").replace("PASSWORD", "pw");
    let server = RedisServer::start();
    server.run(&acl);
    let mut place = Place::local();
    place.nodes = Some(server.url().replace("redis://", "redis://locks:pw@"));
    let args = ["doctor", "-o", "json", "--prefix", "orders/"];
    // Twice: some permissions can be tried only when a client has left its record.
    for _ in 0..2 {
        let report = parse(&examine(&place, &args));
        for id in [
            "reach",
            "auth",
            "permissions",
            "push",
            "scripts",
            "eviction",
        ] {
            let found = worst(&report, id).expect("a finding");
            assert_eq!(found["status"], "ok", "{found}");
        }
        for id in ["idle-timeout", "slow-commands", "leftovers"] {
            let found = worst(&report, id).expect("a finding");
            assert_eq!(found["status"], "unknown", "{found}");
        }
        place.ok(&["run", "--prefix", "orders/", "x", "--", "true"]);
    }
    let outside = parse(&examine(
        &place,
        &["doctor", "-o", "json", "--prefix", "bills/"],
    ));
    let found = worst(&outside, "permissions").expect("a finding");
    assert_eq!(found["status"], "fail", "{found}");
    assert!(
        found["seen"].as_str().expect("text").contains("~bills/*"),
        "{found}"
    );
}

/// A provider that hides INFO and CONFIG causes no alarm, except that locks need INFO.
#[test]
fn what_a_server_hides_is_unknown() {
    let server = RedisServer::start();
    server.run("ACL SETUSER u on >pw ~* &* +@all -info -config -slowlog -scan");
    let mut place = Place::local();
    place.nodes = Some(server.url().replace("redis://", "redis://u:pw@"));
    let report = parse(&examine(&place, &["doctor", "-o", "json"]));
    for finding in report["findings"].as_array().expect("findings") {
        let id = finding["id"].as_str().expect("an id");
        let expected = match id {
            "reach" | "auth" | "tls" | "push" | "scripts" => "ok",
            "same-server" | "related" => "ok",
            "permissions" | "quorum" => "fail",
            id if MACHINE.contains(&id) => continue,
            _ => "unknown",
        };
        assert_eq!(finding["status"], expected, "{finding}");
    }
    // In the table, they do not hide what is wrong.
    let page = examine(&place, &["doctor"]).out;
    assert!(
        page.contains("UNKNOWN  role, cluster, replicas, "),
        "{page}"
    );
    assert!(page.matches("UNKNOWN").count() < 8, "{page}");
    let verbose = examine(&place, &["doctor", "-v"]).out;
    assert!(verbose.contains("does not show `maxmemory`"), "{verbose}");
}

#[test]
fn healthy_servers_pass() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    place.ok(&["run", "x", "--", "true"]);
    let before: Vec<_> = servers.iter().map(|server| server.run("DBSIZE")).collect();
    // The machine may be busy at first.
    let ran = eventually("all is well", || {
        let ran = examine(&place, &["doctor", "-o", "json", "--strict"]);
        let report = parse(&ran);
        let findings = report["findings"].as_array().expect("findings");
        for finding in findings {
            let id = finding["id"].as_str().expect("an id");
            let fine = finding["status"] == "ok" || MACHINE.contains(&id);
            assert!(fine, "{finding}");
        }
        (report["status"] == "ok").then_some(ran)
    });
    assert_eq!(ran.code, 0, "{}", ran.out);
    // It left nothing behind.
    let after: Vec<_> = servers.iter().map(|server| server.run("DBSIZE")).collect();
    assert_eq!(before, after);
}

/// What is fine takes few lines. A problem comes with reason and remedy.
#[test]
fn the_table_shows_problems() {
    let server = RedisServer::start_with(&["--timeout", "300"]);
    let place = Place::redis(std::slice::from_ref(&server));
    let accepted: Vec<_> = MACHINE.iter().flat_map(|id| ["--accept", id]).collect();
    let all = [&["doctor"], &accepted[..], &["--accept", "persistence"]].concat();
    let ran = examine(&place, &all);
    assert_eq!(ran.code, 0, "{}", ran.out);
    let page = &ran.out;
    assert!(
        page.contains("FAIL     persistence (accepted)\n  seen   127.0.0.1:"),
        "{page}"
    );
    let remedy = format!(
        "remedy `redis-cli -h 127.0.0.1 -p {} CONFIG SET timeout 0`;",
        server.port()
    );
    assert!(page.contains("WARN     idle-timeout\n"), "{page}");
    assert!(page.contains(&remedy), "{page}");
    assert!(
        page.contains("\n  why    Waiters are notified over open connections."),
        "{page}"
    );
    assert!(page.contains("OK       reach, auth, permissions"), "{page}");
    assert!(page.contains("1 warning, 0 unknown"), "{page}");
    assert!(!page.contains('\x1b'), "{page}");
    let strict = examine(&place, &[&all[..], &["--strict"]].concat());
    assert_eq!(strict.code, 1, "{}", strict.out);
    let strict = examine(
        &place,
        &[&all[..], &["--strict", "--accept", "idle-timeout"]].concat(),
    );
    assert_eq!(strict.code, 0, "{}", strict.out);
    let failed = examine(&place, &[&["doctor"], &accepted[..]].concat());
    assert_eq!(failed.code, 2, "{}", failed.out);
    let verbose = examine(&place, &["doctor", "--verbose"]);
    assert!(
        verbose.out.contains("OK       version: 127.0.0.1:"),
        "{}",
        verbose.out
    );
}

/// Text of a server cannot control the terminal.
#[test]
fn control_characters_of_a_server_are_escaped() {
    let server = RedisServer::start();
    let mut place = Place::local();
    place.nodes = Some(patient::with_version(&server, 0x1b));
    for args in [&["doctor"][..], &["doctor", "-v"], &["nodes"]] {
        let ran = examine(&place, args);
        assert!(ran.out.contains(r"redis \u{1b}."), "{}", ran.out);
        assert!(!ran.out.contains('\x1b'), "{}", ran.out);
    }
}

#[test]
fn an_unknown_id_is_a_usage_error() {
    let ran = Place::local().run(&["doctor", "--accept", "evictions"]);
    assert_eq!(ran.code, 64, "{}", ran.err);
    for id in ["evictions", "eviction,", "same-server", "quorum"] {
        assert!(ran.err.contains(id), "{}", ran.err);
    }
}

#[test]
fn no_majority_is_69() {
    let server = RedisServer::start();
    let mut place = Place::local();
    let (dead, url) = ("redis://127.0.0.1:1", server.url());
    place.nodes = Some(format!("{url},{dead},redis://127.0.0.1:2"));
    let ran = examine(&place, &["doctor"]);
    assert_eq!(ran.code, 69, "{}", ran.out);
    assert!(
        ran.out.contains("127.0.0.1:1: not connected"),
        "{}",
        ran.out
    );
    let ran = examine(&place, &["doctor", "--measure", "50ms"]);
    assert_eq!(ran.code, 69, "{}", ran.out);
    // Nothing was examined, so nothing can be accepted.
    let accepted = ["--accept", "reach", "--accept", "quorum"];
    for more in [
        &[][..],
        &["-o", "json"],
        &["--measure", "50ms", "-o", "json"],
    ] {
        let ran = examine(&place, &[&["doctor"], &accepted[..], more].concat());
        assert_eq!(ran.code, 69, "{}", ran.out);
        let left_out = "--measure: left out, because no majority can be reached";
        assert_eq!(
            ran.err.contains(left_out),
            more.contains(&"--measure"),
            "{}",
            ran.err
        );
        if more.contains(&"json") {
            let error = parse(&ran)["measure_error"].clone();
            let expected = "left out, because no majority can be reached";
            assert_eq!(error == expected, more.contains(&"--measure"), "{error}");
        }
    }
    let ran = examine(&place, &["nodes"]);
    assert_eq!(ran.code, 69, "{}", ran.out);
    // A single dead node of three is a failure, and not the end.
    let servers = RedisServer::start_many(2);
    place.nodes = Some(format!("{},{},{dead}", servers[0].url(), servers[1].url()));
    let ran = examine(&place, &["doctor"]);
    assert_eq!(ran.code, 2, "{}", ran.out);
}

/// The names that were measured leave nothing behind, no history either.
#[test]
fn a_measurement_removes_its_names() {
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    let keys = |server: &RedisServer| server.run("DBSIZE");
    let before: Vec<_> = servers.iter().map(keys).collect();
    let measure = ["doctor", "-o", "json", "--measure", "200ms", "--history"];
    let report = parse(&examine(&place, &measure));
    let measured = &report["measured"];
    for (pace, callers) in [("alone", 1), ("together", 16)] {
        let pace = &measured[pace];
        assert_eq!(pace["callers"], callers, "{measured}");
        assert!(
            pace["locks_per_second"].as_f64().expect("a number") > 0.0,
            "{measured}"
        );
        let spread = &pace["acquire"];
        let us = |name: &str| spread[name].as_u64().expect("a number");
        assert!(
            0 < us("p50_us") && us("p50_us") <= us("p99_us"),
            "{measured}"
        );
        assert!(us("p99_us") <= us("max_us"), "{measured}");
    }
    assert_eq!(measured["nodes"].as_array().expect("nodes").len(), 3);
    assert!(servers.iter().all(|server| server.calls("evalsha") > 16));
    let after: Vec<_> = servers.iter().map(keys).collect();
    assert_eq!(before, after);
    let table = examine(&place, &["doctor", "--measure", "100ms"]);
    assert!(table.out.contains("LOCKS/S"), "{}", table.out);
    assert!(table.out.contains("ROUND TRIP P50"), "{}", table.out);
    // The same in the embedded store.
    let local = Place::local();
    let ran = examine(&local, &["doctor", "--measure", "100ms", "--history"]);
    assert!(ran.out.contains("LOCKS/S"), "{} {}", ran.out, ran.err);
    let store =
        rusqlite::Connection::open(local.file("state/leasehold/locks.db")).expect("a store");
    let names: i64 = store
        .query_row("SELECT count(*) FROM names", [], |row| row.get(0))
        .expect("a count");
    assert_eq!(names, 0);
    let history = "SELECT count(*) FROM sqlite_schema WHERE name = 'history'";
    let history: i64 = store
        .query_row(history, [], |row| row.get(0))
        .expect("a count");
    assert_eq!(history, 0);
}

/// A check that failed decides on the exit code, with a measurement or without. If it is accepted, the
/// error of the measurement does.
#[test]
fn a_measurement_needs_nodes_that_vote() {
    let servers = RedisServer::start_many(3);
    let waiting = (
        Place::redis(&servers),
        &["--restart-guard", "10m"][..],
        ["WARN     restart", "FAIL     quorum"],
        "--measure: no majority",
    );
    let (_master, replica) = cases::pair();
    let copy = (
        Place::redis(std::slice::from_ref(&replica)),
        &["--accept=role", "--accept=persistence"][..],
        ["FAIL     role (accepted)", "FAIL     quorum"],
        "--measure: node 127.0.0.1:",
    );
    for (place, args, finds, says) in [waiting, copy] {
        let args = [&["doctor"], args].concat();
        let run = |more: &[&str]| examine(&place, &[&args, more].concat());
        for measure in [&[][..], &["--measure", "50ms"]] {
            let ran = run(measure);
            assert_eq!(ran.code, 2, "{} {}", ran.out, ran.err);
            for found in finds {
                assert!(ran.out.contains(found), "{}", ran.out);
            }
            assert_eq!(ran.err.contains(says), !measure.is_empty(), "{}", ran.err);
        }
        let measure = ["--measure", "50ms", "--accept", "quorum", "-o", "json"];
        let ran = run(&measure);
        assert_eq!(ran.code, 69, "{} {}", ran.out, ran.err);
        // `doctor` has no option about waiting.
        assert!(!ran.err.contains("--wait"), "{}", ran.err);
        let report = parse(&ran);
        let error = report["measure_error"].as_str().expect("an error");
        assert!(error.starts_with(&says["--measure: ".len()..]), "{error}");
        assert_eq!(report.get("measured"), None);
    }
}

/// The first report is whole. After that, each object has only what changed, if anything did.
#[test]
fn watch_prints_changes() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    let out = place.file("out");
    let mut command = place.command(&["doctor", "--watch=100ms", "-o", "json"]);
    command.stdout(std::fs::File::create(&out).expect("a file"));
    let watching = crate::Running::start(&mut command);
    let reports = || -> Vec<Value> {
        let text = place.read("out");
        let lines = text.lines().filter(|line| line.ends_with('}'));
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    until("a report without changes", || {
        let no_changes = |report: &Value| report["findings"] == Value::Array(Vec::new());
        reports().iter().skip(1).any(no_changes)
    });
    servers[1].kill();
    let node = format!("127.0.0.1:{}", servers[1].port());
    let reported = |status: &str| {
        reports().iter().skip(1).any(|report| {
            let found = worst(report, "reach");
            found.is_some_and(|f| f["status"] == status && f["node"] == node.as_str())
        })
    };
    until("the server is reported", || reported("fail"));
    servers[1].restart();
    until("it is back", || reported("ok"));
    let reports = reports();
    let length = |report: &Value| report["findings"].as_array().expect("findings").len();
    for report in &reports[1..] {
        assert!(length(report) < length(&reports[0]) / 2);
        assert_eq!(report["nodes"], reports[0]["nodes"]);
    }
    watching.kill();
}

/// A change may be far away, so it is not the next write that notices.
#[test]
fn watch_ends_without_a_reader() {
    let server = RedisServer::start();
    let place = Place::redis(std::slice::from_ref(&server));
    let mut command = place.command(&["doctor", "--watch=100ms"]);
    command.stdout(std::process::Stdio::piped());
    let mut watching = command.spawn().expect("started");
    let mut out = watching.stdout.take().expect("a pipe");
    out.read_exact(&mut [0]).expect("a report");
    drop(out);
    until("it ends", || {
        watching.try_wait().expect("a child").is_some()
    });
}

/// The source of a script is not shown, and the next step is about the command.
#[test]
fn a_server_without_eval_is_named() {
    let server = RedisServer::start_with(&["--rename-command", "EVAL", "EVIL"]);
    let place = Place::redis(std::slice::from_ref(&server));
    let ran = place.run(&["run", "x", "--wait", "300ms", "--", "true"]);
    assert!(ran.err.contains("unknown command 'EVAL'"), "{}", ran.err);
    assert!(ran.err.contains("`rename-command`"), "{}", ran.err);
    for other in ["KEYS", "local ", "firewalls"] {
        assert!(!ran.err.contains(other), "{}", ran.err);
    }
}

/// A store that is only examined is not created, and neither is its directory.
#[test]
fn doctor_creates_no_store() {
    let place = Place::local();
    for command in ["doctor", "nodes"] {
        let ran = place.run(&[command]);
        assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
        assert!(!place.file("state/leasehold").exists(), "{command}");
    }
}

/// A change that is accepted is marked as such.
#[test]
fn watch_marks_accepted_changes() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    let out = place.file("out");
    let mut command = place.command(&["doctor", "--watch=100ms", "--accept", "reach"]);
    command.stdout(std::fs::File::create(&out).expect("a file"));
    let watching = crate::Running::start(&mut command);
    until("the first report", || place.read("out").contains("3 nodes"));
    servers[1].kill();
    until("the change", || {
        place.read("out").contains("reach (accepted)")
    });
    watching.kill();
}

/// A remedy is one command, which a shell carries out as it is printed.
#[test]
fn a_remedy_works_in_a_shell() {
    let patient = cases::as_user("+@all -evalsha resetkeys ~x*");
    let worst_of = || {
        let report = parse(&patient.examine());
        worst(&report, "permissions").expect("a finding").clone()
    };
    let remedy = worst_of()["remedy"].as_str().expect("text").to_owned();
    let page = patient.place.run(&["doctor"]).out;
    let command = remedy.split('`').nth(1).expect("a command");
    assert!(page.contains(&format!("`{command}`")), "{page}");
    let done = Command::new("sh").args(["-c", command]).output();
    let done = done.expect("a shell");
    assert_eq!(done.stdout, b"OK\n", "{command}: {done:?}");
    assert_eq!(worst_of()["status"], "ok");
}

/// redis-cli needs the certificates that this client uses.
#[test]
fn a_remedy_names_the_certificates() {
    let patient = patient::with_certificate("2");
    let authority = &patient.args[1];
    let ran = examine(&patient.place, &["doctor", "--tls-ca", authority]);
    let says = format!("`redis-cli --tls --cacert {authority} -h 127.0.0.1 -p ");
    assert!(ran.out.contains(&says), "{}", ran.out);
}

/// A member of a cluster serves a client if all keys of the client are in one slot, and `nodes` says so.
#[test]
fn a_cluster_votes_for_a_prefix_with_a_hash_tag() {
    let patient = cases::cluster();
    for (prefix, votes) in [("", false), ("a/", false), ("{}a", false), ("{a}/", true)] {
        let with = |args: &[&'static str]| [args, &["--prefix", prefix]].concat();
        let nodes = examine(&patient.place, &with(&["nodes", "--no-headers"]));
        let (word, code) = if votes {
            ("votes", 0)
        } else {
            ("CROSSSLOT", 69)
        };
        assert!(nodes.out.contains(word), "{prefix}: {}", nodes.out);
        assert_eq!(nodes.code, code, "{prefix}: {}", nodes.out);
        let report = parse(&examine(&patient.place, &with(&["doctor", "-o", "json"])));
        let quorum = worst(&report, "quorum").expect("a finding");
        assert_eq!(quorum["status"] == "ok", votes, "{prefix}: {quorum}");
        let run = [&with(&["run", "x", "-n"])[..], &["--", "true"]].concat();
        assert_eq!(patient.place.run(&run).code, code, "{prefix}");
    }
}

#[test]
fn nodes_at_a_glance() {
    let servers = RedisServer::start_many(3);
    let mut place = Place::redis(&servers[..2]);
    let all = format!("{},redis://127.0.0.1:1", place.nodes.take().expect("nodes"));
    place.nodes = Some(all);
    // Two of three have no record yet.
    let ran = examine(&place, &["nodes", "-o", "json"]);
    assert_eq!(ran.code, 69, "{}", ran.out);
    let nodes = parse(&ran);
    assert_eq!(nodes[0]["state"], "waits");
    assert!(nodes[0]["votes_in_ms"].as_u64().expect("a time") > 0);
    assert_eq!(nodes[0]["epoch_age_ms"], Value::Null);
    assert_eq!(nodes[0]["role"], "master");
    assert!(nodes[0]["latency_us"].as_u64().expect("a time") > 0);
    assert!(nodes[0]["clock_offset_us"].is_i64());
    assert_eq!(nodes[2]["state"], "down");
    assert!(
        nodes[2]["error"]
            .as_str()
            .expect("why")
            .contains("not connected")
    );
    // They vote after the first client that says that they are new.
    place.ok(&["run", "x", "--assume-fresh", "--", "true"]);
    servers[2].run(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port()));
    let replica = servers[2].url();
    let args = [
        "nodes",
        "--node",
        &servers[0].url(),
        "--node",
        &servers[1].url(),
    ];
    let ran = examine(&place, &[&args[..], &["--node", &replica]].concat());
    assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(lines[0].starts_with(" NODE"), "{}", ran.out);
    for words in [["votes", "master", "now"], ["no-vote", "replica", "never"]] {
        let line = lines[if words[0] == "votes" { 1 } else { 3 }];
        assert!(words.iter().all(|word| line.contains(word)), "{}", ran.out);
    }
    let ran = examine(&place, &["nodes", "--no-headers"]);
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    let store = Place::local().ok(&["nodes"]);
    assert!(
        store.contains("store") && store.contains("sqlite "),
        "{store}"
    );
}

/// `doctor` fails and no node votes exactly where no lock can be acquired.
#[test]
fn servers_that_grant_nothing_do_not_vote() {
    type SetUp = fn() -> (Vec<RedisServer>, String, Vec<&'static str>);
    fn one(args: &[&str], command: &str) -> (Vec<RedisServer>, String, Vec<&'static str>) {
        let server = RedisServer::start_with(args);
        if !command.is_empty() {
            server.run(command);
        }
        let url = server.url();
        (vec![server], url, Vec::new())
    }
    fn recorded() -> Vec<RedisServer> {
        let servers = RedisServer::start_many(3);
        Place::redis(&servers).ok(&["init"]);
        servers
    }
    let cases: [(&str, SetUp); 9] = [
        ("split-brain", || one(&["--min-replicas-to-write", "1"], "")),
        ("set", || one(&[], "LPUSH leasehold:epoch x")),
        ("set", || one(&[], "SET leasehold:set garbage")),
        ("scripts", || one(&["--rename-command", "EVAL", "EVIL"], "")),
        ("permissions", || one(&["--rename-command", "SET", ""], "")),
        ("permissions", || {
            let acl = "ACL SETUSER u on >pw ~* &* +@all -set -del -zadd";
            let (servers, url, args) = one(&[], acl);
            (servers, url.replace("redis://", "redis://u:pw@"), args)
        }),
        ("constants", || {
            let servers = recorded();
            let nodes = Place::redis(&servers).nodes.expect("nodes");
            (servers, nodes, vec!["--restart-guard", "30s"])
        }),
        ("set", || {
            let servers = recorded();
            let nodes = servers[..2].iter().map(RedisServer::url);
            let nodes = nodes.collect::<Vec<_>>().join(",");
            (servers, nodes, Vec::new())
        }),
        ("same-server", || {
            let (servers, url, args) = one(&[], "");
            let nodes = format!("{url},{}", url.replace("127.0.0.1", "localhost"));
            (servers, nodes, args)
        }),
    ];
    for (number, (id, set_up)) in cases.into_iter().enumerate() {
        let (_servers, nodes, args) = set_up();
        let mut place = Place::local();
        place.nodes = Some(nodes);
        let with = |line: &[&'static str]| [line, &args].concat();
        let doctor = examine(&place, &with(&["doctor", "-o", "json"]));
        let report = parse(&doctor);
        for id in [id, "quorum"] {
            let found = worst(&report, id).expect("a finding");
            assert_eq!(found["status"], "fail", "case {number}: {found}");
        }
        assert_eq!(doctor.code, 2, "case {number}: {}", doctor.out);
        let nodes = examine(&place, &with(&["nodes", "-o", "json"]));
        assert_eq!(nodes.code, 69, "case {number}: {}", nodes.out);
        for node in parse(&nodes).as_array().expect("nodes") {
            assert_eq!(node["state"], "down", "case {number}: {node}");
        }
        let mut line = with(&["run", "x", "--wait", "500ms"]);
        line.extend(["--", "true"]);
        assert_ne!(place.run(&line).code, 0, "case {number}: a lock");
    }
}

/// Runs `doctor` on a case until it finds the fault.
fn show(case: &cases::Case) {
    let Some(patient) = (case.set_up)() else {
        return;
    };
    // A busy machine shows other faults first, and some faults come and go.
    let what = format!("{} {}: {}", case.id, case.status, case.says);
    let (found, ran) = eventually(&what, || {
        let ran = patient.examine();
        let report = parse(&ran);
        let found = worst(&report, case.id)?;
        let seen = found["seen"].as_str().unwrap_or_default();
        let is_it = found["status"] == case.status && seen.contains(case.says);
        is_it.then(|| (found.clone(), ran))
    });
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    assert!(
        !text("why").is_empty() && text("docs").ends_with(&format!("#{}", case.id)),
        "{found}"
    );
    match case.status {
        "fail" => assert!(ran.code == 2 || ran.code == 69, "{}: {}", case.id, ran.code),
        _ => assert!(ran.code <= 2, "{}: {}", case.id, ran.code),
    }
    // Accepted, it no longer counts.
    let accepted = patient.run(&["--accept", case.id]);
    let report = parse(&accepted);
    if let Some(found) = worst(&report, case.id).filter(|found| found["status"] == case.status) {
        assert_eq!(found["accepted"], true, "{found}");
    }
}

/// Makes a file readable for others.
fn open_to_all(path: &Path) {
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, mode).expect("chmod");
}

/// Whether a command succeeds.
fn works(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

fn skip(what: &str, why: &str) {
    // Not `eprintln!`, whose output the test harness captures.
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
}
