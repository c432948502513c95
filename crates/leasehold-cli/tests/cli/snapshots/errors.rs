//! What the tool prints when something goes wrong.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use expect_test::expect_file;
use leasehold_testkit::RedisServer;

use super::transcript::{Transcript, until_tokens_are_times};
use crate::{Place, Ran, Running, eventually};

const TOOL: &str = env!("CARGO_BIN_EXE_leasehold");
const SLEEP: &str = "exec sleep 60";
/// A TTL that no test outlives: a slow machine must not let a lock expire.
const LONG: [&str; 2] = ["--ttl", "30m"];

#[test]
fn arguments() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    let long = "x".repeat(1025);
    for args in [
        &[][..],
        &["lock", "a"],
        &["run"],
        &["run", "a"],
        &["run", "", "--", "true"],
        &["run", &long, "--", "true"],
        &["run", "leasehold:x", "--", "true"],
        &["run", "a", "--tll", "5s", "--", "true"],
        &["run", "a", "--ttl", "soon", "--", "true"],
        &["run", "a", "--ttl", "10 x", "--", "true"],
        &["run", "a", "--ttl", "1ms", "--", "true"],
        &["run", "a", "--wait", "9000days", "--", "true"],
        &["run", "a", "--at-least-for", "48h", "--", "true"],
        &["run", "a", "--grace", "6s", "--", "true"],
        &["run", "a", "-n", "-w", "1s", "--", "true"],
        &["run", "a", "-E", "256", "--", "true"],
        &["run", "a", "--label", "a\nb", "--", "true"],
        &["run", "a", "-c", "true", "--", "true"],
        &["run", "a", "--events-fd", "77", "--", "true"],
        &["run", "a", "--on-lost", "ignore", "--", "true"],
        &["run", "a", "--metrics-file", "a.txt", "--", "true"],
        &["run", "a", "--metrics-file", "none/a.prom", "--", "true"],
        &["run", "a", "--also", "b", "--also", "a", "--", "true"],
        &["run", "a", "--also", "b", "--inherit", "--", "true"],
        &["acquire", "a", "-n", "-E", "0"],
        &["extend", "a"],
        &["release", "a", "--owner", "x"],
        &["break", "a"],
        &["break", "a", "--owner", "x", "--yes"],
        &["man", "lock"],
        &["completions", "tcsh"],
    ] {
        transcript.run(&place, args);
    }
    expect_file!["errors/arguments.txt"].assert_eq(transcript.text());
}

#[test]
fn naming_nodes() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    std::fs::write(place.file("open"), "redis://127.0.0.1\n").expect("written");
    std::fs::write(place.file("empty"), "# nothing\n").expect("written");
    std::fs::write(place.file("bad.pem"), "-----BEGIN NOTHING-----\n").expect("written");
    for (file, mode) in [("open", 0o644), ("empty", 0o600)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.file(file), mode).expect("chmod");
    }
    let three = "redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3";
    for args in [
        &["show", "a", "--node", "http://127.0.0.1"][..],
        &["show", "a", "--node", "127.0.0.1:6379"],
        &["show", "a", "--node", "redis://127.0.0.1:99999"],
        &["show", "a", "--node", "redis://127.0.0.1/x"],
        &["show", "a", "--node", three],
        &["show", "a", "--node", "local:locks.db"],
        &["show", "a", "--node", "local:/no/such/directory/locks.db"],
        &[
            "show",
            "a",
            "--node",
            "local:",
            "--node",
            "redis://127.0.0.1",
        ],
        &["show", "a", "--nodes-file", "missing"],
        &["show", "a", "--nodes-file", "open"],
        &["show", "a", "--nodes-file", "empty"],
        &["show", "a", "--tls-ca", "missing.pem"],
        &["show", "a", "--tls-ca", "bad.pem"],
        &["show", "a", "--tls-cert", "bad.pem"],
        &["show", "a", "--restart-guard", "soon"],
        &["run", "a", "--restart-guard", "5s", "--", "true"],
    ] {
        transcript.run(&place, args);
    }
    for (variable, value) in [
        ("LEASEHOLD_NODES", " , "),
        ("LEASEHOLD_NODES_FILE", "missing"),
        ("LEASEHOLD_NODES_HIDDEN", "1"),
    ] {
        let mut command = place.command(&["show", "a"]);
        command.env(variable, value);
        transcript.run_command(&place, command);
    }
    let mut command = place.command(&["show", "a"]);
    command.env("LEASEHOLD_NODES", "local:");
    command.env("LEASEHOLD_NODES_FILE", "open");
    transcript.run_command(&place, command);
    let mut command = place.command(&["acquire", "a", "--ttl", "5m"]);
    command.env("LEASEHOLD_NODES", three);
    transcript.run_command(&place, command);
    expect_file!["errors/nodes.txt"].assert_eq(transcript.text());
}

