//! The table of settings: what a variable, a configuration file and a profile can set.

use std::ffi::{OsStr, OsString};

use crate::args::{duration, guard};
use crate::nodes::split;

/// An option that has a default outside of the command line.
///
/// Options that say what a command does (`--shared`, `--permits`, `--yes`, `-o` and others) are not
/// here: a nested `leasehold` inherits variables, and must not do something else because of them.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its key in the file, and the id of its argument in `args.rs`. A dot separates a table of the
    /// file from the key in it.
    pub(crate) key: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) kind: Kind,
    /// The built-in default, in words.
    pub(crate) default: &'static str,
    /// Other arguments that exclude it: if a stronger source sets one of them, this setting is left
    /// out, and one source must not set both.
    pub(crate) excluded_by: &'static [&'static str],
    /// Commands that have the argument and do not use the setting.
    pub(crate) not_for: &'static [&'static str],
    /// Why it cannot be in a file, if it cannot.
    pub(crate) not_in_file: Option<&'static str>,
    /// Whether it is about the nodes: `run` passes it on to a `leasehold` in its command.
    pub(crate) is_passed_on: bool,
    /// A command, and a variable of its lease that this command reads first. It describes the lease
    /// and is no default, so an empty one counts as not set.
    of_lease: Option<(&'static str, &'static str)>,
}

/// What the value of a setting looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// In a file, it is relative to the directory of the file.
    Path,
    /// `true` or `false`.
    Flag,
    Time,
    /// A time or `off`.
    TimeOrOff,
    /// A whole number from 0 to this one.
    Number(u64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// URLs of nodes.
    Urls,
    /// Ids of the checks of `doctor`.
    Checks,
}

/// Every setting. To add one, add its argument to `args.rs` and a line here. Tests compare the table
/// with the arguments and with docs/configuration.md.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::of_nodes("nodes", "LEASEHOLD_NODES", Kind::Urls, "local:").unless(&["nodes_file"]),
    Setting::of_nodes("nodes_file", "LEASEHOLD_NODES_FILE", Kind::Path, "none").unless(&["nodes"]),
    Setting::of_nodes("prefix", "LEASEHOLD_PREFIX", Kind::Text, "none"),
    Setting::of_nodes(
        "restart_guard",
        "LEASEHOLD_RESTART_GUARD",
        Kind::TimeOrOff,
        "60s for three or more nodes, otherwise off",
    ),
    Setting::of_nodes("replicas", "LEASEHOLD_REPLICAS", Kind::Number(64), "0")
        .unless(&["prefer_replicas"]),
    Setting::of_nodes("prefer_replicas", "LEASEHOLD_PREFER_REPLICAS", Kind::Number(64), "0")
        .unless(&["replicas"]),
    Setting::new("assume_fresh", "LEASEHOLD_ASSUME_FRESH", Kind::Flag, "false").never_in_file(
        "it is for the first start of new servers; in a file, it would also let servers vote that have \
         lost their locks in a restart. Use `leasehold init`, or --assume-fresh once",
    ),
    Setting::of_nodes("history", "LEASEHOLD_HISTORY", Kind::Flag, "false"),
    Setting::of_nodes("tls.ca", "LEASEHOLD_TLS_CA", Kind::Path, "Mozilla's list"),
    Setting::of_nodes("tls.cert", "LEASEHOLD_TLS_CERT", Kind::Path, "none"),
    Setting::of_nodes("tls.key", "LEASEHOLD_TLS_KEY", Kind::Path, "none"),
    Setting::new("ttl", "LEASEHOLD_TTL", Kind::Time, "10s"),
    Setting::new("acquire_ttl", "LEASEHOLD_ACQUIRE_TTL", Kind::Time, "60s")
        .of_lease("extend", "LEASEHOLD_LEASE_TTL"),
    Setting::new("wait", "LEASEHOLD_WAIT", Kind::Time, "no limit")
        .unless(&["no_wait", "skip", "clear"]),
    Setting::new("no_wait", "LEASEHOLD_NO_WAIT", Kind::Flag, "false").unless(&["wait"]),
    // `acquire` refuses the exit code 0, which cron jobs use, so it does not take the setting.
    Setting::new("conflict_exit_code", "LEASEHOLD_CONFLICT_EXIT_CODE", Kind::Number(255), "75")
        .except(&["acquire"]),
    Setting::new("label", "LEASEHOLD_LABEL", Kind::Text, "none"),
    Setting::new("at_most_for", "LEASEHOLD_AT_MOST_FOR", Kind::Time, "no limit")
        .unless(&["inherit"]),
    Setting::new("at_least_for", "LEASEHOLD_AT_LEAST_FOR", Kind::Time, "0s").unless(&["inherit"]),
    Setting::new("grace", "LEASEHOLD_GRACE", Kind::Time, "5s, or half of ttl if that is less"),
    Setting::new("on_lost", "LEASEHOLD_ON_LOST", Kind::Choice(&["kill", "warn"]), "kill"),
    Setting::new("quiet", "LEASEHOLD_QUIET", Kind::Flag, "false").unless(&["verbose", "json"]),
    // `doctor -v` shows more checks, which is something else.
    Setting::new("verbose", "LEASEHOLD_VERBOSE", Kind::Flag, "false")
        .unless(&["quiet"])
        .except(&["doctor"]),
    Setting::new("json", "LEASEHOLD_JSON", Kind::Flag, "false").unless(&["quiet"]),
    Setting::new("accept", "LEASEHOLD_ACCEPT", Kind::Checks, "none"),
    Setting::new("strict", "LEASEHOLD_STRICT", Kind::Flag, "false"),
];

