//! Help, manual pages, completions and docs/cli.md say the same, and what is so.

use crate::Place;

const DOCUMENT: &str = include_str!("../../../../docs/cli.md");
const COMMANDS: [&str; 9] = [
    "run",
    "acquire",
    "extend",
    "release",
    "show",
    "ls",
    "break",
    "completions",
    "man",
];

/// The long options in a help text.
fn options(help: &str) -> Vec<String> {
    let words = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    let longs = words.filter_map(|line| {
        let start = line.find("--")?;
        let end = line[start..]
            .find([' ', '[', '='])
            .map_or(line.len(), |end| start + end);
        Some(line[start..end].to_owned())
    });
    longs.collect()
}

/// The section of the document about a command.
fn section(command: &str) -> &'static str {
    let start = DOCUMENT
        .find(&format!("\n## `leasehold {command}"))
        .unwrap_or_else(|| {
            panic!("docs/cli.md has no section about `leasehold {command}`");
        });
    let rest = &DOCUMENT[start + 1..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

#[test]
fn every_option_is_documented_where_it_belongs() {
    let place = Place::local();
    let common = options(&place.ok(&["show", "--help"]));
    let nodes = section("run");
    for command in COMMANDS {
        let help = place.ok(&[command, "--help"]);
        let text = section(command);
        for option in options(&help) {
            let shared = common.contains(&option) && DOCUMENT.contains(&format!("`{option}"));
            let known = option == "--help"
                || shared
                || text.contains(&format!("`{option}"))
                || text.contains(&format!("/{option}"));
            assert!(known, "docs/cli.md does not mention {option} of {command}");
        }
    }
    assert!(nodes.contains("--at-least-for"));
}

/// What the document shows as options exists.
#[test]
fn the_document_promises_no_option_that_is_not_there() {
    let place = Place::local();
    let all: String = COMMANDS
        .iter()
        .map(|command| place.ok(&[command, "--help"]))
        .collect();
    let about_others = |line: &&str| line.contains("cargo install");
    let text: Vec<_> = DOCUMENT
        .lines()
        .filter(|line| !about_others(line))
        .collect();
    for part in text
        .join("\n")
        .split(['`', ' ', '\n', '|', '/', '=', '[', ']'])
    {
        if let Some(option) = part.strip_prefix("--").filter(|option| option.len() > 1) {
            let word = option.trim_end_matches(['.', ',', ')', ';', ':']);
            assert!(all.contains(&format!("--{word}")), "there is no --{word}");
        }
    }
}

#[test]
fn every_exit_code_is_in_the_help_and_in_the_document() {
    let help = Place::local().ok(&["--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in ["75", "69", "79", "64", "126", "127", "128 + n"] {
        assert!(help.contains(code), "{code}: {help}");
        assert!(DOCUMENT.contains(&format!("| {code} |")), "{code}");
    }
}

/// The defaults that the help names are those that the document names.
#[test]
fn defaults_agree() {
    let place = Place::local();
    for (command, option, default) in [
        ("run", "--ttl", "10s"),
        ("acquire", "--ttl", "60s"),
        ("run", "--on-lost", "kill"),
        ("run", "--conflict-exit-code", "75"),
        ("acquire", "--output", "export"),
        ("show", "--output", "table"),
    ] {
        let help = place.ok(&[command, "--help"]);
        let at = help.find(&format!("{option} ")).expect("the option");
        assert!(
            help[at..].contains(&format!("[default: {default}]")),
            "{command} {option}"
        );
        let mut rows = section(command)
            .lines()
            .filter(|line| line.starts_with("| `"));
        let line = rows.find(|line| line.contains(option));
        let line = line.expect("documented");
        assert!(line.contains(default), "{command} {option}: {line}");
    }
}

#[test]
fn manual_pages_are_made_for_every_command() {
    let place = Place::local();
    let page = place.ok(&["man"]);
    for command in COMMANDS {
        assert!(
            page.contains(&format!("leasehold\\-{command}")),
            "{command}"
        );
        let own = place.ok(&["man", command]);
        assert!(
            own.starts_with(".ie") && own.contains(".SH NAME"),
            "{command}"
        );
        assert!(
            own.contains(&format!("leasehold\\-{command}")),
            "{command}: {own}"
        );
    }
    assert!(page.contains("75 the lock is held"));
}

#[test]
fn completions_are_made_for_every_shell() {
    let place = Place::local();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.ok(&["completions", shell]);
        assert!(script.contains("at-least-for"), "{shell}");
    }
    assert_eq!(place.run(&["completions", "tcsh"]).code, 64);
}
