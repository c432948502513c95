//! Checks that help, manual pages, completions and docs/cli.md agree with each other.

use std::io::Write;

use leasehold_testkit::RedisServer;

use crate::{Place, Running};

const DOCUMENT: &str = include_str!("../../../../docs/cli.md");
const COMMANDS: [&str; 19] = [
    "run",
    "once",
    "elect",
    "wait",
    "acquire",
    "extend",
    "release",
    "show",
    "ls",
    "history",
    "top",
    "break",
    "resize",
    "init",
    "doctor",
    "nodes",
    "config",
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

/// The section of docs/cli.md about a command.
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
fn every_option_is_documented() {
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

/// Every option that docs/cli.md mentions exists.
#[test]
fn every_documented_option_exists() {
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
            assert!(
                all.contains(&format!("--{word}")),
                "--{word} does not exist"
            );
        }
    }
}

/// The pages with lines for the shell.
const PAGES: [(&str, &str); 9] = [
    ("README.md", include_str!("../../../../README.md")),
    ("cli.md", DOCUMENT),
    ("election.md", include_str!("../../../../docs/election.md")),
    (
        "migrating.md",
        include_str!("../../../../docs/migrating.md"),
    ),
    ("once.md", include_str!("../../../../docs/once.md")),
    (
        "reentrancy.md",
        include_str!("../../../../docs/reentrancy.md"),
    ),
    ("rw-lock.md", include_str!("../../../../docs/rw-lock.md")),
    (
        "semaphore.md",
        include_str!("../../../../docs/semaphore.md"),
    ),
    (
        "several-names.md",
        include_str!("../../../../docs/several-names.md"),
    ),
];

/// The lines of a page that run a command once, as a shell or cron would.
fn shell_lines(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    // A line of cron begins with the time.
    let lines = lines.map(|line| line.trim_start_matches("0 3 * * * "));
    let lines = lines.map(|line| line.trim_start_matches("/usr/local/bin/"));
    let once = ["leasehold run ", "leasehold once ", "leasehold resize "];
    let lines = lines.filter(|line| once.iter().any(|command| line.starts_with(command)));
    // Not those that name servers or files of the machine.
    let lines = lines.filter(|line| !line.contains("redis://") && !line.contains("local:/"));
    lines
        .map(|line| line.replace("/opt/", "./").replace("/var/log/", "./"))
        .collect()
}

/// Every such line in the pages does what it is there for: it runs its command.
#[test]
fn the_lines_of_the_pages_run() {
    let tool = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let mut ran = 0;
    for (page, text) in PAGES {
        for line in shell_lines(text) {
            let place = Place::local();
            // The programs that the line runs: each says that it ran.
            let words = line.split([' ', '\'']);
            let scripts = words.filter(|word| word.starts_with("./") && word.ends_with(".sh"));
            for program in scripts.chain(["./curl", "./psql"]) {
                let path = place.file(program.trim_start_matches("./"));
                let mut file = std::fs::File::create(&path).expect("a file");
                writeln!(file, "#!/bin/sh\ntouch ran").expect("written");
                drop(file);
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(&path, mode).expect("executable");
            }
            let path = std::env::var("PATH").unwrap_or_default();
            let tools = tool.parent().expect("a directory").display();
            let here = place.file("").display().to_string();
            let inner = place.command(&[]);
            let mut shell = crate::wrapped("sh", &["-c", &line], &inner);
            shell.env("PATH", format!("{here}:{tools}:{path}"));
            let ended = Running::start(&mut shell).end();
            assert_eq!(ended.code, 0, "{page}: {line}: {}", ended.err);
            let runs_something = !line.starts_with("leasehold resize");
            assert_eq!(place.file("ran").exists(), runs_something, "{page}: {line}");
            ran += 1;
        }
    }
    assert!(ran >= 15, "only {ran} lines were found");
}

#[test]
fn every_exit_code_is_documented() {
    let help = Place::local().ok(&["--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in ["75", "69", "79", "124", "64", "126", "127", "128 + n"] {
        assert!(help.contains(code), "{code}: {help}");
        assert!(DOCUMENT.contains(&format!("| {code} |")), "{code}");
    }
}

/// The help and docs/cli.md name the same defaults.
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
fn every_command_has_a_manual_page() {
    let place = Place::local();
    let page = place.ok(&["man"]);
    assert!(page.contains("\n.SH \"EXIT STATUS\"\n"), "{page}");
    let footer = concat!("\"leasehold ", env!("CARGO_PKG_VERSION"), "\"");
    for command in COMMANDS {
        assert!(
            page.contains(&format!("leasehold\\-{command}")),
            "{command}"
        );
        let own = place.ok(&["man", command]);
        for page in [&page, &own] {
            let title = page.lines().find(|line| line.starts_with(".TH "));
            assert!(title.is_some_and(|title| title.contains(footer)), "{page}");
            assert!(!page.contains(".SH EXTRA"), "{page}");
        }
        assert!(
            own.starts_with(".ie") && own.contains(".SH NAME"),
            "{command}"
        );
        assert!(
            own.contains(&format!("leasehold\\-{command}")),
            "{command}: {own}"
        );
    }
    assert!(page.contains("the lock is held by another process"));
}

#[test]
fn completions_for_every_shell() {
    let place = Place::local();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.ok(&["completions", shell]);
        assert!(script.contains("at-least-for"), "{shell}");
    }
    assert_eq!(place.run(&["completions", "tcsh"]).code, 64);
}

