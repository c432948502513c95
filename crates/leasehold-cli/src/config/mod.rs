//! Settings from the command line, the environment, a profile and a configuration file.
//!
//! The command line is parsed without the environment first. If another source has a value for one
//! of its options, that value becomes the default of the option, and the command line is parsed
//! again. So clap checks and converts every value, wherever it comes from, and the commands need not
//! know about sources.

mod check;
mod file;
mod find;
mod layers;
mod settings;
mod show;

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::args::{self, Cli};
use crate::exit::Failure;
pub(crate) use find::CONFIG_VARIABLE;
pub(crate) use layers::{Given, InForce, Source};
pub(crate) use settings::{Kind, SETTINGS, Setting};
pub(crate) use show::show;

/// The variable that names the profile.
pub(crate) const PROFILE_VARIABLE: &str = "LEASEHOLD_PROFILE";

static IN_FORCE: OnceLock<InForce> = OnceLock::new();

/// The settings of this process.
pub(crate) fn in_force() -> &'static InForce {
    static NOTHING: InForce = InForce::nothing();
    IN_FORCE.get().unwrap_or(&NOTHING)
}

/// Why a command line cannot be carried out.
pub(crate) enum Unusable {
    /// Or help is wanted.
    Arguments(clap::Error),
    Settings(Failure),
}

impl From<clap::Error> for Unusable {
    fn from(error: clap::Error) -> Self {
        Self::Arguments(error)
    }
}

impl From<Failure> for Unusable {
    fn from(failure: Failure) -> Self {
        Self::Settings(failure)
    }
}

/// Parses the command line, and adds the settings of all other sources.
pub(crate) fn parse(args: &[OsString]) -> Result<Cli, Unusable> {
    let (matches, mut in_force) = read(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let args::Command::Config(config) = &mut cli.command
        && !config.command.is_empty()
    {
        in_force = show::of_command_line(config, &in_force)?;
    }
    let _ = IN_FORCE.set(in_force);
    Ok(cli)
}

fn read(args: &[OsString]) -> Result<(ArgMatches, InForce), Unusable> {
    let mut command = Cli::command();
    let matches = command
        .try_get_matches_from_mut(args)
        .map_err(|error| match error.kind() {
            // Only the help names the variables.
            ErrorKind::DisplayHelp => {
                let again = documented().try_get_matches_from(args);
                again.err().unwrap_or(error)
            }
            _ => error,
        })?;
    let Some((name, chosen)) = matches.subcommand() else {
        return Ok((matches, InForce::nothing()));
    };
    let in_force = match command.find_subcommand(name) {
        Some(subcommand) if has(subcommand, "config") => InForce::resolve(subcommand, chosen)?,
        _ => InForce::nothing(),
    };
    let defaults = in_force.defaults();
    if defaults.is_empty() {
        return Ok((matches, in_force));
    }
    let command = complete().mut_subcommand(name, |subcommand| {
        // `mut_arg` would move the argument, and clap finds those of a complete command by their places.
        subcommand.mut_args(|arg| {
            let given = defaults.iter().find(|(key, _)| arg.get_id() == *key);
            match given {
                Some((_, values)) => arg.default_values(values.clone()),
                None => arg,
            }
        })
    });
    Ok((command.try_get_matches_from(args)?, in_force))
}

/// Whether a command has an argument.
fn has(command: &Command, key: &str) -> bool {
    command
        .get_arguments()
        .any(|argument| argument.get_id() == key)
}

/// The definition of the command line, with the arguments of all commands.
fn complete() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// The definition of the command line, with the variable of each option, for the help, the manual
/// and the completions.
pub(crate) fn documented() -> Command {
    let named = |argument: Arg, command: &str| {
        let setting = Setting::of(argument.get_id().as_str());
        match setting.filter(|setting| !setting.not_for.contains(&command)) {
            Some(setting) if argument.get_env().is_none() => {
                let of_lease = setting.lease_variable(command);
                let variable = of_lease.unwrap_or(setting.variable);
                argument.env(variable).hide_env_values(true)
            }
            _ => argument,
        }
    };
    complete().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        command.mut_args(|argument| named(argument, &name))
    })
}
