//! `config`: the settings in force, and where each of them comes from.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches;
use serde::Serialize;

use super::check;
use super::layers::{Given, InForce, Source};
use super::settings::{Kind, Setting};
use super::{Unusable, find, in_force, read};
use crate::args::{Config, NodeArgs, ReportFormat};
use crate::exit::{Failure, Outcome};
use crate::node_url::masked;
use crate::report::{print_stdout, visible};
use crate::show::{json, plain_table, without_padding};

pub(crate) async fn show(args: Config) -> Outcome {
    let shown = in_force();
    let text = match args.output {
        ReportFormat::Json => json(&Shown::of(shown))? + "\n",
        ReportFormat::Table => table(shown),
    };
    print_stdout(text.as_bytes())?;
    if let Some(file) = &shown.file {
        check::all(file)?;
    }
    // A command such as `man` has no nodes.
    if shown.settings().next().is_some() {
        // Reads the nodes file and the certificates.
        args.nodes.inspecting_client()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings of the command line that `config` is to show, and gives its nodes to `config`.
pub(super) fn of_command_line(config: &mut Config, own: &InForce) -> Result<InForce, Unusable> {
    if own.has_own_options {
        return Err(Unusable::Settings(Failure::usage(
            "options before `--` have no effect on the command line that is shown; write them behind the \
             name of its command",
        )));
    }
    let program = std::iter::once(OsString::from("leasehold"));
    let line: Vec<_> = program.chain(config.command.iter().cloned()).collect();
    let (matches, shown) = read(&line)?;
    let chosen = matches.subcommand().map(|(_, chosen)| chosen);
    if let Some(chosen) = chosen.filter(|chosen| chosen.try_contains_id("nodes").is_ok()) {
        config.nodes = NodeArgs::from_arg_matches(chosen)?;
    }
    Ok(shown)
}

/// The JSON output.
#[derive(Serialize)]
struct Shown<'a> {
    file: Option<String>,
    profile: Option<&'a str>,
    /// The profiles of the file.
    profiles: Vec<&'a str>,
    settings: Vec<Row<'a>>,
}

/// A setting in the JSON output.
#[derive(Serialize)]
struct Row<'a> {
    key: &'static str,
    /// `null` is the built-in default.
    value: Option<serde_json::Value>,
    default: &'static str,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// What the source says, if the value was cut to half of the TTL.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_from: Option<std::borrow::Cow<'a, str>>,
}

impl<'a> Shown<'a> {
    fn of(shown: &'a InForce) -> Self {
        let file = shown.file.as_ref();
        let profiles = file.map(|file| file.profiles.keys().map(String::as_str).collect());
        Self {
            file: file.map(|file| file.path.display().to_string()),
            profile: shown.profile.as_deref(),
            profiles: profiles.unwrap_or_default(),
            settings: shown
                .settings()
                .map(|(setting, given)| Row::of(shown, setting, given))
                .collect(),
        }
    }
}

impl<'a> Row<'a> {
    fn of(shown: &InForce, setting: &Setting, given: Option<&'a Given>) -> Self {
        let (mut variable, mut profile) = (None, None);
        let source = match given.map(|given| &given.source) {
            None if are_in_nodes_file(shown, setting) => "nodes_file",
            None => "default",
            Some(Source::CommandLine) => "command_line",
            Some(Source::Variable(name)) => {
                variable = Some(*name);
                "variable"
            }
            Some(Source::Profile(name)) => {
                profile = Some(&**name);
                "profile"
            }
            Some(Source::TopLevel) => "file",
        };
        let position = given.and_then(|given| given.positions.first());
        let cut_from = given.and_then(|given| given.cut_from.as_ref());
        Self {
            key: setting.key,
            value: given.and_then(value),
            default: setting.default,
            source,
            variable,
            profile,
            line: position.map(|position| position.line),
            cut_from: cut_from.map(|value| value.to_string_lossy()),
        }
    }
}

/// Whether the setting is the nodes, and a nodes file has them.
fn are_in_nodes_file(shown: &InForce, setting: &Setting) -> bool {
    setting.key == "nodes" && shown.nodes_file().is_some()
}

/// The value in the JSON output.
fn value(given: &Given) -> Option<serde_json::Value> {
    let texts = texts(given);
    let first = texts.first()?.clone();
    Some(match given.setting.kind {
        kind if kind.is_list() => texts.into(),
        Kind::Flag => (first == "true").into(),
        Kind::Number(_) => first.parse::<u64>().map_or(first.into(), Into::into),
        _ => first.into(),
    })
}

/// The values of a setting, without passwords.
fn texts(given: &Given) -> Vec<String> {
    let texts = given.values.iter().map(|value| value.to_string_lossy());
    let masked = texts.map(|text| match given.setting.kind {
        Kind::Urls => masked(&text),
        _ => text.into_owned(),
    });
    masked.collect()
}

/// The output for people.
fn table(shown: &InForce) -> String {
    let mut text = match &shown.file {
        Some(file) => format!("file      {}\n", file.path.display()),
        None => {
            let places = find::places();
            let places = places.iter().map(|path| path.display().to_string());
            let places: Vec<_> = places.collect();
            format!("file      none (looked for {})\n", places.join(", "))
        }
    };
    if let Some(file) = shown.file.as_ref().filter(|file| !file.profiles.is_empty()) {
        let names = file.profiles.keys().map(String::as_str);
        let names: Vec<_> = names.collect();
        text += &format!("profile   {}\n", shown.profile.as_deref().unwrap_or("none"));
        text += &format!("profiles  {}\n", names.join(", "));
    }
    text = text
        .lines()
        .map(|line| visible(line).into_owned() + "\n")
        .collect();
    text.push('\n');
    let mut table = plain_table();
    table.set_header(vec!["SETTING", "VALUE", "SOURCE"]);
    for (setting, given) in shown.settings() {
        let is_elsewhere = are_in_nodes_file(shown, setting);
        // The source of the nodes is that of the nodes file.
        let given = given.or_else(|| shown.nodes_file().filter(|_| is_elsewhere));
        let source = given.map_or("default".to_owned(), |given| short_source(shown, given));
        let value = given.map(texts).filter(|texts| !texts.is_empty());
        let is_hidden =
            given.is_some_and(|given| given.source == Source::Variable(crate::nodes::HIDDEN));
        let value = match value {
            _ if is_elsewhere => "those of nodes_file".to_owned(),
            Some(texts) => texts.join(" "),
            None if is_hidden => "not passed on by the enclosing `leasehold run`".to_owned(),
            None => setting.default.to_owned(),
        };
        let shown = [setting.key, &value, &source].map(|text| visible(text).into_owned());
        table.add_row(shown.to_vec());
    }
    text + &without_padding(&table)
}

/// Where a value comes from, with only the name of the file: its path is above the table.
fn short_source(shown: &InForce, given: &Given) -> String {
    let source = shown.source(given);
    let directory = shown.file.as_ref().and_then(|file| file.path.parent());
    let directory = directory.map(|path| format!("{}/", path.display()));
    let source = match directory.and_then(|directory| source.strip_prefix(&directory)) {
        Some(name) if given.source.is_file() => name.to_owned(),
        _ => source,
    };
    match &given.cut_from {
        Some(value) => {
            let value = value.to_string_lossy();
            format!("{source}: {value}, cut to half of ttl")
        }
        None => source,
    }
}
