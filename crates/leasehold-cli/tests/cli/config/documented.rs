//! docs/configuration.md agrees with the tool.

use std::process::Command;

use super::settings;
use crate::Place;

const PAGE: &str = include_str!("../../../../../docs/configuration.md");

/// The example is a valid file, in each of its profiles.
#[test]
fn the_example_is_valid() {
    let place = Place::local();
    let blocks = PAGE.split("```toml\n").skip(1);
    let example = blocks
        .map(|block| block.split("```").next().unwrap_or_default())
        .next();
    let path = place.configure(example.expect("an example"));
    // The certificate authority that the example names.
    let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 900 -subj /CN=ca \
                     -keyout ca.key -out ca.pem";
    let mut openssl = Command::new("openssl");
    openssl
        .args(arguments.split_whitespace())
        .current_dir(path.parent().expect("a directory"));
    assert!(crate::output(&mut openssl).status.success());
    for profile in [&[][..], &["--profile", "staging"], &["--profile", "desk"]] {
        let args = [&["config"][..], profile].concat();
        let ran = place.run_configured(&args);
        assert_eq!((ran.code, &*ran.err), (0, ""), "{profile:?}");
    }
    let ran = place.run_configured(&["run", "a", "--profile", "desk", "--", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// The table has a row for each setting, with its variable, its default and its commands.
#[test]
fn the_table_is_complete() {
    let place = Place::local();
    let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim));
    let rows: Vec<Vec<_>> = rows.map(|row| row.collect()).collect();
    let shown = settings(&mut place.command(&["config", "-o", "json"]));
    let shown = shown["settings"].as_array().expect("a list");
    assert_eq!(rows.len(), shown.len());
    for (row, setting) in rows.iter().zip(shown) {
        let key = setting["key"].as_str().expect("a key");
        let variable = format!("`LEASEHOLD_{}`", key.replace('.', "_").to_uppercase());
        assert_eq!(row[0], format!("`{key}`"));
        assert!(row[1].starts_with(&variable), "{key}: {}", row[1]);
        assert_eq!(row[3].trim_matches('`'), setting["default"], "{key}");
        let commands = [
            "run", "once", "elect", "wait", "acquire", "extend", "doctor", "ls", "init",
        ];
        for command in commands {
            // Lines are wrapped.
            let help = place.ok(&[command, "--help"]);
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_used = row[4] == "all" || row[4].contains(&format!("`{command}`"));
            let is_named = help.contains(&format!("[env: {}]", variable.trim_matches('`')));
            // The variable of a lease is in its place.
            let of_lease = command == "extend" && key == "acquire_ttl";
            assert_eq!(is_named, is_used && !of_lease, "{key} of {command}");
        }
    }
}
