//! Reads a configuration file: the settings at its top level, and those of its profiles.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{Kind, SETTINGS, Setting, nearest};
use crate::exit::Failure;
use crate::node_url::has_password;
use crate::private_file::{OpenFile, refuse_access_of_others};

/// Where something is in the file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// A setting in the file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Empty stands for the built-in default.
    pub(crate) values: Vec<OsString>,
    /// Where each value is. The first is the place of the key if there is no value.
    pub(crate) positions: Vec<Position>,
}

/// The settings of the top level or of one profile, by their keys.
pub(crate) type Level = BTreeMap<&'static str, Entry>;

/// A configuration file.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// Whether another process that opens the path reads the same text. A pipe can be read only once.
    pub(crate) is_lasting: bool,
    pub(crate) top: Level,
    pub(crate) profiles: BTreeMap<String, Level>,
}

/// The table that contains the profiles.
const PROFILES: &str = "profile";

type Entries<'a> = Vec<(
    &'a Spanned<std::borrow::Cow<'a, str>>,
    &'a Spanned<DeValue<'a>>,
)>;

impl ConfigFile {
    /// Reads and checks the whole file, including profiles that are not used.
    pub(crate) fn read(path: PathBuf, file: OpenFile) -> Result<Self, Failure> {
        let (mode, is_regular) = (file.mode, file.is_regular);
        let is_lasting = file.is_lasting(&path);
        let text = file.read().map_err(|error| {
            let path = path.display();
            Failure::usage(format!(
                "cannot read the configuration file {path}: {error}"
            ))
        })?;
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        let reader = Reader {
            path: &path,
            text: &text,
            lines: std::iter::once(0).chain(breaks).collect(),
        };
        let (top, profiles) = reader.read()?;
        let file = Self {
            path,
            is_lasting,
            top,
            profiles,
        };
        if is_regular && file.has_password() {
            let what = format!(
                "the configuration file {} contains a password",
                file.path.display()
            );
            refuse_access_of_others(&file.path, mode, &what).map_err(Failure::usage)?;
        }
        Ok(file)
    }

    fn has_password(&self) -> bool {
        let levels = self.profiles.values().chain([&self.top]);
        let mut urls = levels
            .filter_map(|level| level.get("nodes"))
            .flat_map(|nodes| &nodes.values);
        urls.any(|url| url.to_str().is_some_and(has_password))
    }