#[test]
fn held() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    let args = [&LONG[..], &["--label", "nightly"]].concat();
    let holder = place.holding("backup", &args, SLEEP);
    until_tokens_are_times();
    transcript.run(&place, &["run", "backup", "-n", "--", "true"]);
    transcript.run(&place, &["run", "backup", "-n", "-q", "--", "true"]);
    transcript.run(&place, &["run", "backup", "-w", "50ms", "--", "true"]);
    let both = ["run", "a", "--also", "backup"];
    transcript.run(&place, &[&both[..], &["-n", "--", "true"]].concat());
    transcript.run(&place, &[&both[..], &["-w", "50ms", "--", "true"]].concat());
    transcript.run(&place, &["run", "backup", "-n", "--json", "--", "true"]);
    transcript.run(&place, &["acquire", "backup", "-n", "-E", "9"]);
    transcript.run(&place, &["break", "backup", "--owner", "x", "--yes"]);
    let owner = place.owner_id("backup");
    transcript.run(&place, &["break", "backup", "--owner", &owner]);
    drop(holder);
    place.ok(&["run", "report", "--at-least-for", "1h", "--", "true"]);
    transcript.run(&place, &["run", "report", "-n", "--", "true"]);
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let mut transcript = transcript.servers(&servers);
    let reply = servers[0].command(&[b"SET", b"foreign", b"0123456789abcdef0123456789abcdef"]);
    assert_eq!(reply, "+OK\r\n");
    transcript.run(&place, &["run", "foreign", "-n", "--", "true"]);
    expect_file!["errors/held.txt"].assert_eq(transcript.text());
}

#[test]
fn the_command() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    std::fs::write(place.file("data"), "x").expect("written");
    transcript.run(&place, &["run", "a", "--", "no-such-command"]);
    transcript.run(&place, &["run", "a", "--", "./data"]);
    let run = [&["run", "a"], &LONG[..], &["--at-most-for", "1s"]].concat();
    place.pipe("fifo");
    let obeys = ["--grace", "10m", "-c", "read x < fifo"];
    transcript.run(&place, &[&run[..], &obeys].concat());
    let ignores = "exec 2>/dev/null; trap '' TERM; while :; do sleep 1; done";
    let ignores = ["--grace", "100ms", "-c", ignores];
    transcript.run(&place, &[&run[..], &ignores].concat());
    transcript.mask(TOOL, "leasehold");
    let nested = format!("{TOOL} run a -- true");
    transcript.run(
        &place,
        &[&["run", "a"], &LONG[..], &["-c", &nested]].concat(),
    );
    let nested = format!("{TOOL} acquire a -n");
    transcript.run(
        &place,
        &[&["run", "a"], &LONG[..], &["-c", &nested]].concat(),
    );
    expect_file!["errors/command.txt"].assert_eq(transcript.text());
}

