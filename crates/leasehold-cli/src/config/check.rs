//! Checks the settings of a configuration file together, those of every profile: what a command would refuse,
//! `leasehold config` refuses, too. The library says what is valid. Connects to no server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Builder, Client, Error, Invalid, Options};

use super::file::{ConfigFile, Entry, Level, place};
use super::settings::Setting;
use crate::args::{Guard, duration, guard};
use crate::exit::Failure;
use crate::messages;
use crate::nodes;
use crate::run;

/// Checks the top level, and each profile together with the top level.
pub(super) fn all(file: &ConfigFile) -> Result<(), Failure> {
    let top = Settings {
        path: &file.path,
        profile: None,
        top: &file.top,
    };
    top.check()?;
    file.profiles.iter().try_for_each(|(name, level)| {
        let profile = Some((name.as_str(), level));
        Settings { profile, ..top }.check()
    })
}

/// The settings that a command has with a profile or without one.
#[derive(Clone, Copy)]
struct Settings<'a> {
    path: &'a Path,
    profile: Option<(&'a str, &'a Level)>,
    top: &'a Level,
}

impl<'a> Settings<'a> {
    fn check(&self) -> Result<(), Failure> {
        let builder = self.nodes()?;
        let options = self.options(Options::default())?;
        self.build("ttl", builder, options)?;
        if let Some(ttl) = self.time("acquire_ttl")? {
            let options = Options::default().ttl(ttl);
            self.build("acquire_ttl", self.nodes()?, options)?;
        }
        self.check_replicas()?;
        self.check_grace()
    }

    /// Everything else is valid, so an error is about the replicas. If the file does not name the nodes,
    /// they come from elsewhere, and may have replicas.
    fn check_replicas(&self) -> Result<(), Failure> {
        let names_nodes = ["nodes", "nodes_file"]
            .iter()
            .any(|key| self.text(key).is_some());
        for key in ["replicas", "prefer_replicas"] {
            let number = self.text(key).and_then(|text| text.parse().ok());
            let Some(number) = number.filter(|_| names_nodes) else {
                continue;
            };
            let options = self.options(Options::default())?;
            let builder = self.nodes()?.options(options).replicas(number);
            builder.build().map_err(|error| {
                let why = match &error {
                    Error::Invalid(Invalid::NodeUrl { why, .. }) => why.clone(),
                    error => messages::error(error),
                };
                self.failed(key, &why)
            })?;
        }
        Ok(())
    }

    /// The nodes, with the options of their clients.
    fn nodes(&self) -> Result<Builder, Failure> {
        let urls = match (self.path_of("nodes_file"), self.get("nodes")) {
            (Some(path), _) => {
                let urls = nodes::from_file(&path).map(|(urls, _)| urls);
                let urls = urls.map_err(|why| self.failed("nodes_file", &why))?;
                if let Some(again) = (1..urls.len()).find(|&at| urls[..at].contains(&urls[at])) {
                    let why = format!("URL {} of the file is there twice", again + 1);
                    return Err(self.failed("nodes_file", &why));
                }
                urls
            }
            (None, Some(nodes)) if !nodes.values.is_empty() => {
                let urls = nodes.values.iter().map(|url| url.to_string_lossy());
                urls.map(|url| url.into_owned()).collect()
            }
            (None, _) => vec!["local:".to_owned()],
        };
        let mut builder = Client::builder().nodes(urls);
        builder = match self.text("restart_guard").as_deref().map(guard) {
            Some(Ok(Guard::For(time))) => builder.restart_guard(time),
            Some(Ok(Guard::Off)) => builder.without_restart_guard(),
            _ => builder,
        };
        let read = |key: &str| {
            let path = self.path_of(key);
            let text = path.map(|path| nodes::read(&path)).transpose();
            text.map_err(|why| self.failed(key, &why))
        };
        if let Some(text) = read("tls.ca")? {
            builder = builder.tls_root_certificate(text);
        }
        builder = match (read("tls.cert")?, read("tls.key")?) {
            (Some(certificate), Some(key)) => builder.tls_client_certificate(certificate, key),
            (None, None) => builder,
            (Some(_), None) => return Err(self.failed("tls.cert", "it needs `tls.key`")),
            (None, Some(_)) => return Err(self.failed("tls.key", "it needs `tls.cert`")),
        };
        Ok(builder.prefix(self.text("prefix").unwrap_or_default()))
    }

