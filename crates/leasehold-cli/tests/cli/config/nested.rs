//! A `leasehold` in the command of a `leasehold` that has a profile.

use leasehold_testkit::RedisServer;

use super::write;
use crate::{Place, Running};

const TOOL: &str = env!("CARGO_BIN_EXE_leasehold");

/// The inner `leasehold` uses the nodes, the prefix and the settings of the outer profile, with a
/// password, in another directory and with another `HOME`.
#[test]
fn a_profile_is_passed_on() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = server.url().replace("redis://", "redis://:secret@");
    let place = Place::local();
    write(
        &place.file("own.toml"),
        &format!(
            "[profile.p]\nnodes = [\"{url}\"]\nprefix = \"p:\"\nlabel = \"inherited\"\n\
             [profile.here]\nnodes = [\"local:\"]\n"
        ),
    );
    let outer = ["run", "a", "--config", "own.toml", "--profile", "p"];
    let run = |line: String| {
        let args = [&outer[..], &["-c", &line]].concat();
        let ran = place.run_configured(&args);
        assert_eq!(ran.code, 0, "{line}: {}", ran.err);
        ran.out
    };
    let inner = format!("cd /; export HOME=/nowhere; {TOOL}");
    let out = run(format!("{inner} acquire b > /dev/null && {inner} show b"));
    assert!(out.contains("inherited"), "{out}");
    let direct = [
        &["show", "p:b"][..],
        &["--config", "own.toml", "--profile", "p"],
    ]
    .concat();
    let direct = [&direct[..], &["--prefix", ""]].concat();
    let ran = place.run_configured(&direct);
    assert!(ran.out.contains("inherited"), "{}{}", ran.out, ran.err);
    // The lock of the outer command is known to be held by it.
    let out = run(format!("{inner} run a -n -- true; echo $?"));
    assert_eq!(out, "64\n");
    // It can choose another profile.
    let out = run(format!("{inner} show b --profile here"));
    assert!(out.contains("free"), "{out}");
    // The password is not in the environment.
    let out = run("env".to_owned());
    assert!(!out.contains("secret"), "{out}");
    assert!(!out.contains("LEASEHOLD_NODES"), "{out}");
}

/// What the outer command line says is stronger than the file, also if it is the built-in default.
#[test]
fn the_command_line_is_passed_on() {
    let place = Place::local();
    place.configure("prefix = \"file:\"\nnodes = [\"redis://127.0.0.1:1\"]\n");
    let line = format!("{TOOL} config");
    let args = ["run", "a", "--prefix", "", "--node", "local:", "-c", &line];
    let ran = place.run_configured(&args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let row = |key: &str| {
        let mut rows = ran
            .out
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|row| row.first() == Some(&key)).expect("a row")
    };
    assert_eq!(
        row("prefix"),
        ["prefix", "none", "LEASEHOLD_PREFIX"],
        "{}",
        ran.out
    );
    assert_eq!(
        row("nodes"),
        ["nodes", "local:", "LEASEHOLD_NODES"],
        "{}",
        ran.out
    );
}

/// If the nodes of the outer command are not passed on, those of the file are not used instead: the
/// two commands would not exclude each other.
#[test]
fn hidden_nodes_are_stronger_than_a_file() {
    let place = Place::local();
    write(&place.file(".config/leasehold/nodes"), "local:\n");
    for file in ["nodes = [\"local:\"]\n", "nodes_file = \"nodes\"\n"] {
        place.configure(file);
        let mut command = place.configured(&["ls"]);
        let ran = Running::start(command.env("LEASEHOLD_NODES_HIDDEN", "1")).end();
        assert_eq!(ran.code, 64, "{file}: {}", ran.err);
        assert!(ran.err.contains("not passed on"), "{}", ran.err);
    }
}