#[test]
fn servers() {
    let mut servers = RedisServer::start_many(6);
    // Sets of nodes are printed in the order of their addresses.
    servers.sort_by_key(RedisServer::url);
    servers.push(RedisServer::start_with(&["--requirepass", "secret"]));
    let mut transcript = Transcript::new().servers(&servers);
    let place = |server: usize| Place::redis(&servers[server..=server]);
    let run = ["run", "a", "-n", "--", "true"];

    // A user who may not run a command. Servers word this differently.
    for words in ["this user has no", "User u has no"] {
        transcript.mask(words, "USER has no");
    }
    transcript.mask(" or its subcommand", "");
    let acl: [&[u8]; 8] = [
        b"ACL", b"SETUSER", b"u", b"on", b">pw", b"~*", b"+@all", b"-set",
    ];
    assert_eq!(servers[0].command(&acl), "+OK\r\n");
    let mut limited = place(0);
    limited.nodes = Some(servers[0].url().replace("redis://", "redis://u:pw@"));
    transcript.run(&limited, &run);

    // A password that is missing, wrong, or visible to others.
    transcript.run(&place(6), &run);
    let mut guessing = place(6);
    guessing.nodes = Some(servers[6].url().replace("redis://", "redis://:guess@"));
    transcript.run(&guessing, &run);
    let visible = servers[6].url().replace("redis://", "redis://:secret@");
    transcript.run(&Place::local(), &["show", "a", "--node", &visible]);

    // A database that does not exist.
    let mut other = place(0);
    other.nodes = Some(format!("{}/99", servers[0].url()));
    transcript.run(&other, &run);

    // A key that is not a lock.
    assert_eq!(servers[0].command(&[b"HSET", b"a", b"x", b"y"]), ":1\r\n");
    transcript.run(&place(0), &run);
    transcript.run(&place(0), &["show", "a"]);
    transcript.run(&place(0), &["show", "a", "-o", "json"]);
    transcript.run(&place(0), &["break", "a", "--yes", "--owner", "0123abcd"]);

    // Clients that do not agree.
    place(2).ok(&["run", "b", "--", "true"]);
    let guarded = ["run", "a", "-n", "--restart-guard", "2m", "--", "true"];
    transcript.run(&place(2), &guarded);
    Place::redis(&servers[3..5]).ok(&["init"]);
    transcript.run(&place(3), &run);
    transcript.run(&place(3), &["init"]);

    // A server that has just started does not vote.
    let guarded = ["run", "a", "-n", "--restart-guard", "1h", "--", "true"];
    transcript.run(&place(1), &guarded);
    transcript.run(&place(1), &["show", "a", "--restart-guard", "1h"]);

    // A server without memory.
    let reply = servers[5].command(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    assert_eq!(reply, "+OK\r\n");
    transcript.run(&place(5), &run);

    // A server whose replicas do not have the lock, or that cannot say so.
    let run = ["run", "a", "-n", "--replicas", "1", "--", "true"];
    transcript.run(&place(2), &run);
    let forbid = servers[2].command(&[b"ACL", b"SETUSER", b"default", b"-wait"]);
    assert_eq!(forbid, "+OK\r\n");
    transcript.run(&place(2), &run);
    transcript.run(&Place::local(), &run);
    let prefers = [
        "run",
        "a",
        "-n",
        "--prefer-replicas",
        "1",
        "--",
        "sleep",
        "1",
    ];
    transcript.run(&place(2), &prefers);
    expect_file!["errors/servers.txt"].assert_eq(transcript.text());
}

#[test]
fn no_server() {
    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let mut transcript = Transcript::new().servers(&servers);
    servers[0].kill();
    for args in [
        &["run", "a", "-n", "--", "true"][..],
        &["run", "a", "-w", "50ms", "--", "true"],
        &["acquire", "a", "-n"],
        &["show", "a"],
        &["ls"],
        &["break", "a", "--owner", "x", "--yes"],
        &["init"],
    ] {
        transcript.run(&place, args);
    }
    // Something else listens there.
    let http = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = http.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in http.incoming().flatten() {
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    transcript.mask(&address, "WEB-SERVER");
    let mut place = Place::local();
    place.nodes = Some(format!("redis://{address}"));
    transcript.run(&place, &["run", "a", "-n", "--", "true"]);
    expect_file!["errors/no-server.txt"].assert_eq(transcript.text());
}

/// Certificates that one side does not accept.
#[test]
fn certificates() {
    let place = Place::local();
    for name in ["server", "other"] {
        certificate(&place, name);
    }
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("an address").port()
    };
    let path = |name: &str| place.file(name).display().to_string();
    let _server = RedisServer::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("server.pem"),
        "--tls-auth-clients",
        "yes",
    ]);
    let address = format!("127.0.0.1:{port}");
    let node = format!("rediss://{address}");
    let mut transcript = Transcript::new();
    transcript.mask(&address, "SERVER");
    let run = ["run", "a", "-n", "--node", &node];
    for options in [
        &[][..],
        &["--tls-ca", "other.pem"],
        &["--tls-ca", "server.pem"],
        &["--tls-ca", "server.key"],
    ] {
        transcript.run(&place, &[&run[..], options, &["--", "true"]].concat());
    }
    expect_file!["errors/certificates.txt"].assert_eq(transcript.text());
}