impl Setting {
    const fn new(
        key: &'static str,
        variable: &'static str,
        kind: Kind,
        default: &'static str,
    ) -> Self {
        Self {
            key,
            variable,
            kind,
            default,
            excluded_by: &[],
            not_for: &[],
            not_in_file: None,
            is_passed_on: false,
            of_lease: None,
        }
    }

    /// A setting that all clients of the nodes must agree on.
    const fn of_nodes(
        key: &'static str,
        variable: &'static str,
        kind: Kind,
        default: &'static str,
    ) -> Self {
        let mut setting = Self::new(key, variable, kind, default);
        setting.is_passed_on = true;
        setting
    }

    const fn unless(mut self, others: &'static [&'static str]) -> Self {
        self.excluded_by = others;
        self
    }

    const fn except(mut self, commands: &'static [&'static str]) -> Self {
        self.not_for = commands;
        self
    }

    const fn never_in_file(mut self, why: &'static str) -> Self {
        self.not_in_file = Some(why);
        self
    }

    const fn of_lease(mut self, command: &'static str, variable: &'static str) -> Self {
        self.of_lease = Some((command, variable));
        self
    }

    /// The variable of a lease that this command reads before [`variable`](Self::variable).
    pub(super) fn lease_variable(&self, command: &str) -> Option<&'static str> {
        let of_lease = self.of_lease.filter(|(of, _)| *of == command);
        of_lease.map(|(_, variable)| variable)
    }

    /// The setting with this key.
    pub(crate) fn of(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// The option of the command line.
    pub(crate) fn option(&self) -> String {
        match self.key {
            "nodes" => "--node".to_owned(),
            "acquire_ttl" => "--ttl".to_owned(),
            key => format!("--{}", key.replace(['_', '.'], "-")),
        }
    }

    /// Whether a value turns the setting on. `false` and an empty value exclude nothing.
    pub(crate) fn is_on(&self, values: &[OsString]) -> bool {
        !values.is_empty() && (self.kind != Kind::Flag || values[0] == "true")
    }

    /// Whether a value excludes settings of weaker sources. An empty `wait` does: without a limit is not
    /// `no_wait`.
    pub(crate) fn excludes_weaker(&self, values: &[OsString]) -> bool {
        self.key == "wait" || self.is_on(values)
    }

    /// Reads the text of a variable. Empty means the built-in default.
    pub(crate) fn read_variable(&self, text: &OsStr) -> Result<Vec<OsString>, String> {
        if self.kind == Kind::Path {
            return Ok(match text.is_empty() {
                true => Vec::new(),
                false => vec![text.to_owned()],
            });
        }
        let Some(text) = text.to_str() else {
            return Err("it is not valid UTF-8".to_owned());
        };
        let values: Vec<_> = match self.kind {
            Kind::Urls | Kind::Checks => split(text),
            // The words that other programs accept.
            Kind::Flag => vec![match &*text.to_ascii_lowercase() {
                "1" | "true" | "yes" | "y" | "on" | "t" => "true".to_owned(),
                "" | "0" | "false" | "no" | "n" | "off" | "f" => "false".to_owned(),
                _ => text.to_owned(),
            }],
            _ if text.is_empty() => Vec::new(),
            _ => vec![text.to_owned()],
        };
        for value in &values {
            self.kind.check(value)?;
        }
        Ok(values.into_iter().map(OsString::from).collect())
    }
}

