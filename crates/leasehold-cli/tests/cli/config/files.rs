//! Which file is read, and which is refused.

use super::{chmod, setting, settings, write};
use crate::{Place, Running};

/// The label in force tells which file was read.
fn label(command: &mut std::process::Command) -> Option<String> {
    let shown = settings(command);
    setting(&shown, "label")["value"]
        .as_str()
        .map(str::to_owned)
}

#[test]
fn the_first_file_is_read() {
    let place = Place::local();
    for (file, label) in [
        (".config/leasehold/leasehold.toml", "home"),
        ("xdg/leasehold/leasehold.toml", "xdg"),
        ("variable.toml", "variable"),
        ("option.toml", "option"),
        // In the working directory.
        ("leasehold.toml", "here"),
    ] {
        write(&place.file(file), &format!("label = \"{label}\"\n"));
    }
    let args = ["config", "-o", "json"];
    let home = || place.configured(&args);
    assert_eq!(label(&mut home()).as_deref(), Some("home"));
    let xdg = || {
        let mut command = home();
        command.env("XDG_CONFIG_HOME", place.file("xdg"));
        command
    };
    assert_eq!(label(&mut xdg()).as_deref(), Some("xdg"));
    assert_eq!(
        label(xdg().env("LEASEHOLD_CONFIG", "")).as_deref(),
        Some("xdg")
    );
    let mut variable = xdg();
    variable.env("LEASEHOLD_CONFIG", "variable.toml");
    assert_eq!(label(&mut variable).as_deref(), Some("variable"));
    variable.args(["--config", "option.toml"]);
    assert_eq!(label(&mut variable).as_deref(), Some("option"));
    assert_eq!(label(home().env("LEASEHOLD_CONFIG", "/dev/null")), None);
}