/// Creates a certificate that is its own authority, for 127.0.0.1.
fn certificate(place: &Place, name: &str) {
    let (subject, out, key) = (
        format!("/CN={name}"),
        format!("{name}.pem"),
        format!("{name}.key"),
    );
    let mut command = Command::new("openssl");
    command
        .args([
            "req", "-x509", "-days", "2", "-newkey", "rsa:2048", "-nodes",
        ])
        .args(["-subj", &subject, "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-out", &out, "-keyout", &key])
        .current_dir(place.dir.path())
        .stderr(Stdio::null());
    let status = command.status().expect("the openssl program is installed");
    assert!(status.success(), "{command:?}");
}

/// A store in a place where this user cannot write, that is not a store, or that is locked.
#[test]
fn the_embedded_store() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    place.touch("file");
    let below = format!("local:{}/file/locks.db", place.dir.path().display());
    transcript.run(&place, &["run", "a", "-n", "--node", &below, "--", "true"]);
    std::fs::write(place.file("text.db"), "not a database\n".repeat(100)).expect("written");
    let text = format!("local:{}/text.db", place.dir.path().display());
    transcript.run(&place, &["run", "a", "-n", "--node", &text, "--", "true"]);
    let dir = format!("local:{}", place.dir.path().display());
    transcript.run(&place, &["run", "a", "-n", "--node", &dir, "--", "true"]);

    // A store that another process has locked.
    let busy = format!("local:{}/busy.db", place.dir.path().display());
    place.ok(&["run", "a", "--node", &busy, "--", "true"]);
    let other = rusqlite::Connection::open(place.file("busy.db")).expect("the store");
    other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    transcript.run(&place, &["run", "a", "-n", "--node", &busy, "--", "true"]);
    drop(other);

    // Only its owner may write to a directory, and root may write everywhere.
    let mode = std::fs::Permissions::from_mode(0o555);
    std::fs::create_dir(place.file("closed")).expect("created");
    std::fs::set_permissions(place.file("closed"), mode).expect("chmod");
    let mut tool = place.command(&["run", "a", "-n", "--", "true"]);
    tool.env("XDG_STATE_HOME", place.file("closed"));
    let is_root = std::fs::metadata(place.dir.path()).is_ok_and(|dir| dir.uid() == 0);
    if is_root {
        let drop_all = ["--bounding-set", "-all", "--inh-caps", "-all"];
        tool = crate::wrapped("setpriv", &drop_all, &tool);
    }
    let ran = Running::start(&mut tool).end();
    let line = "leasehold run a -n -- true    # where this user may not write";
    transcript.record(&place, line, &ran);
    expect_file!["errors/store.txt"].assert_eq(transcript.text());
}