    fn options(&self, mut options: Options) -> Result<Options, Failure> {
        options = options.label(self.text("label").unwrap_or_default());
        if let Some(ttl) = self.time("ttl")? {
            options = options.ttl(ttl);
        }
        if let Some(time) = self.time("at_most_for")? {
            options = options.max_hold(time);
        }
        if let Some(time) = self.time("at_least_for")? {
            options = options.min_hold(time);
        }
        if let Some(time) = self.time("wait")? {
            options = options.wait(leasehold::Wait::For(time));
        }
        Ok(options)
    }

    /// Lets the library check everything. `ttl` is the key of the TTL in the options.
    fn build(&self, ttl: &str, builder: Builder, options: Options) -> Result<(), Failure> {
        let Err(error) = builder.options(options).build() else {
            return Ok(());
        };
        let Error::Invalid(invalid) = &error else {
            return Err(error.into());
        };
        // The key is named instead of the option.
        let text = match invalid {
            Invalid::Tls { why, .. } => why.clone(),
            Invalid::Label => invalid.to_string(),
            _ => messages::error(&error),
        };
        let key = match invalid {
            Invalid::NodeUrl { index, why, .. } => {
                let given = self.get("nodes");
                let position = given.and_then(|nodes| nodes.positions.get(index - 1));
                return Err(match position {
                    Some(position) => {
                        let at = place(self.path, *position);
                        Failure::in_file(format!("{at}: `nodes`: {why}"))
                    }
                    None => self.failed("nodes_file", &format!("node {index}: {why}")),
                });
            }
            Invalid::Duration { option, .. } => match *option {
                "max_hold" => "at_most_for",
                "min_hold" => "at_least_for",
                "ttl" => ttl,
                option => option,
            },
            // The other one may have its default.
            Invalid::TtlBeyondGuard { .. } if self.get(ttl).is_none() => "restart_guard",
            Invalid::TtlBeyondGuard { .. } => ttl,
            Invalid::Label => "label",
            Invalid::Tls { what, .. } => match what {
                leasehold::TlsPart::RootCertificate => "tls.ca",
                leasehold::TlsPart::ClientCertificate => "tls.cert",
                _ => "tls.key",
            },
            _ => "prefix",
        };
        Err(self.failed(key, &text))
    }

    /// The grace period and the TTL of one level belong together. A profile with a shorter TTL cuts the
    /// grace period of the top level: see `limit_grace`.
    fn check_grace(&self) -> Result<(), Failure> {
        let Some(time) = self.time("grace")? else {
            return Ok(());
        };
        let is_of_profile = |key| {
            self.profile
                .is_some_and(|(_, level)| level.contains_key(key))
        };
        if is_of_profile("ttl") && !is_of_profile("grace") {
            return Ok(());
        }
        let ttl = match self.time("ttl")? {
            Some(ttl) => ttl,
            None => {
                let default = Setting::of("ttl").map_or("", |setting| setting.default);
                duration(default).map_err(|why| self.failed("ttl", &why))?
            }
        };
        let checked = run::grace(ttl, Some(time));
        checked
            .map(|_| ())
            .map_err(|why| self.failed("grace", &why))
    }

    /// The value of a setting, unless the profile has another setting that excludes it.
    fn get(&self, key: &str) -> Option<&'a Entry> {
        if let Some((_, level)) = self.profile {
            if let Some(entry) = level.get(key) {
                return Some(entry);
            }
            let excludes = |other: &&str| {
                let other = Setting::of(other).zip(level.get(other));
                other.is_some_and(|(setting, entry)| setting.excludes_weaker(&entry.values))
            };
            if Setting::of(key).is_some_and(|setting| setting.excluded_by.iter().any(excludes)) {
                return None;
            }
        }
        self.top.get(key)
    }

    fn text(&self, key: &str) -> Option<String> {
        let value = self.get(key)?.values.first()?;
        Some(value.to_string_lossy().into_owned())
    }

    fn path_of(&self, key: &str) -> Option<PathBuf> {
        self.get(key)?.values.first().map(PathBuf::from)
    }

    fn time(&self, key: &str) -> Result<Option<Duration>, Failure> {
        let time = self.text(key).map(|text| duration(&text)).transpose();
        time.map_err(|why| self.failed(key, &why))
    }

    /// The error of a setting, with its place in the file.
    fn failed(&self, key: &str, why: &str) -> Failure {
        let at = match self.get(key).and_then(|entry| entry.positions.first()) {
            Some(position) => place(self.path, *position),
            None => self.path.display().to_string(),
        };
        let profile = match self.profile {
            Some((name, level)) if !level.contains_key(key) => format!(" (with profile `{name}`)"),
            _ => String::new(),
        };
        Failure::in_file(format!("{at}: `{key}`{profile}: {why}"))
    }
}
