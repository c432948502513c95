//! Records what the tool prints, with every value that differs between runs masked.

use std::process::Command;

use leasehold_testkit::RedisServer;

use crate::{Place, Ran, Running, eventually};

/// The commands that a test ran and what each of them printed, ready to be compared.
#[derive(Default)]
pub(super) struct Transcript {
    text: String,
    known: Vec<(String, String)>,
}

impl Transcript {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Masks the addresses of these servers as `SERVER-1`, `SERVER-2` and so on.
    pub(super) fn servers(mut self, servers: &[RedisServer]) -> Self {
        for (index, server) in servers.iter().enumerate() {
            let address = format!("127.0.0.1:{}", server.port());
            self.mask(&address, &format!("SERVER-{}", index + 1));
        }
        self
    }

    /// Masks a value that the test knows.
    pub(super) fn mask(&mut self, value: &str, mask: &str) {
        self.known.push((value.to_owned(), mask.to_owned()));
    }

    /// Runs the tool and records the command line, the exit code and the output.
    pub(super) fn run(&mut self, place: &Place, args: &[&str]) -> Ran {
        let command = place.command(args);
        self.run_command(place, command)
    }

    /// Runs the tool until its output is as the test needs it, and records that output. What is
    /// known of a node when the result is decided may differ.
    pub(super) fn run_until(
        &mut self,
        place: &Place,
        args: &[&str],
        is_wanted: impl Fn(&Ran) -> bool,
    ) {
        let line = command_line(&place.command(args));
        let ran = eventually("the output is as wanted", || {
            Some(place.run(args)).filter(&is_wanted)
        });
        self.record(place, &line, &ran);
    }

    /// Like [`run`](Self::run), for a command that the test has prepared.
    pub(super) fn run_command(&mut self, place: &Place, mut command: Command) -> Ran {
        let line = command_line(&command);
        let ran = Running::start(&mut command).end();
        self.record(place, &line, &ran);
        ran
    }

    /// Records a command that has ended already.
    pub(super) fn record(&mut self, place: &Place, line: &str, ran: &Ran) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let mut text = format!("$ {line}\n[exit {}]\n", ran.code);
        for (stream, output) in [("stdout", &ran.out), ("stderr", &ran.err)] {
            if !output.is_empty() {
                text += &format!("[{stream}]\n{}\n", output.trim_end_matches('\n'));
            }
        }
        self.text += &self.masked(place, &text);
    }

    /// Records the configuration file of the commands that follow.
    pub(super) fn heading(&mut self, file: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let lines = file.lines().map(|line| format!("| {line}\n"));
        self.text += "leasehold.toml:\n";
        self.text.extend(lines);
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn masked(&self, place: &Place, text: &str) -> String {
        let mut text = text.to_owned();
        for (value, mask) in &self.known {
            text = text.replace(value, mask);
        }
        text = text.replace(&*place.dir.path().to_string_lossy(), "DIR");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        text = text.replace(&format!("{} pid ", host.trim()), "HOST pid ");
        text = text.replace(
            &format!("\"host\":\"{}\"", host.trim()),
            "\"host\":\"HOST\"",
        );
        text.split_inclusive('\n').map(masked_line).collect()
    }
}

/// The command as a user would type it, with the nodes that the environment names.
fn command_line(command: &Command) -> String {
    let mut words = Vec::new();
    for (key, value) in command.get_envs() {
        let key = key.to_string_lossy();
        let is_none = value.is_some_and(|value| value == crate::NO_CONFIG);
        let is_shown = key.starts_with("LEASEHOLD_") && !is_none;
        if let Some(value) = value.filter(|_| is_shown) {
            words.push(format!("{key}={}", quoted(&value.to_string_lossy())));
        }
    }
    words.push("leasehold".to_owned());
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    const LONGEST: usize = 200;
    match word {
        word if word.len() > LONGEST => format!("<{} characters>", word.chars().count()),
        word if word.is_empty() || word.contains([' ', '\n', ';', '*', '`', '$']) => {
            format!("'{}'", word.escape_debug())
        }
        word => word.to_owned(),
    }
}

