//! Settings from the environment, profiles and configuration files.

mod documented;
mod effects;
mod files;
mod nested;
mod precedence;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Place, Ran, Running};

/// Where the user's file is, below `HOME`.
const IN_HOME: &str = ".config/leasehold/leasehold.toml";

/// Writes a file that only its owner can read.
pub(crate) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("created");
    std::fs::write(path, text).expect("written");
    chmod(path, 0o600);
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("chmod");
}

impl Place {
    /// Writes the configuration file of the user, whose `HOME` is this place.
    pub(crate) fn configure(&self, text: &str) -> PathBuf {
        let path = self.file(IN_HOME);
        write(&path, text);
        path
    }

    /// A command that searches for its configuration file, as the tool does for users.
    pub(crate) fn configured(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env_remove("LEASEHOLD_CONFIG");
        command
    }

    fn run_configured(&self, args: &[&str]) -> Ran {
        Running::start(&mut self.configured(args)).end()
    }
}

/// The output of `leasehold config -o json`.
fn settings(command: &mut Command) -> serde_json::Value {
    let ran = Running::start(command).end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

/// The same, also if something in the file is wrong.
fn settings_of_any_file(command: &mut Command) -> serde_json::Value {
    let ran = Running::start(command).end();
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("no JSON: {}", ran.err))
}

/// A setting of that output.
fn setting<'a>(shown: &'a serde_json::Value, key: &str) -> &'a serde_json::Value {
    let rows = shown["settings"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["key"] == key);
    row.unwrap_or_else(|| panic!("no setting {key}"))
}
