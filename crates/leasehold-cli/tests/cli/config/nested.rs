//! A `leasehold` in the command of a `leasehold` that has a profile.

use std::io::Write;

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

/// A file that can be read only once: its values are passed on instead of its path, unless they contain
/// a password.
#[test]
fn a_file_from_a_pipe_is_passed_on_by_value() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let place = Place::local();
    place.configure("nodes = [\"redis://127.0.0.1:1\"]\nlabel = \"elsewhere\"\n");
    let run = |text: &str, option: &str, line: &str| {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(text.as_bytes()).expect("written");
        drop(writer);
        let line = format!("{TOOL} {line}");
        let args = ["run", "a", option, "/dev/stdin", "-c", &line];
        Running::start(place.configured(&args).stdin(reader)).end()
    };
    let store = format!("local:{}", place.file("store").display());
    let file = format!("nodes = [\"{store}\"]\nprefix = \"p:\"\n");
    let ran = run(&file, "--config", "config");
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in [&*store, "p:", "LEASEHOLD_NODES", "LEASEHOLD_PREFIX"] {
        assert!(ran.out.contains(part), "{}", ran.out);
    }
    assert!(!ran.out.contains("elsewhere"), "{}", ran.out);
    // Both use the embedded store if the file names no nodes.
    let ran = run("prefix = \"p:\"\n", "--config", "config");
    assert!(!ran.out.contains("127.0.0.1:1"), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("local:"), "{}{}", ran.out, ran.err);
    let url = server.url().replace("redis://", "redis://:secret@");
    let file = format!("nodes = [\"{url}\"]\n");
    for (text, option) in [(&file, "--config"), (&url, "--nodes-file")] {
        let ran = run(text, option, "ls");
        assert_eq!(ran.code, 64, "{option}: {}", ran.err);
        assert!(ran.err.contains("are not passed on"), "{}", ran.err);
        assert!(!ran.err.contains("secret"), "{}", ran.err);
    }
}

/// An empty variable is stronger than a file, also in a nested command.
#[test]
fn an_empty_variable_is_passed_on() {
    let place = Place::local();
    place.configure("nodes_file = \"nodes\"\n");
    write(
        &place.file(".config/leasehold/nodes"),
        "redis://127.0.0.1:1\n",
    );
    let line = format!("{TOOL} config");
    let mut command = place.configured(&["run", "a", "-c", &line]);
    let ran = Running::start(command.env("LEASEHOLD_NODES_FILE", "")).end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let row = ran
        .out
        .lines()
        .find(|line| line.trim_start().starts_with("nodes "));
    assert!(row.is_some_and(|row| row.contains("local:")), "{}", ran.out);
}