/// `leasehold.toml` in the working directory may belong to another user.
#[test]
fn the_working_directory_is_not_searched() {
    let place = Place::local();
    write(&place.file("leasehold.toml"), "not even TOML");
    let ran = place.run_configured(&["run", "a", "--", "true"]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
}

#[test]
fn files_that_others_can_change_or_read() {
    let place = Place::local();
    let with_password = "[profile.p]\nnodes = [\"redis://:secret@127.0.0.1:1\"]\n";
    for (text, mode, says) in [
        ("ttl = \"10s\"\n", 0o644, None),
        ("ttl = \"10s\"\n", 0o664, None),
        ("ttl = \"10s\"\n", 0o666, Some("all users can change")),
        // Also in a profile that is not used.
        (with_password, 0o600, None),
        (with_password, 0o640, Some("contains a password")),
        (with_password, 0o604, Some("chmod 600")),
    ] {
        let path = place.configure(text);
        chmod(&path, mode);
        let named = path.to_string_lossy().into_owned();
        for args in [&["ls"][..], &["ls", "--config", &named]] {
            let ran = place.run_configured(args);
            assert!(!ran.err.contains("secret"), "{}", ran.err);
            match says {
                None => assert_eq!((ran.code, &*ran.err), (0, ""), "{mode:o}"),
                Some(says) => {
                    assert_eq!(ran.code, 64, "{mode:o} {args:?}");
                    assert!(ran.err.contains(says), "{mode:o}: {}", ran.err);
                }
            }
        }
    }
}

/// A file of another user is refused, unless it was named. Only root can give a file away.
#[test]
fn files_of_other_users() {
    let place = Place::local();
    let path = place.configure("label = \"theirs\"\n");
    let Ok(()) = std::os::unix::fs::chown(&path, Some(12345), None) else {
        return;
    };
    let ran = place.run_configured(&["ls"]);
    assert_eq!(ran.code, 64, "{}", ran.err);
    assert!(
        ran.err.contains("belongs to another user (uid 12345)"),
        "{}",
        ran.err
    );
    let named = path.to_string_lossy().into_owned();
    assert_eq!(place.run_configured(&["ls", "--config", &named]).code, 0);
}

/// `config` does not show passwords, whichever source they come from.
#[test]
fn passwords_are_not_shown() {
    let place = Place::local();
    let url = "redis://u:secret@127.0.0.1:1";
    place.configure(&format!("nodes = [\"{url}\"]\n"));
    for args in [
        &["config"][..],
        &["config", "-o", "json"],
        &["config", "--node", url],
        &["config", "--", "ls", "--node", url],
    ] {
        for variable in [None, Some(url)] {
            let mut command = place.configured(args);
            command.envs(variable.map(|url| ("LEASEHOLD_NODES", url)));
            let ran = Running::start(&mut command).end();
            assert_eq!(ran.code, 0, "{}", ran.err);
            assert!(ran.out.contains("redis://u:***@127.0.0.1:1"), "{}", ran.out);
            assert!(!(ran.out + &ran.err).contains("secret"), "{args:?}");
        }
    }
}

/// A script must not go on without the lock because of a file.
#[test]
fn a_wrong_file_makes_eval_fail() {
    let place = Place::local();
    place.configure("tll = \"10s\"\n");
    let ran = place.run_configured(&["acquire", "a"]);
    assert_eq!((ran.code, &*ran.out), (64, "(exit 64)\n"), "{}", ran.err);
    // Help needs no configuration.
    assert_eq!(place.run_configured(&["acquire", "--help"]).code, 0);
    assert_eq!(place.run_configured(&["completions", "bash"]).code, 0);
}

/// A symbolic link to a file that does not exist is a configuration file that cannot be read.
#[test]
fn a_link_to_nothing_is_not_ignored() {
    let place = Place::local();
    let path = place.configure("");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(place.run_configured(&["ls"]).code, 0);
    std::os::unix::fs::symlink("/nonexistent/leasehold.toml", &path).expect("a link");
    let ran = place.run_configured(&["ls"]);
    assert_eq!(ran.code, 64, "{}", ran.err);
    assert!(ran.err.contains("symbolic link"), "{}", ran.err);
}

/// `config` writes control characters as escapes.
#[test]
fn control_characters_are_escaped() {
    let place = Place::local();
    place.configure("prefix = \"a\\u001b[2Jb\"\n[profile.\"p\\u001b[1m\"]\n");
    let ran = place.run_configured(&["config"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.out.contains('\u{1b}'), "{:?}", ran.out);
    assert!(ran.out.contains("a\\u{1b}[2Jb"), "{}", ran.out);
}

/// All ways in which TOML writes a number.
#[test]
fn numbers() {
    let place = Place::local();
    for (key, written, value) in [
        ("ttl", "1e1", "10"),
        ("ttl", "+5", "5"),
        ("ttl", "2.5", "2.5"),
        ("ttl", "1_0", "10"),
        ("ttl", "0x10", "16"),
        ("conflict_exit_code", "0o17", "15"),
        ("conflict_exit_code", "0b11", "3"),
        ("conflict_exit_code", "+7", "7"),
    ] {
        place.configure(&format!("{key} = {written}\n"));
        let shown = settings(&mut place.configured(&["config", "-o", "json"]));
        let shown = setting(&shown, key)["value"].to_string();
        assert_eq!(shown.trim_matches('"'), value, "{key} = {written}");
    }
    for written in ["nan", "inf", "-1"] {
        place.configure(&format!("ttl = {written}\n"));
        assert_eq!(place.run_configured(&["ls"]).code, 64, "{written}");
    }
}

/// What every command refuses is refused here, too, also in a profile that is not used.
#[test]
fn values_that_commands_refuse() {
    let place = Place::local();
    let cases = [
        ("ttl = 0", "`ttl`"),
        ("ttl = \"100h\"", "`ttl`"),
        ("acquire_ttl = \"100h\"", "`acquire_ttl`"),
        ("label = \"a\\u001bb\"", "`label`"),
        ("grace = \"30s\"", "`grace`"),
        ("restart_guard = \"1s\"", "`restart_guard`"),
        ("at_most_for = 0", "`at_most_for`"),
        ("nodes_file = \"missing\"", "`nodes_file`"),
        ("nodes = [\"rediss://a\"]\ntls.ca = \"missing\"", "`tls.ca`"),
        (
            "nodes = [\"rediss://a\"]\ntls.cert = \"missing\"",
            "`tls.cert`",
        ),
        ("replicas = 2\nnodes = [\"local:\"]", "`replicas`"),
        (
            "prefer_replicas = 2\nnodes = [\"local:\"]",
            "`prefer_replicas`",
        ),
    ];
    for (line, key) in cases {
        for (text, number) in [
            (line.to_owned(), 1),
            (format!("[profile.unused]\n{line}"), 2),
        ] {
            place.configure(&text);
            let ran = place.run_configured(&["config"]);
            assert_eq!(ran.code, 64, "{text}: {}", ran.out);
            let at = |number: usize| format!("leasehold.toml:{number}:");
            let is_at = ran.err.contains(&at(number)) || ran.err.contains(&at(number + 1));
            assert!(
                ran.err.contains(key) && is_at || number == 1,
                "{text}: {}",
                ran.err
            );
        }
    }
    // The error is about the file: what the command line or a variable says has no part in it.
    for (text, says) in [
        ("tls.ca = \"missing\"", "`tls.ca`: cannot read "),
        (
            "ttl = \"5s\"\ngrace = \"4s\"",
            "`grace`: --grace 4s is more",
        ),
    ] {
        place.configure(text);
        let ran = place.run_configured(&["config"]);
        assert!(ran.err.contains(says), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
    // What belongs together is checked together.
    for text in [
        "ttl = \"1m\"\ngrace = \"30s\"",
        "grace = \"5s\"\n[profile.short]\nttl = \"2s\"",
        "restart_guard = \"1s\"\nttl = \"1s\"",
        "ttl = \"10m\"\nrestart_guard = \"10m\"\n[profile.x]\nrestart_guard = \"off\"",
        "nodes = [\"redis://a\"]\nreplicas = 2\n[profile.x]\nnodes = [\"local:\"]\nreplicas = 0",
        // Nodes may be named elsewhere.
        "[profile.x]\nreplicas = 2",
    ] {
        place.configure(text);
        let ran = place.run_configured(&["config"]);
        assert_eq!(ran.code, 0, "{text}: {}", ran.err);
    }
    place.configure("ttl = \"2m\"\n[profile.short]\nrestart_guard = \"1m\"");
    let ran = place.run_configured(&["config"]);
    assert_eq!(ran.code, 64, "{}", ran.out);
    assert!(ran.err.contains("(with profile `short`)"), "{}", ran.err);
    place.configure("replicas = 2\n[profile.desk]\nnodes = [\"local:\"]");
    let ran = place.run_configured(&["config", "--node", "redis://a"]);
    assert_eq!(ran.code, 64, "{}", ran.out);
    let says = "toml:1:12: `replicas` (with profile `desk`): the embedded store has no replicas";
    assert!(ran.err.contains(says), "{}", ran.err);
}

/// A server that is named twice would have two votes.
#[test]
fn a_url_twice_is_refused() {
    let place = Place::local();
    for (text, at) in [
        (
            "nodes = [\"redis://a\", \"redis://b\", \"redis://a\"]",
            "1:36",
        ),
        (
            "[profile.x]\nnodes = [\n\"redis://a\",\n\"redis://a\"]",
            "4:1",
        ),
    ] {
        place.configure(text);
        let ran = place.run_configured(&["config"]);
        assert_eq!(ran.code, 64, "{}", ran.out);
        let says = format!("leasehold.toml:{at}: `nodes`: the list has this URL twice");
        assert!(ran.err.contains(&says), "{}", ran.err);
    }
    let path = place.configure("nodes_file = \"nodes\"");
    let nodes = path.with_file_name("nodes");
    write(&nodes, "redis://a\n# b\nredis://a\n");
    chmod(&nodes, 0o600);
    let ran = place.run_configured(&["config"]);
    assert_eq!(ran.code, 64, "{}", ran.out);
    let says = "leasehold.toml:1:14: `nodes_file`: URL 2 of the file is there twice";
    assert!(ran.err.contains(says), "{}", ran.err);
}

#[test]
fn a_file_without_an_end_is_refused() {
    let place = Place::local();
    let mut command = place.command(&["config"]);
    command.env("LEASEHOLD_CONFIG", "/dev/zero");
    let ran = Running::start(&mut command).end();
    assert_eq!(ran.code, 64, "{}", ran.out);
    assert!(ran.err.contains("longer than 1 MiB"), "{}", ran.err);
}

/// A pipe that lies where the file is searched for has no writer. One that is named may have.
#[test]
fn a_pipe_that_is_found_is_refused() {
    let place = Place::local();
    let path = place.configure("");
    std::fs::remove_file(&path).expect("removed");
    place.pipe(super::IN_HOME);
    let ran = place.run_configured(&["ls"]);
    assert_eq!(ran.code, 64, "{}", ran.out);
    assert!(ran.err.contains("not a regular file"), "{}", ran.err);
}

/// The nodes of a nodes file are not the default, whichever source names it.
#[test]
fn nodes_of_a_nodes_file() {
    let place = Place::local();
    write(&place.file("nodes"), "redis://:secret@a\n");
    let named = place.file("nodes").display().to_string();
    for (file, variables, option, source) in [
        (
            format!("nodes_file = \"{named}\"\n"),
            &[][..],
            &[][..],
            "leasehold.toml:1",
        ),
        (
            String::new(),
            &[("LEASEHOLD_NODES_FILE", &*named)],
            &[],
            "LEASEHOLD_NODES_FILE",
        ),
        (
            String::new(),
            &[],
            &["--nodes-file", &named],
            "command line",
        ),
    ] {
        place.configure(&file);
        let run = |args: &[&str]| {
            let mut command = place.configured(&[args, option].concat());
            command.envs(variables.iter().copied());
            let ran = Running::start(&mut command).end();
            assert_eq!(ran.code, 0, "{}", ran.err);
            ran.out
        };
        for args in [&["config"][..], &["config", "--", "ls"]] {
            let out = run(args);
            let is_row = |line: &str| {
                let words: Vec<_> = line.split_whitespace().collect();
                words.join(" ") == format!("nodes those of nodes_file {source}")
            };
            assert!(out.lines().any(is_row), "{out}");
        }
        let shown = serde_json::from_str(&run(&["config", "-o", "json"])).expect("JSON");
        let row = setting(&shown, "nodes");
        assert_eq!(row["source"], "nodes_file", "{row}");
        assert!(row["value"].is_null(), "{row}");
    }
}

/// What the command would refuse about its nodes, `config` refuses, too, after it has shown the settings.
#[test]
fn the_nodes_of_a_command_line_are_checked() {
    let place = Place::local();
    for (file, line, code) in [
        ("replicas = 1", &["run", "x"][..], 64),
        ("", &["run", "x", "--replicas", "1"], 64),
        ("", &["ls", "--nodes-file", "missing"], 64),
        ("", &["ls", "--node", "http://a"], 64),
        (
            "",
            &["run", "x", "--replicas", "1", "--node", "redis://a"],
            0,
        ),
        // A command without nodes.
        ("replicas = 1", &["man"], 0),
    ] {
        place.configure(file);
        let command: &[&str] = match line[0] {
            "run" => &["-c", "true"],
            _ => &[],
        };
        let ran = place.run_configured(&[&["config", "--"], line, command].concat());
        assert_eq!(ran.code, code, "{line:?}: {}", ran.err);
        assert!(ran.out.contains("SETTING"), "{}", ran.out);
    }
}
