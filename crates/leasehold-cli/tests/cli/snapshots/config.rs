//! What `config` prints, and what the tool says about mistakes in configuration files.

use expect_test::expect_file;

use super::transcript::Transcript;
use crate::Place;
use crate::config::write;

#[test]
fn mistakes_in_files() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    for file in [
        "tll = \"10s\"",
        "colour = \"red\"",
        "nodes-file = \"nodes\"",
        "# a comment\n\n[tls]\nca_file = \"ca.pem\"",
        "[prod]\nttl = \"10s\"",
        "[profiles.prod]\nttl = \"10s\"",
        "profile = \"prod\"",
        "[profile]\nprod = 1",
        "assume_fresh = true",
        "ttl = \"soon\"",
        "ttl = true",
        "restart_guard = \"never\"",
        "quiet = \"yes\"",
        "nodes = \"redis://127.0.0.1\"",
        "nodes = []",
        "nodes = [1]",
        "nodes = [\n  \"redis://127.0.0.1\",\n  \"http://:secret@127.0.0.1\",\n]",
        "conflict_exit_code = 256",
        "conflict_exit_code = -1",
        "on_lost = \"ignore\"",
        "accept = [\"persistance\"]",
        "wait = \"1s\"\nno_wait = true",
        "[profile.p]\nquiet = true\njson = true",
        "ttl = \"10s",
        "nodes = [\"redis://:secret@127.0.0.1]",
        "ttl = 1\nttl = 2",
    ] {
        place.configure(file);
        transcript.heading(file);
        transcript.run_command(&place, place.configured(&["run", "a", "-n", "--", "true"]));
    }
    expect_file!["errors/config-files.txt"].assert_eq(transcript.text());
}

#[test]
fn other_mistakes() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    write(&place.file(".config/leasehold/nodes"), "http://a\n");
    for (file, variables, args) in [
        ("", &[][..], &["ls", "--profile", "prod"][..]),
        (
            "[profile.a]\n[profile.b]",
            &[],
            &["ls", "--profile", "prod"],
        ),
        ("[profile.a]", &[("LEASEHOLD_PROFILE", "prod")], &["ls"]),
        ("", &[], &["ls", "--config", "missing.toml"]),
        ("", &[("LEASEHOLD_CONFIG", ".")], &["ls"]),
        (
            "",
            &[("LEASEHOLD_TTL", "soon")],
            &["run", "a", "--", "true"],
        ),
        (
            "",
            &[("LEASEHOLD_QUIET", "maybe")],
            &["run", "a", "--", "true"],
        ),
        ("", &[("LEASEHOLD_ACCEPT", "sett")], &["doctor"]),
        (
            "",
            &[("LEASEHOLD_WAIT", "1s"), ("LEASEHOLD_NO_WAIT", "1")],
            &["run", "a", "--", "true"],
        ),
        (
            "ttl = \"5m\"\nrestart_guard = \"1m\"",
            &[],
            &["run", "a", "--", "true"],
        ),
        ("replicas = 1", &[], &["run", "a", "--", "true"]),
        (
            "replicas = 1",
            &[],
            &["config", "--", "run", "a", "-c", "true"],
        ),
        ("", &[("LEASEHOLD_PREFER_REPLICAS", "1")], &["ls"]),
        ("", &[("LEASEHOLD_LABEL", "\t")], &["acquire", "a"]),
        ("", &[("LEASEHOLD_NODES", "redis://a,b")], &["ls"]),
        ("nodes_file = \"nodes\"", &[], &["ls"]),
        ("nodes_file = \".\"", &[], &["ls"]),
        ("nodes_file = \"/dev/null\"", &[], &["ls"]),
        ("tls.ca = \"missing\"", &[], &["ls"]),
        ("ttl = \"5s\"\ngrace = \"4s\"", &[], &["config", "--", "ls"]),
        (
            "",
            &[("LEASEHOLD_LEASE_TTL", "abc"), ("LEASEHOLD_OWNER", "x")],
            &["extend", "a"],
        ),
        // Only `config` checks the URLs of a profile that is not used.
        (
            "[profile.p]\nnodes = [\"http://a\"]",
            &[],
            &["config", "--", "ls"],
        ),
        ("", &[], &["config", "--prefix", "x", "--", "ls"]),
        ("", &[], &["config", "--", "lock"]),
    ] {
        place.configure(file);
        transcript.heading(file);
        let mut command = place.configured(args);
        command.envs(variables.iter().copied());
        transcript.run_command(&place, command);
    }
    expect_file!["errors/config.txt"].assert_eq(transcript.text());
}

#[test]
fn shown() {
    let place = Place::local();
    let mut transcript = Transcript::new();
    let file = "nodes = [\"redis://u:secret@127.0.0.1:1\", \"redis://127.0.0.1:2\"]\nwait = 30\n\n\
                [profile.prod]\nttl = \"20s\"\nwait = \"\"";
    place.configure(file);
    transcript.heading(file);
    let mut command = place.configured(&["config", "--profile", "prod", "--prefix", "app:"]);
    transcript.run_command(&place, {
        command.env("LEASEHOLD_LABEL", "cron");
        command
    });
    let line = ["config", "--", "run", "deploy", "--ttl", "5s", "--", "true"];
    transcript.run_command(&place, place.configured(&line));
    let json = ["config", "-o", "json", "--", "ls", "--profile", "prod"];
    transcript.run_command(&place, place.configured(&json));
    expect_file!["config.txt"].assert_eq(transcript.text());
}
