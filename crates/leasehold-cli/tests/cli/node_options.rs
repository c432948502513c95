//! Nodes from files, arguments and the environment.

use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::{Place, Running, wrapped};

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

/// Every option about nodes has an environment variable. Arguments take precedence.
#[test]
fn node_options_in_the_environment() {
    let servers = RedisServer::start_many(1);
    let place = Place::local();
    let file = place.file("nodes");
    std::fs::write(&file, servers[0].url()).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    place.touch("empty.pem");
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = place.command(args);
        command.envs(variables.iter().copied());
        Running::start(&mut command).end()
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
        Running::start(&mut command).end().code
    };
    assert_eq!(run("LEASEHOLD_ASSUME_FRESH", "0"), 69);
    assert_eq!(run("LEASEHOLD_ASSUME_FRESH", "1"), 0);
    let servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["run", "a", "-n", "--restart-guard", "off", "--", "true"]);
    let ran = place.run(&["acquire", "a", "--ttl", "5m"]);
    assert_eq!(ran.code, 64);
    assert_eq!(ran.err.lines().count(), 2, "{}", ran.err);
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

/// Parameters of other libraries have no effect here, so they are refused.
#[test]
fn a_url_with_parameters_is_refused() {
    let servers = RedisServer::start_many(1);
    let place = Place::local();
    for end in ["?x=1", "/0?protocol=resp3"] {
        let url = servers[0].url() + end;
        let ran = place.run(&["run", "a", "-n", "--node", &url, "--", "true"]);
        assert_eq!(ran.code, 64, "{}", ran.err);
        assert!(ran.err.contains("parameters after a `?`"), "{}", ran.err);
    }
}

/// A node whose name cannot be resolved is down, as any other. Its name server may be silent for minutes,
/// and does not keep the tool from exiting.
#[test]
fn a_silent_name_server_does_not_delay_the_exit() {
    const NAME_SERVER: &str = "127.83.55.1";
    let servers = RedisServer::start_many(2);
    let mut place = Place::redis(&servers);
    place.nodes = place.nodes.map(|nodes| nodes + ",redis://node.test");
    let settings = format!("nameserver {NAME_SERVER}\noptions timeout:30 attempts:5\n");
    std::fs::write(place.file("resolv.conf"), settings).expect("written");
    let mount = r#"mount --bind resolv.conf /etc/resolv.conf && exec "$@""#;
    let under = |args: &[&str]| {
        let shell = ["--mount", "sh", "-c", mount, "sh"];
        wrapped("unshare", &shell, &place.command(args))
    };
    let socket = UdpSocket::bind((NAME_SERVER, 53));
    let probe = under(&["--version"]).output();
    let (Ok(socket), true) = (socket, probe.is_ok_and(|probe| probe.status.success())) else {
        // Not `eprintln!`, whose output the test harness captures.
        let why = "mounting, or the port of a name server, is not permitted here";
        let _ = writeln!(std::io::stderr(), "SKIPPED a silent name server: {why}");
        return;
    };
    socket.set_nonblocking(true).expect("set");
    for args in [
        &["run", "x", "--assume-fresh", "--", "true"][..],
        &["nodes"],
    ] {
        let started = Instant::now();
        let ran = Running::start(&mut under(args)).end();
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        if socket.recv(&mut [0; 512]).is_err() {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED a silent name server: {args:?} did not ask it"
            );
            return;
        }
        // The resolver asks again after 30 s.
        let took = started.elapsed();
        assert!(took < Duration::from_secs(25), "{args:?} took {took:?}");
    }
}