/// Keys of JSON whose numbers differ between runs.
const NUMBERS: [&str; 10] = [
    "at_ms",
    "deadline_ms",
    "fence",
    "held_ms",
    "pid",
    "remaining_ms",
    "since_ms",
    "time_ms",
    "token",
    "waited_ms",
];

/// Waits until the tokens of a new embedded store are behind its clock. Before that, messages do not
/// say since when a lock is held.
pub(super) fn until_tokens_are_times() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

fn masked_line(line: &str) -> String {
    let mut line = mask_words(line);
    for key in NUMBERS {
        line = mask_digits_after(&line, &format!("\"{key}\":"), "0");
    }
    mask_digits_after(&line, "pid ", "PID")
}

fn mask_digits_after(text: &str, start: &str, mask: &str) -> String {
    let mut parts = text.split(start);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        masked += start;
        if rest.len() < part.len() {
            masked += mask;
        }
        masked += rest;
    }
    masked
}

/// Masks tokens, owners, dates, and durations that were measured. Durations that are options
/// stay as they are.
fn mask_words(line: &str) -> String {
    const BEFORE: [&str; 8] = [
        "after", "another", "for", "in", "left", "started", "than", "within",
    ];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-:.".contains(c);
    let mut masked = String::new();
    let mut before = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let bare = word.trim_end_matches([':', '.']);
        let mut following = tail.trim_start().split(|c| !is_part(c));
        let following = following.find(|word| !is_duration(word));
        let is_measured = BEFORE.contains(&before.as_str())
            || matches!(following, Some("ago" | "left"))
            || before == "TIME";
        let mask = match bare {
            bare if is_duration(bare) && is_measured => "TIME",
            bare if is_date(bare) => "DATE",
            bare if is_number(bare, 16) => "TOKEN",
            bare if is_number(bare, 13) => "UNIX-MS",
            bare if bare.len() == 40 && is_hex(bare) => "SECRET",
            bare if bare.len() == 12 && is_hex(bare) => "OWNER",
            bare => bare,
        };
        // Two units of one duration are one value.
        let is_second_unit = mask == "TIME" && before == "TIME";
        if is_second_unit {
            masked.truncate(masked.trim_end().len());
        } else {
            masked += mask;
        }
        masked += &word[bare.len()..];
        if !bare.is_empty() {
            before = mask.to_owned();
        }
        let skipped = tail.find(is_part).unwrap_or(tail.len());
        masked += &tail[..skipped];
        let is_interrupted = word != bare || !tail[..skipped].trim().is_empty();
        if is_interrupted && mask == "TIME" {
            before.clear();
        }
        rest = &tail[skipped..];
    }
    masked
}

/// One number with its unit.
pub(super) fn is_duration(word: &str) -> bool {
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < word.len() && matches!(unit, "ms" | "s" | "m" | "h" | "day" | "days")
}

fn is_date(word: &str) -> bool {
    word.len() == 20 && word.starts_with("20") && word.ends_with('Z') && word.contains('T')
}

/// Times in ms since 1970 have 13 digits, and tokens, which are times in µs, have 16.
fn is_number(word: &str, digits: usize) -> bool {
    word.len() == digits && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hex(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn only_measured_values_are_masked() {
    for (line, masked) in [
        (
            "held by h pid 42 (x) for 1m 3s; expires in 9s unless renewed",
            "held by h pid PID (x) for TIME; expires in TIME unless renewed",
        ),
        (
            "--ttl 5m is longer than the restart guard of 1m",
            "--ttl 5m is longer than the restart guard of 1m",
        ),
        (
            "since  2026-11-17T12:42:18Z (3s ago)",
            "since  DATE (TIME ago)",
        ),
        (
            "owner 0123456789ab, 1m 9s left, fence 1763383338000000",
            "owner OWNER, TIME left, fence TOKEN",
        ),
        (
            "{\"pid\":42,\"token\":1763383338000000,\"since_ms\":null}",
            "{\"pid\":0,\"token\":0,\"since_ms\":null}",
        ),
        ("after 3s, in 250ms: 3s", "after TIME, in TIME: 3s"),
    ] {
        assert_eq!(masked_line(line), masked);
    }
}