/// No room is left for a new store.
#[test]
fn a_full_disk() {
    let place = Place::local();
    let in_a_namespace = |line: &str, args: &[&str]| {
        let shell = ["--mount", "sh", "-ec", line, "sh"];
        crate::wrapped("unshare", &shell, &place.command(args))
    };
    std::fs::create_dir(place.file("state")).expect("created");
    let disk = "mount -t tmpfs -o size=128k none state";
    let probe = in_a_namespace(disk, &[]).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no permission to mount a file system");
        return;
    }
    let fill = "cat /dev/zero > state/zeros 2>/dev/null || true";
    let line = format!("{disk}; {fill}; exec \"$@\"");
    let mut tool = in_a_namespace(&line, &["run", "a", "-n", "--", "true"]);
    let ran = Running::start(&mut tool).end();
    let mut transcript = Transcript::new();
    transcript.record(&place, "leasehold run a -n -- true", &ran);
    expect_file!["errors/full-disk.txt"].assert_eq(transcript.text());
}

/// A command that ends when it gets SIGTERM.
const OBEYS: &str = "exec 2>/dev/null; trap 'exit 0' TERM; @@ while :; do sleep 0.01; done";

/// Losing a lease, and using one that has ended.
#[test]
fn leases() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    let in_order = |ran: &Ran| !ran.err.contains("sent SIGKILL");
    let ran = eventually("a lock is broken in order", || {
        let holder = place.holding("broken", &["--ttl", "15s"], OBEYS);
        let owner = place.owner_id("broken");
        place.run(&["break", "broken", "--owner", &owner, "--yes"]);
        let ran = holder.end();
        std::fs::remove_file(place.file("started.broken")).expect("removed");
        Some(ran).filter(|ran| ran.err.contains("was broken") && in_order(ran))
    });
    let line = "leasehold run broken -- ...    # broken by `leasehold break`";
    transcript.record(&place, line, &ran);

    let lease = |name: &str| {
        let out = place.ok(&["acquire", name, "-o", "json", "--ttl", "30m"]);
        let lease: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        lease["owner"].as_str().expect("an owner").to_owned()
    };
    let (first, second) = (lease("first"), lease("second"));
    transcript.mask(&first, "SECRET-1");
    transcript.mask(&second, "SECRET-2");
    transcript.run(&place, &["release", "second", "--owner", &first]);
    transcript.run(&place, &["extend", "second", "--owner", &first]);
    let mut command = place.command(&["release", "second"]);
    command
        .env("LEASEHOLD_OWNER", &first)
        .env("LEASEHOLD_NAME", "first");
    transcript.run_command(&place, command);
    place.ok(&["release", "first", "--owner", &first]);
    transcript.run(&place, &["release", "first", "--owner", &first]);
    transcript.run(&place, &["extend", "first", "--owner", &first]);

    let mut servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    let mut transcript = transcript.servers(&servers);
    let mut ran = eventually("a lease is lost in order", || {
        let holder = place.holding("lost", &["--ttl", "6s"], OBEYS);
        servers[0].kill();
        let ran = holder.end();
        servers[0].restart();
        std::fs::remove_file(place.file("started.lost")).expect("removed");
        Some(ran).filter(in_order)
    });
    // Whether the connection was closed or refused depends on the moment.
    ran.err = without_cause(&ran.err);
    let line = "leasehold run lost -- ...    # the server was killed";
    transcript.record(&place, line, &ran);
    expect_file!["errors/leases.txt"].assert_eq(transcript.text());
}

/// Masks the cause of a loss, which is in parentheses.
fn without_cause(text: &str) -> String {
    let line = |line: &str| match line.split_once(" (") {
        Some((start, _)) => format!("{start} (CAUSE)\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}
