//! Which value of a setting is in force: that of the strongest source that has one.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::file::{ConfigFile, Entry, Level, Position, place};
use super::settings::{Kind, SETTINGS, Setting};
use super::{PROFILE_VARIABLE, find, has};
use crate::args::duration;
use crate::exit::Failure;
use crate::nodes::HIDDEN;

/// Where a value comes from. The strongest source is first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    CommandLine,
    Variable(&'static str),
    Profile(String),
    TopLevel,
}

impl Source {
    /// The smallest number is the strongest source.
    fn rank(&self) -> u8 {
        match self {
            Self::CommandLine => 0,
            Self::Variable(_) => 1,
            Self::Profile(_) => 2,
            Self::TopLevel => 3,
        }
    }

    /// Whether it is the configuration file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::Profile(_) | Self::TopLevel)
    }
}

/// The value of a setting, and its source.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) setting: &'static Setting,
    /// Empty stands for the built-in default.
    pub(crate) values: Vec<OsString>,
    pub(crate) source: Source,
    /// Where each value is in the file.
    pub(crate) positions: Vec<Position>,
    /// What the source says, if the value was cut to half of the TTL.
    pub(crate) cut_from: Option<OsString>,
}

/// The settings of this process that have a value. The others have their built-in defaults.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) given: Vec<Given>,
    pub(crate) file: Option<ConfigFile>,
    pub(crate) profile: Option<String>,
    /// The settings that the command uses.
    used: Vec<&'static Setting>,
    /// Whether the command line has an option about nodes or the configuration.
    pub(super) has_own_options: bool,
}

impl InForce {
    pub(super) const fn nothing() -> Self {
        Self {
            given: Vec::new(),
            file: None,
            profile: None,
            used: Vec::new(),
            has_own_options: false,
        }
    }