/// Words of the library that users of the tool do not know.
const LIBRARY_WORDS: [&str; 9] = [
    "min_hold",
    "max_hold",
    "restart_guard",
    "fence_retention",
    "connect_timeout",
    "detach",
    "(any)",
    "0ns",
    "node(\"",
];

#[test]
fn library_words_are_not_in_the_help() {
    let place = Place::local();
    for command in COMMANDS {
        let help = place.ok(&[command, "--help"]);
        for word in LIBRARY_WORDS {
            assert!(!help.contains(word), "{word} in the help of {command}");
        }
    }
    for word in LIBRARY_WORDS {
        assert!(!DOCUMENT.contains(word), "{word} in docs/cli.md");
    }
}

/// Error messages use the names of the command-line options and suggest a next step.
#[test]
fn library_words_are_not_in_error_messages() {
    let servers = RedisServer::start_many(3);
    let one = servers[0].url();
    let database = format!("{one}/99");
    let with_comma = format!("{one},{}", servers[1].url());
    let no_tls = one.replace("redis://", "rediss://");
    let http = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let speaks_http = format!("redis://{}", http.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in http.incoming().flatten() {
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let place = Place::local();
    let three = Place::redis(&servers);
    std::fs::write(place.file("key.pem"), "-----BEGIN NOTHING-----\n").expect("written");
    let acl: [&[u8]; 8] = [
        b"ACL", b"SETUSER", b"u", b"on", b">pw", b"~*", b"+@all", b"-set",
    ];
    assert_eq!(servers[1].command(&acl), "+OK\r\n");
    let (host, wrong) = (servers[1].url(), "redis://u:pw@");
    let user = host.replace("redis://", wrong);
    place.ok(&["run", "kept", "--at-least-for", "1h", "--", "true"]);
    let true_ = ["--", "true"];
    for (place, args, code, says) in [
        (
            &place,
            &["run", "kept", "-n"][..],
            75,
            "`kept` was released by ",
        ),
        (&place, &["run", "kept", "-w", "50ms"], 75, "waited for"),
        (
            &place,
            &["run", "a", "--at-least-for", "48h"],
            64,
            "--at-least-for 2days",
        ),
        (&place, &["run", "a", "--wait", "9000days"], 64, "--wait"),
        (
            &place,
            &["run", "a", "--restart-guard", "0s"],
            64,
            "--restart-guard 0s",
        ),
        (
            &place,
            &["run", "a", "--restart-guard", "5s"],
            64,
            "add --restart-guard 10s",
        ),
        (
            &place,
            &["run", "a", "--tls-ca", "key.pem"],
            64,
            "--tls-ca: ",
        ),
        (
            &place,
            &["run", "a", "-n", "--node", &database],
            69,
            "next: use a database index",
        ),
        (
            &place,
            &["run", "a", "-n", "--node", &speaks_http],
            69,
            "next: check that a Redis",
        ),
        (
            &place,
            &["run", "a", "-n", "--node", &user],
            69,
            "run the 'set' command",
        ),
        (
            &place,
            &["run", "a", "-n", "--node", &with_comma],
            64,
            "--node takes one URL; repeat it for each server",
        ),
        (
            &place,
            &["run", "a", "-n", "--node", "redis://localhost:99999"],
            64,
            "host, port or database",
        ),
        (
            &place,
            &["run", "a", "-n", "--node", &no_tls],
            69,
            "check that the port accepts TLS",
        ),
        (
            &three,
            &["run", "a", "-n"],
            69,
            "if no lease can be in use, `leasehold init --assume-fresh`",
        ),
        (
            &three,
            &["run", "a", "-n"],
            69,
            "next: wait until the nodes vote",
        ),
        (
            &three,
            &["run", "a", "-n", "--restart-guard", "2m"],
            69,
            "other clients of this node",
        ),
    ] {
        let ran = place.run(&[args, &true_].concat());
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        let err = ran.err.to_lowercase();
        assert!(err.contains(&says.to_lowercase()), "{args:?}: {}", ran.err);
        for word in LIBRARY_WORDS {
            assert!(!ran.err.contains(word), "{word}: {args:?}: {}", ran.err);
        }
    }
    let mut nowhere = Place::local();
    nowhere.nodes = Some("redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3".into());
    for args in [
        &["ls"][..],
        &["show", "a"],
        &["release", "a", "--owner", "x"],
    ] {
        let ran = nowhere.run(args);
        assert_ne!(ran.code, 0, "{args:?}");
        for word in LIBRARY_WORDS {
            assert!(!ran.err.contains(word), "{word}: {args:?}: {}", ran.err);
        }
    }
}
