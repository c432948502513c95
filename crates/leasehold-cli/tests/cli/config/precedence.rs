//! Every setting, from every source.

use serde_json::{Value, json};

use super::{setting, settings, settings_of_any_file, write};
use crate::{Place, Running};

/// A value as the command line, a variable and a file have it.
#[derive(Clone, Copy)]
enum Sample {
    /// A text, a path or a time.
    Text([&'static str; 4]),
    Flag,
    Number([u64; 4]),
    List([&'static str; 4]),
}

/// Four values of each setting, from the strongest source to the weakest, and a command that uses it.
const SAMPLES: [(&str, &str, &[&str], Sample); 26] = {
    use Sample::{Flag, List, Number, Text};
    const TIMES: Sample = Text(["4s", "3s", "2s", "1s"]);
    const PATHS: Sample = Text(["/d", "/c", "/b", "/a"]);
    const URLS: [&str; 4] = ["redis://d", "redis://c", "redis://b", "redis://a"];
    const RUN: &[&str] = &["run", "x", "-c", "true"];
    const DOCTOR: &[&str] = &["doctor"];
    [
        ("nodes", "--node", RUN, List(URLS)),
        ("nodes_file", "--nodes-file", RUN, PATHS),
        ("prefix", "--prefix", &["ls"], Text(["d", "c", "b", "a"])),
        (
            "restart_guard",
            "--restart-guard",
            RUN,
            Text(["off", "3s", "2s", "1s"]),
        ),
        ("replicas", "--replicas", RUN, Number([1, 2, 3, 4])),
        (
            "prefer_replicas",
            "--prefer-replicas",
            RUN,
            Number([1, 2, 3, 4]),
        ),
        ("assume_fresh", "--assume-fresh", &["init"], Flag),
        ("history", "--history", RUN, Flag),
        ("tls.ca", "--tls-ca", &["show", "x"], PATHS),
        ("tls.cert", "--tls-cert", RUN, PATHS),
        ("tls.key", "--tls-key", RUN, PATHS),
        ("ttl", "--ttl", RUN, TIMES),
        ("acquire_ttl", "--ttl", &["acquire", "x"], TIMES),
        (
            "wait",
            "--wait",
            &["once", "x", "--for", "1h", "-c", "true"],
            TIMES,
        ),
        ("no_wait", "--no-wait", &["acquire", "x"], Flag),
        (
            "conflict_exit_code",
            "-E",
            &["wait", "x"],
            Number([4, 3, 2, 1]),
        ),
        ("label", "--label", RUN, Text(["d", "c", "b", "a"])),
        ("at_most_for", "--at-most-for", RUN, TIMES),
        ("at_least_for", "--at-least-for", RUN, TIMES),
        ("grace", "--grace", &["elect", "x", "-c", "true"], TIMES),
        (
            "on_lost",
            "--on-lost",
            RUN,
            Text(["warn", "kill", "warn", "kill"]),
        ),
        ("quiet", "--quiet", &["wait", "x"], Flag),
        ("verbose", "--verbose", &["elect", "x", "-c", "true"], Flag),
        ("json", "--json", RUN, Flag),
        (
            "accept",
            "--accept",
            DOCTOR,
            List(["set", "auth", "tls", "role"]),
        ),
        ("strict", "--strict", DOCTOR, Flag),
    ]
};

const COMMAND_LINE: usize = 0;
const VARIABLE: usize = 1;
const PROFILE: usize = 2;
const TOP_LEVEL: usize = 3;
const DEFAULT: usize = 4;

impl Sample {
    /// The value of a source, if `strongest` is the strongest source that sets it.
    fn value(self, source: usize, strongest: usize) -> Value {
        match self {
            Self::Text(texts) => json!(texts[source]),
            Self::Number(numbers) => json!(numbers[source]),
            Self::List(items) => json!([items[source]]),
            // The weaker sources have the opposite.
            Self::Flag => json!(source == strongest),
        }
    }

    /// As a variable or an argument.
    fn text(self, source: usize, strongest: usize) -> String {
        match self.value(source, strongest) {
            Value::String(text) => text,
            Value::Array(items) => items[0].as_str().expect("a text").to_owned(),
            value => value.to_string(),
        }
    }

    /// As a line of a file: JSON is TOML for these values.
    fn line(self, key: &str, source: usize, strongest: usize) -> String {
        format!("{key} = {}\n", self.value(source, strongest))
    }
}

/// What `leasehold config` shows if the sources from `strongest` to the weakest have a value.
fn shown(place: &Place, strongest: usize, sample: &(&str, &str, &[&str], Sample)) -> Value {
    let (key, option, command, sample) = *sample;
    let mut file = String::new();
    if strongest <= TOP_LEVEL && key != "assume_fresh" {
        file += &sample.line(key, TOP_LEVEL, strongest);
    }
    file += "[profile.p]\n";
    if strongest <= PROFILE && key != "assume_fresh" {
        file += &sample.line(key, PROFILE, strongest);
    }
    place.configure(&file);
    let text = sample.text(COMMAND_LINE, strongest);
    let mut args = vec!["config", "-o", "json", "--", command[0]];
    match sample {
        _ if strongest > COMMAND_LINE => {}
        Sample::Flag => args.push(option),
        _ => args.extend([option, &text]),
    }
    args.extend(&command[1..]);
    let mut process = place.configured(&args);
    if strongest <= VARIABLE {
        let variable = format!("LEASEHOLD_{}", key.replace('.', "_").to_uppercase());
        process.env(variable, sample.text(VARIABLE, strongest));
    }
    // The files of the samples do not exist.
    settings_of_any_file(process.env("LEASEHOLD_PROFILE", "p"))
}

#[test]
fn every_setting_from_every_source() {
    let place = Place::local();
    let all = settings(
        place
            .command(&["config", "-o", "json"])
            .env_remove("LEASEHOLD_NODES"),
    );
    let all = all["settings"].as_array().expect("a list").iter();
    let known: Vec<_> = SAMPLES.iter().map(|sample| sample.0).collect();
    assert_eq!(
        all.map(|row| row["key"].as_str().expect("a key"))
            .collect::<Vec<_>>(),
        known
    );
    for sample in &SAMPLES {
        let (key, .., values) = sample;
        for (strongest, source) in ["command_line", "variable", "profile", "file", "default"]
            .iter()
            .enumerate()
        {
            if *key == "assume_fresh" && [PROFILE, TOP_LEVEL].contains(&strongest) {
                continue;
            }
            let shown = shown(&place, strongest, sample);
            let row = setting(&shown, key);
            assert_eq!(row["source"], *source, "{key}: {row}");
            let expected = match strongest {
                DEFAULT => Value::Null,
                strongest => values.value(strongest, strongest),
            };
            assert_eq!(row["value"], expected, "{key} from {source}");
        }
    }
}

/// A stronger source that sets one of two settings that exclude each other decides.
#[test]
fn settings_that_exclude_each_other() {
    let place = Place::local();
    write(&place.file(".config/leasehold/n"), "redis://b\n");
    write(&place.file("f"), "redis://b\n");
    place.configure(
        "nodes = [\"redis://a\"]\nwait = \"1s\"\nquiet = true\nat_most_for = \"1s\"\n\
         [profile.p]\nnodes_file = \"n\"\nno_wait = true\nverbose = true\n\
         [profile.loud]\nquiet = false\n",
    );
    let source = |variables: &[(&str, &str)], args: &[&str], key: &str| {
        let args = [&["config", "-o", "json", "--"], args].concat();
        let mut command = place.configured(&args);
        command.envs(variables.iter().copied());
        setting(&settings(&mut command), key)["source"].clone()
    };
    let run = ["run", "x", "-c", "true"];
    let with = |options: &[&'static str]| [&run[..], options].concat();
    assert_eq!(source(&[], &run, "wait"), "file");
    for (variables, args, weaker) in [
        (&[][..], with(&["-n"]), "wait"),
        (&[("LEASEHOLD_NO_WAIT", "1")], with(&[]), "wait"),
        (&[], with(&["-v"]), "quiet"),
        (&[("LEASEHOLD_JSON", "yes")], with(&[]), "quiet"),
        (&[], with(&["--inherit"]), "at_most_for"),
        (&[], with(&["--profile", "p"]), "wait"),
        (&[], with(&["--profile", "p"]), "nodes"),
        (&[], with(&["--profile", "p"]), "quiet"),
        (&[], with(&["--nodes-file", "f"]), "nodes"),
        (
            &[],
            vec!["once", "x", "--for", "1s", "--skip", "-c", "true"],
            "wait",
        ),
    ] {
        let expected = match weaker {
            "nodes" => "nodes_file",
            _ => "default",
        };
        assert_eq!(
            source(variables, &args, weaker),
            expected,
            "{args:?} {weaker}"
        );
    }
    // `false` excludes nothing, and an empty text is the default.
    assert_eq!(source(&[("LEASEHOLD_NO_WAIT", "0")], &run, "wait"), "file");
    assert_eq!(
        source(&[], &with(&["--profile", "loud"]), "quiet"),
        "profile"
    );
    assert_eq!(source(&[("LEASEHOLD_WAIT", "")], &run, "wait"), "variable");
    // Without a limit: `no_wait` of a weaker source has no effect.
    place.configure("no_wait = true\n[profile.patient]\nwait = \"\"\n");
    assert_eq!(source(&[], &run, "no_wait"), "file");
    let patient = with(&["--profile", "patient"]);
    for (variables, args) in [(&[("LEASEHOLD_WAIT", "")][..], &run[..]), (&[], &patient)] {
        assert_eq!(source(variables, args, "no_wait"), "default");
    }
    // In one place, an empty text excludes nothing.
    let both = [("LEASEHOLD_WAIT", ""), ("LEASEHOLD_NO_WAIT", "1")];
    assert_eq!(source(&both, &run, "no_wait"), "variable");
}

/// A shorter TTL of a stronger source shortens the grace period of a weaker one. In one place, they
/// must fit.
#[test]
fn a_shorter_ttl_shortens_the_grace_period() {
    let place = Place::local();
    place.configure("ttl = \"20s\"\ngrace = \"9s\"\n");
    let ran = place.run_configured(&["run", "x", "--ttl", "10s", "--", "true"]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let line = ["config", "--", "run", "x", "--ttl", "10s", "-c", "true"];
    let shown = place.run_configured(&line).out;
    let says =
        "5000ms                                      leasehold.toml:2: 9s, cut to half of ttl";
    assert!(shown.contains(says), "{shown}");
    let mut command = place.configured(&[&["config", "-o", "json"], &line[1..]].concat());
    let row = setting(&settings(&mut command), "grace").clone();
    assert_eq!(row["cut_from"], "9s", "{row}");
    // An empty text is the default, 10s.
    let mut command = place.configured(&["run", "x", "--", "true"]);
    let ran = Running::start(command.env("LEASEHOLD_TTL", "")).end();
    assert_eq!((ran.code, &*ran.err), (0, ""));
    let path = place.configure("ttl = \"10s\"\ngrace = \"9s\"\n");
    let ran = place.run_configured(&["run", "x", "--", "true"]);
    assert_eq!(ran.code, 64, "{}", ran.err);
    for (option, line) in [("--ttl", 1), ("--grace", 2)] {
        let note = format!("note: {option} is set by {}:{line}", path.display());
        assert!(ran.err.contains(&note), "{}", ran.err);
    }
}

/// A wrong value in a variable has no effect if the command line has another one.
#[test]
fn a_variable_that_is_overridden_is_not_read() {
    let place = Place::local();
    for (variable, value, args) in [
        (
            "LEASEHOLD_TTL",
            "abc",
            &["run", "x", "--ttl", "5s", "--", "true"][..],
        ),
        ("LEASEHOLD_NODES", "", &["ls", "--node", "local:"]),
        (
            "LEASEHOLD_NO_WAIT",
            "maybe",
            &["run", "x", "--wait", "1s", "--", "true"],
        ),
    ] {
        let mut command = place.configured(args);
        let ran = Running::start(command.env(variable, value)).end();
        assert_eq!((ran.code, &*ran.err), (0, ""), "{variable}");
    }
    let mut command = place.configured(&["run", "x", "--", "true"]);
    let ran = Running::start(command.env("LEASEHOLD_TTL", "abc")).end();
    assert_eq!(ran.code, 64, "{}", ran.err);
}