    /// All settings that the command uses, with their values.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&'static Setting, Option<&Given>)> {
        self.used
            .iter()
            .map(|setting| (*setting, self.get(setting.key)))
    }

    /// Reads all sources of the settings of a command.
    pub(super) fn resolve(command: &Command, matches: &ArgMatches) -> Result<Self, Failure> {
        let named = matches.get_one::<PathBuf>("config");
        let file = match find::open(named.map(PathBuf::as_path))? {
            Some((path, file)) => Some(ConfigFile::read(path, file)?),
            None => None,
        };
        let profile = profile_name(matches)?;
        let level = match (&profile, &file) {
            (None, _) => None,
            (Some(name), Some(file)) => Some((name, file.profile(name)?)),
            (Some(name), None) => return Err(no_file(name)),
        };
        let mut given = Vec::new();
        let used: Vec<_> = SETTINGS
            .iter()
            .filter(|one| one.applies_to(command))
            .collect();
        let settings = || used.iter().copied();
        let from_line =
            settings().filter_map(|setting| from_command_line(command, matches, setting));
        add(command, matches, &mut given, from_line.collect())?;
        let own = ["config", "profile"]
            .iter()
            .any(|key| matches.contains_id(key));
        let has_own_options = own || !given.is_empty();
        let mut variables = Vec::new();
        // A variable that a stronger source overrides may contain anything.
        for setting in settings().filter(|setting| !is_decided(setting, &given)) {
            variables.extend(from_environment(command, setting)?);
        }
        add(command, matches, &mut given, variables)?;
        let levels = level.map(|(name, level)| (Source::Profile(name.clone()), level));
        let top = file.as_ref().map(|file| (Source::TopLevel, &file.top));
        for (source, level) in levels.into_iter().chain(top) {
            let entries = settings().filter_map(|setting| from_level(setting, level, &source));
            add(command, matches, &mut given, entries.collect())?;
        }
        limit_grace(&mut given);
        Ok(Self {
            given,
            file,
            profile,
            used,
            has_own_options,
        })
    }

    /// Whether there is a configuration file that another process can read.
    pub(crate) fn has_lasting_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_lasting)
    }

    /// The value of a setting, if a source has one.
    pub(crate) fn get(&self, key: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.setting.key == key)
    }

    /// The values that are not on the command line, as defaults for clap, which keeps them for as long
    /// as the process runs.
    pub(super) fn defaults(&self) -> Vec<(&'static str, Vec<&'static OsStr>)> {
        let other = self
            .given
            .iter()
            .filter(|given| given.source != Source::CommandLine && !given.values.is_empty());
        let leaked = |values: &[OsString]| {
            let values = values.iter().map(|value| value.clone().into_boxed_os_str());
            values.map(|value| &*Box::leak(value)).collect()
        };
        other
            .map(|given| (given.setting.key, leaked(&given.values)))
            .collect()
    }

    /// The nodes file, if the nodes come from one.
    pub(super) fn nodes_file(&self) -> Option<&Given> {
        let file = self
            .get("nodes_file")
            .filter(|file| !file.values.is_empty());
        // URLs that were not passed on are stronger than a configuration file.
        file.filter(|file| self.get("nodes").is_none() || !file.source.is_file())
    }

    /// Names a node, counted from 1, and where its URL comes from, if that is not the command line.
    pub(crate) fn node(&self, index: usize) -> String {
        let url = self.get("nodes").zip(index.checked_sub(1));
        let position = url.and_then(|(nodes, at)| nodes.positions.get(at));
        let file = self.nodes_file().and_then(|file| file.values.first());
        match (position.zip(self.file.as_ref()), file, self.get("nodes")) {
            (Some((position, file)), ..) => format!("{}: `nodes`", place(&file.path, *position)),
            (_, Some(path), _) => format!("{}: node {index}", Path::new(path).display()),
            (_, _, Some(given)) if given.source != Source::CommandLine => {
                format!("{}: node {index}", self.source(given))
            }
            _ => format!("node {index}"),
        }
    }

    /// Says where a value comes from.
    pub(crate) fn source(&self, given: &Given) -> String {
        let line = given.positions.first().map_or(0, |position| position.line);
        let file = self
            .file
            .as_ref()
            .map(|file| file.path.display().to_string());
        let at = format!("{}:{line}", file.unwrap_or_default());
        match &given.source {
            Source::CommandLine => "command line".to_owned(),
            Source::Variable(name) => (*name).to_owned(),
            Source::Profile(name) => format!("{at} (profile {name})"),
            Source::TopLevel => at,
        }
    }

    /// Says for each option in an error message that is not on the command line where its value comes
    /// from.
    pub(crate) fn notes(&self, message: &str) -> String {
        let is_named = |given: &&Given| {
            let option = given.setting.option();
            let after = |at: usize| message[at + option.len()..].chars().next();
            let mut found = message.match_indices(&option);
            found
                .any(|(at, _)| !after(at).is_some_and(|next| next == '-' || next.is_alphanumeric()))
        };
        let unclear = [Source::CommandLine, Source::Variable(HIDDEN)];
        let others = self
            .given
            .iter()
            .filter(|given| !unclear.contains(&given.source));
        let notes = others.filter(is_named).map(|given| {
            let (option, source) = (given.setting.option(), self.source(given));
            format!("\nnote: {option} is set by {source}")
        });
        notes.collect()
    }
}

impl Setting {
    /// Whether a command uses the setting. `config` shows all of them.
    pub(super) fn applies_to(&self, command: &Command) -> bool {
        let name = command.get_name();
        name == "config" || (has(command, self.key) && !self.not_for.contains(&name))
    }
}

/// Whether a setting has a value, or is left out because another one excludes it.
fn is_decided(setting: &Setting, given: &[Given]) -> bool {
    given.iter().any(|other| {
        other.setting.key == setting.key
            || setting.excluded_by.contains(&other.setting.key)
                && other.setting.excludes_weaker(&other.values)
    })
}

/// Adds the values of the next weaker source. A setting that has a value keeps it.
fn add(
    command: &Command,
    matches: &ArgMatches,
    given: &mut Vec<Given>,
    next: Vec<Given>,
) -> Result<(), Failure> {
    let is_set = |key: &str, among: &[Given], counts: fn(&Setting, &[OsString]) -> bool| {
        let mut same = among.iter().filter(|given| given.setting.key == key);
        same.any(|given| counts(given.setting, &given.values))
    };
    // Options that are not settings exclude some, too.
    let is_argument = |key: &str| {
        has(command, key) && matches.value_source(key) == Some(ValueSource::CommandLine)
    };
    for one in &next {
        let mut others = one.setting.excluded_by.iter();
        // clap checks the command line, and `ConfigFile` the file.
        if let (Source::Variable(_), true) = (&one.source, one.setting.is_on(&one.values))
            && let Some(other) = others.find(|other| is_set(other, &next, Setting::is_on))
        {
            let other = Setting::of(other).map_or(*other, |other| other.variable);
            return Err(Failure::usage(format!(
                "{} and {other} are both set; unset one of them",
                one.setting.variable
            )));
        }
    }
    let stronger = given.len();
    for one in next {
        let (before, _) = given.split_at(stronger);
        let excluded =
            |other: &str| is_set(other, before, Setting::excludes_weaker) || is_argument(other);
        let is_known = before
            .iter()
            .any(|given| given.setting.key == one.setting.key);
        if !is_known && !one.setting.excluded_by.iter().any(|other| excluded(other)) {
            given.push(one);
        }
    }
    Ok(())
}