    /// The settings of a profile.
    pub(crate) fn profile(&self, name: &str) -> Result<&Level, Failure> {
        let path = self.path.display();
        self.profiles.get(name).ok_or_else(|| {
            let names: Vec<_> = self.profiles.keys().map(String::as_str).collect();
            Failure::usage(match &*names {
                [] => format!("there is no profile `{name}`: {path} has no profiles"),
                names => format!(
                    "there is no profile `{name}` in {path}; its profiles are: {}",
                    names.join(", ")
                ),
            })
        })
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl Reader<'_> {
    fn read(&self) -> Result<(Level, BTreeMap<String, Level>), Failure> {
        let table = DeTable::parse(self.text).map_err(|error| {
            // The message of the library, without the line of the file, which may have a password.
            let message = error
                .message()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            let span = error.span().unwrap_or(0..0);
            self.error(&span, &format!("this is not valid TOML: {message}"))
        })?;
        let mut profiles = BTreeMap::new();
        let mut top = Level::new();
        for (key, value) in sorted(table.get_ref()) {
            match (&**key.get_ref(), value.get_ref()) {
                (PROFILES, DeValue::Table(named)) => {
                    for (name, level) in sorted(named) {
                        profiles.insert(name.get_ref().to_string(), self.profile(name, level)?);
                    }
                }
                (PROFILES, _) => {
                    let why = "`profile` must be a table: write [profile.NAME]";
                    return Err(self.error(&key.span(), why));
                }
                _ => self.entry("", key, value, &mut top)?,
            }
        }
        self.refuse_both(&top)?;
        Ok((top, profiles))
    }

    fn profile(
        &self,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Level, Failure> {
        let DeValue::Table(entries) = value.get_ref() else {
            let name = name.get_ref();
            let why = format!("the profile `{name}` must be a table: write [profile.{name}]");
            return Err(self.error(&value.span(), &why));
        };
        let mut level = Level::new();
        for (key, value) in sorted(entries) {
            self.entry("", key, value, &mut level)?;
        }
        self.refuse_both(&level)?;
        Ok(level)
    }

    /// Reads a key and its value, or a table of keys.
    fn entry(
        &self,
        table: &str,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        level: &mut Level,
    ) -> Result<(), Failure> {
        let name = format!("{table}{}", key.get_ref());
        let prefix = format!("{name}.");
        match (Setting::of(&name), value.get_ref()) {
            (Some(setting), _) => {
                if let Some(why) = setting.not_in_file {
                    let text = format!("`{name}` cannot be set in a file: {why}");
                    return Err(self.error(&key.span(), &text));
                }
                let entry = self.value(setting, key.span(), value)?;
                level.insert(setting.key, entry);
                Ok(())
            }
            (None, DeValue::Table(entries))
                if SETTINGS
                    .iter()
                    .any(|setting| setting.key.starts_with(&prefix)) =>
            {
                for (key, value) in sorted(entries) {
                    self.entry(&prefix, key, value, level)?;
                }
                Ok(())
            }
            (None, value) => Err(self.unknown(&name, key.span(), value)),
        }
    }

    fn unknown(&self, name: &str, span: Range<usize>, value: &DeValue<'_>) -> Failure {
        let keys = SETTINGS
            .iter()
            .filter(|setting| setting.not_in_file.is_none());
        let keys = keys.map(|setting| setting.key);
        let hint = match value {
            DeValue::Table(_) => match nearest(name, ["tls", PROFILES].into_iter()) {
                Some("tls") => "; did you mean [tls]?".to_owned(),
                Some(_) => "; did you mean [profile.NAME]?".to_owned(),
                None => format!("; a profile is written as [profile.{name}]"),
            },
            _ => match nearest(name, keys) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => "; `leasehold config` lists the keys".to_owned(),
            },
        };
        self.error(&span, &format!("unknown key `{name}`{hint}"))
    }

    /// Reads the value of a setting.
    fn value(
        &self,
        setting: &Setting,
        key: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Entry, Failure> {
        let one = [value];
        let items: Vec<_> = match value.get_ref() {
            DeValue::Array(items) if setting.kind.is_list() => items.iter().collect(),
            _ if setting.kind.is_list() => return Err(self.wrong_type(setting, value)),
            _ => one.to_vec(),
        };
        if setting.kind == Kind::Urls && items.is_empty() {
            let why = "`nodes` has no URL; for the embedded store, write nodes = [\"local:\"]";
            return Err(self.error(&value.span(), why));
        }
        let mut entry = Entry {
            values: Vec::new(),
            positions: Vec::new(),
        };
        for item in items {
            let text = self.text_of(setting, item)?;
            // An empty text stands for the built-in default.
            if text.is_empty() && !setting.kind.is_list() {
                continue;
            }
            setting
                .kind
                .check(&text)
                .map_err(|why| self.error(&item.span(), &format!("`{}`: {why}", setting.key)))?;
            if setting.kind == Kind::Urls && entry.values.iter().any(|other| *other == *text) {
                let why = format!("`{}`: the list has this URL twice", setting.key);
                return Err(self.error(&item.span(), &why));
            }
            entry.values.push(match setting.kind {
                Kind::Path => self.beside(&text).into(),
                _ => text.into(),
            });
            entry.positions.push(self.position(item.span().start));
        }
        if entry.positions.is_empty() {
            entry.positions.push(self.position(key.start));
        }
        Ok(entry)
    }

    /// A path is relative to the directory of the file.
    fn beside(&self, path: &str) -> PathBuf {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        directory.join(path)
    }

    /// The text of a value that has the right type.
    fn text_of(&self, setting: &Setting, value: &Spanned<DeValue<'_>>) -> Result<String, Failure> {
        let is_time = matches!(setting.kind, Kind::Time | Kind::TimeOrOff);
        let is_flag = setting.kind == Kind::Flag;
        match value.get_ref() {
            DeValue::String(text) if !matches!(setting.kind, Kind::Flag | Kind::Number(_)) => {
                Ok(text.to_string())
            }
            // An empty text stands for the built-in default.
            DeValue::String(text) if text.is_empty() => Ok(String::new()),
            DeValue::Boolean(flag) if is_flag => Ok(flag.to_string()),
            DeValue::Integer(number) if is_time || matches!(setting.kind, Kind::Number(_)) => {
                // TOML also has `+5` and `0x10`.
                let value = i64::from_str_radix(number.as_str(), number.radix());
                Ok(value.map_or_else(|_| number.to_string(), |value| value.to_string()))
            }
            DeValue::Float(seconds) if is_time => {
                let value = seconds.as_str().parse::<f64>();
                Ok(value.map_or_else(|_| seconds.to_string(), |value| value.to_string()))
            }
            _ => Err(self.wrong_type(setting, value)),
        }
    }

    fn wrong_type(&self, setting: &Setting, value: &Spanned<DeValue<'_>>) -> Failure {
        let found = match value.get_ref() {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let expected = setting.kind.example();
        let text = format!("`{}` is {found}; expected {expected}", setting.key);
        self.error(&value.span(), &text)
    }

    /// Refuses settings that exclude each other at the same level.
    fn refuse_both(&self, level: &Level) -> Result<(), Failure> {
        for (key, entry) in level {
            let Some(setting) = Setting::of(key).filter(|setting| setting.is_on(&entry.values))
            else {
                continue;
            };
            for other in setting.excluded_by {
                let other = Setting::of(other).zip(level.get(other));
                if let Some((other, second)) = other
                    && other.is_on(&second.values)
                {
                    let at = self.place(entry.positions[0]);
                    return Err(Failure::usage(format!(
                        "{at}: `{key}` and `{}` exclude each other; remove one of them",
                        other.key
                    )));
                }
            }
        }
        Ok(())
    }

    fn error(&self, span: &Range<usize>, text: &str) -> Failure {
        Failure::usage(format!("{}: {text}", self.place(self.position(span.start))))
    }

    fn place(&self, position: Position) -> String {
        place(self.path, position)
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.lines.partition_point(|&start| start <= offset).max(1);
        let before = self.text.get(self.lines[line - 1]..offset);
        Position {
            line,
            column: before.unwrap_or_default().chars().count() + 1,
        }
    }
}

/// A place in a file, as compilers write it.
pub(crate) fn place(path: &Path, Position { line, column }: Position) -> String {
    format!("{}:{line}:{column}", path.display())
}

/// The entries in the order of the file, so that the first mistake is reported.
fn sorted<'a>(table: &'a DeTable<'a>) -> Entries<'a> {
    let mut entries: Entries<'a> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