impl Kind {
    /// Checks one value. URLs are checked by the library, when the nodes are used.
    pub(crate) fn check(self, value: &str) -> Result<(), String> {
        match self {
            Self::Text | Self::Path | Self::Urls => Ok(()),
            Self::Time => duration(value).map(|_| ()).map_err(|why| not(value, &why)),
            Self::TimeOrOff => guard(value)
                .map(|_| ())
                .map_err(|why| not(value, &format!("{why}, or `off`"))),
            Self::Flag => one_of(value, &["true", "false"]),
            Self::Choice(words) => one_of(value, words),
            Self::Number(max) => match value.parse::<u64>() {
                Ok(number) if number <= max => Ok(()),
                _ => Err(format!("`{value}` is not a whole number from 0 to {max}")),
            },
            Self::Checks => {
                let ids = leasehold::doctor::Check::ALL.iter().map(|check| check.id());
                let ids: Vec<_> = ids.collect();
                match (ids.contains(&value), nearest(value, ids.iter().copied())) {
                    (true, _) => Ok(()),
                    (false, Some(near)) => Err(format!(
                        "there is no check `{value}`; did you mean `{near}`?"
                    )),
                    (false, None) => Err(format!(
                        "there is no check `{value}`; `leasehold doctor --help` lists them"
                    )),
                }
            }
        }
    }

    /// What a value in a file looks like, for errors.
    pub(crate) const fn example(self) -> &'static str {
        match self {
            Self::Text => "a text, such as \"app:\"",
            Self::Path => "a path in quotes, such as \"/etc/leasehold/ca.pem\"",
            Self::Flag => "true or false, without quotes",
            Self::Time => "a time, such as \"30s\", or a number of seconds",
            Self::TimeOrOff => "a time, such as \"60s\", a number of seconds, or \"off\"",
            Self::Number(_) => "a whole number",
            Self::Choice(_) => "a word in quotes",
            Self::Urls => "a list of URLs, such as [\"redis://10.0.0.1\"]",
            Self::Checks => "a list of the ids of checks, such as [\"set\"]",
        }
    }

    pub(crate) const fn is_list(self) -> bool {
        matches!(self, Self::Urls | Self::Checks)
    }
}

fn not(value: &str, why: &str) -> String {
    format!("`{value}` is not a time: {why}")
}

fn one_of(value: &str, words: &[&str]) -> Result<(), String> {
    match words.contains(&value) {
        true => Ok(()),
        false => Err(format!("`{value}` is not one of: {}", words.join(", "))),
    }
}

/// The name that was probably meant.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const SIMILAR: f64 = 0.75;
    // `-` instead of `_` is the most frequent mistake.
    let name = name.replace('-', "_");
    let scored = names.map(|other| (strsim::jaro_winkler(&name, &other.replace('-', "_")), other));
    let near = scored.filter(|(score, _)| *score > SIMILAR);
    near.max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_an_argument_and_has_a_variable() {
        let command = crate::config::complete();
        let commands: Vec<_> = command.get_subcommands().collect();
        for setting in SETTINGS {
            let variable = setting.key.to_uppercase().replace('.', "_");
            assert_eq!(setting.variable, format!("LEASEHOLD_{variable}"));
            let mut arguments = commands.iter().flat_map(|command| command.get_arguments());
            let argument = arguments.find(|argument| argument.get_id() == setting.key);
            let option = argument
                .and_then(clap::Arg::get_long)
                .map(|long| format!("--{long}"));
            assert_eq!(option, Some(setting.option()), "{}", setting.key);
            for name in setting.not_for {
                assert!(commands.iter().any(|command| command.get_name() == *name));
            }
        }
    }

    #[test]
    fn settings_exclude_each_other_in_both_directions() {
        for setting in SETTINGS {
            for other in setting
                .excluded_by
                .iter()
                .filter_map(|key| Setting::of(key))
            {
                assert!(other.excluded_by.contains(&setting.key), "{}", other.key);
            }
        }
    }

    #[test]
    fn values_of_variables() {
        let read = |key: &str, text: &str| {
            let values = Setting::of(key)?.read_variable(OsStr::new(text));
            values
                .ok()
                .map(|values| values.join(OsStr::new("|")).into_string().unwrap())
        };
        assert_eq!(read("nodes", " a , b ,"), Some("a|b".to_owned()));
        assert_eq!(read("quiet", "YES"), Some("true".to_owned()));
        assert_eq!(read("quiet", "0"), Some("false".to_owned()));
        assert_eq!(read("quiet", "maybe"), None);
        assert_eq!(read("wait", ""), Some(String::new()));
        assert_eq!(read("wait", "soon"), None);
        assert_eq!(read("conflict_exit_code", "256"), None);
        assert_eq!(read("on_lost", "ignore"), None);
        assert_eq!(read("accept", "no-such-check"), None);
        assert_eq!(read("restart_guard", "off"), Some("off".to_owned()));
    }

    #[test]
    fn typing_errors_are_recognised() {
        let keys = || SETTINGS.iter().map(|setting| setting.key);
        for (typed, meant) in [
            ("tll", Some("ttl")),
            ("node", Some("nodes")),
            ("nodes-file", Some("nodes_file")),
            ("on-lost", Some("on_lost")),
            ("colour", None),
        ] {
            assert_eq!(nearest(typed, keys()), meant, "{typed}");
        }
    }
}