fn from_command_line(
    command: &Command,
    matches: &ArgMatches,
    setting: &'static Setting,
) -> Option<Given> {
    if !has(command, setting.key) {
        return None;
    }
    if matches.value_source(setting.key) != Some(ValueSource::CommandLine) {
        return None;
    }
    let values = matches.get_raw(setting.key)?.map(OsStr::to_owned);
    Some(Given {
        setting,
        values: values.collect(),
        source: Source::CommandLine,
        positions: Vec::new(),
        cut_from: None,
    })
}

fn from_environment(
    command: &Command,
    setting: &'static Setting,
) -> Result<Option<Given>, Failure> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|text| !text.is_empty());
    let of_lease = setting.lease_variable(command.get_name()).filter(is_set);
    let variable = of_lease.unwrap_or(setting.variable);
    let given = |values, variable| Given {
        setting,
        values,
        source: Source::Variable(variable),
        positions: Vec::new(),
        cut_from: None,
    };
    let Some(text) = std::env::var_os(variable) else {
        let is_hidden = setting.key == "nodes" && std::env::var_os(HIDDEN).is_some();
        return Ok(is_hidden.then(|| given(Vec::new(), HIDDEN)));
    };
    let values = setting.read_variable(&text);
    let values = values
        .map_err(|why| Failure::usage(format!("{variable} ({}): {why}", setting.option())))?;
    match setting.kind == Kind::Urls && values.is_empty() {
        true => Err(Failure::usage(format!(
            "{variable} is set but contains no URL; unset it, or set it to `local:` to use the embedded \
             store"
        ))),
        false => Ok(Some(given(values, variable))),
    }
}

fn from_level(setting: &'static Setting, level: &Level, source: &Source) -> Option<Given> {
    let Entry { values, positions } = level.get(setting.key)?.clone();
    Some(Given {
        setting,
        values,
        source: source.clone(),
        positions,
        cut_from: None,
    })
}

/// A grace period of more than half of the TTL is an error. If a stronger source has a shorter TTL,
/// the grace period of a weaker one is cut instead: the user did not choose them together.
fn limit_grace(given: &mut [Given]) {
    let time = |given: &Given| match given.values.first() {
        Some(value) => duration(value.to_str()?).ok(),
        None => duration(given.setting.default).ok(),
    };
    let find = |key: &str| given.iter().position(|given| given.setting.key == key);
    let (Some(ttl), Some(grace)) = (find("ttl"), find("grace")) else {
        return;
    };
    let is_weaker = given[ttl].source.rank() < given[grace].source.rank();
    if let (true, Some(ttl), Some(long)) = (is_weaker, time(&given[ttl]), time(&given[grace]))
        && long > ttl / 2
    {
        let half: Duration = ttl / 2;
        let cut = vec![format!("{}ms", half.as_millis()).into()];
        let before = std::mem::replace(&mut given[grace].values, cut);
        given[grace].cut_from = before.into_iter().next();
    }
}

/// The profile that was named.
fn profile_name(matches: &ArgMatches) -> Result<Option<String>, Failure> {
    if let Some(name) = matches.get_one::<String>("profile") {
        return Ok(Some(name.clone()));
    }
    let variable = std::env::var_os(PROFILE_VARIABLE).filter(|name| !name.is_empty());
    let name = variable.map(OsString::into_string).transpose();
    name.map_err(|_| Failure::usage(format!("{PROFILE_VARIABLE} is not valid UTF-8")))
}

fn no_file(profile: &str) -> Failure {
    let places = find::places();
    let places = places.iter().map(|path| format!("\n  {}", path.display()));
    Failure::usage(format!(
        "there is no profile `{profile}`, because there is no configuration file; name it with --config, \
         or create one of:{}",
        places.collect::<String>()
    ))
}
