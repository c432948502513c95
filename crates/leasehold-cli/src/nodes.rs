//! Finds out which nodes to use, and passes them on to a `leasehold` in the command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::doctor::{Report, quoted};
use leasehold::observe::{Event, NodeChange, NodeEvent};
use leasehold::{Builder, Client, Options};

use crate::args::{Guard, NodeArgs};
use crate::config::{
    self, CONFIG_VARIABLE, Given, InForce, PROFILE_VARIABLE, Setting, Source as From,
};
use crate::exit::Failure;
use crate::metrics_file::MetricsFile;
use crate::node_url::has_password;
use crate::private_file::{OpenFile, refuse_access_of_others};
use crate::report::print_message;

/// The variable that names the nodes.
const VARIABLE: &str = "LEASEHOLD_NODES";
/// The variable that names a file of nodes.
const FILE_VARIABLE: &str = "LEASEHOLD_NODES_FILE";
/// Set for a command if the nodes of its `leasehold run` are not passed on to it.
pub(crate) const HIDDEN: &str = "LEASEHOLD_NODES_HIDDEN";
/// The default TTL of the library.
const INSPECTING_TTL: Duration = Duration::from_secs(10);

/// How long to wait for unreachable servers if the wait for the lock has no limit.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);
/// The same for the embedded store, which is on this machine: what keeps it busy (many processes on
/// a loaded machine, or one that is stopped) usually ends by itself.
const STORE_PATIENCE: Duration = Duration::from_secs(60);

/// The chosen nodes, with the options that all their clients must agree on.
pub(crate) struct Deployment<'a> {
    args: &'a NodeArgs,
    urls: Vec<String>,
    source: Source,
    /// Observes all clients.
    metrics: Option<MetricsFile>,
}

/// Where the URLs of the nodes come from.
enum Source {
    /// The embedded store is the default.
    Default,
    /// Arguments or a variable.
    Urls,
    /// A nodes file.
    File(PathBuf),
    /// The configuration file, or a nodes file that it names.
    Config,
}

impl NodeArgs {
    /// A client that does not acquire locks: to inspect, release and break them. Its TTL is not
    /// used, so a short restart guard must not cause an error.
    pub(crate) fn inspecting_client(&self) -> Result<Client, Failure> {
        Ok(self.resolve()?.inspecting()?.build()?)
    }

    /// A client of these nodes.
    pub(crate) fn client(&self, options: Options) -> Result<Client, Failure> {
        self.resolve()?.client(options)
    }

    /// Reads the URLs of the nodes.
    pub(crate) fn resolve(&self) -> Result<Deployment<'_>, Failure> {
        let (source, urls) = self.urls()?;
        Ok(Deployment {
            args: self,
            urls,
            source,
            metrics: None,
        })
    }

    fn urls(&self) -> Result<(Source, Vec<String>), Failure> {
        let in_force = config::in_force();
        let source = |key| in_force.get(key).map(|given| &given.source);
        let (nodes, file) = (source("nodes"), source("nodes_file"));
        let is_hidden = nodes == Some(&From::Variable(HIDDEN));
        // The embedded store, or the nodes of a configuration file, would not exclude clients of the
        // nodes of the outer command.
        if is_hidden && file.is_none_or(From::is_file) {
            return Err(Failure::usage(
                "the node URLs of the enclosing `leasehold run` contain a password (or a comma), so they \
                 are not passed on to its command\nnext: put the URLs into a file with mode 0600, and use \
                 --nodes-file or --config with the enclosing `leasehold run`, which passes it on, or with \
                 this command (to use the embedded store: `--node local:`)",
            ));
        }
        // Another process cannot read a configuration file that is a pipe.
        let is_config = |source: &From| source.is_file() && in_force.has_lasting_file();
        if let Some(path) = &self.nodes_file {
            let read = from_file(path);
            let (urls, is_lasting) =
                read.map_err(|why| Failure::usage(format!("--nodes-file: {why}")))?;
            return Ok(match file.is_some_and(is_config) {
                true => (Source::Config, urls),
                false if is_lasting => (Source::File(path.clone()), urls),
                false => (Source::Urls, urls),
            });
        }
        Ok(match nodes {
            _ if self.node.is_empty() => (Source::Default, vec!["local:".to_owned()]),
            Some(source) if is_config(source) => (Source::Config, self.node.clone()),
            Some(From::CommandLine) => {
                check_arguments(&self.node)?;
                (Source::Urls, self.node.clone())
            }
            _ => (Source::Urls, self.node.clone()),
        })
    }
}

/// With `--prefer-replicas`, locks count although too few replicas have them.
fn warn_of_replicas(event: &Event) {
    if let Event::Node(NodeEvent { node, change, .. }) = event
        && let NodeChange::TooFewReplicas { acked, wanted, .. } = change
    {
        let what = match acked {
            Some(acked) => format!("{acked} of {wanted} replicas have acknowledged the lock"),
            None => "it is not known whether replicas have the lock".to_owned(),
        };
        print_message(format!("warning: {node}: {what}; a failover can lose it"));
    }
}

/// Checks the values of `--node`.
fn check_arguments(urls: &[String]) -> Result<(), Failure> {
    if urls.iter().any(|url| has_password(url)) {
        print_message(format!(
            "warning: a password in an argument is visible to all users of this machine; put the nodes \
             into {VARIABLE}, a --nodes-file or a configuration file"
        ));
    }
    match urls.iter().any(|url| is_list(url)) {
        true => Err(Failure::usage(format!(
            "--node takes one URL; repeat it for each server (only {VARIABLE} is separated by commas)"
        ))),
        false => Ok(()),
    }
}

impl Deployment<'_> {
    /// Writes the renewals of all clients to this file.
    pub(crate) fn observed_by(mut self, metrics: Option<&MetricsFile>) -> Self {
        self.metrics = metrics.cloned();
        self
    }

    /// How long to wait for unreachable nodes if the wait for the lock has no limit.
    pub(crate) fn outage_patience(&self) -> Duration {
        match self.urls.iter().all(|url| url.starts_with("local:")) {
            true => STORE_PATIENCE,
            false => SERVER_PATIENCE,
        }
    }

    /// See [`NodeArgs::inspecting_client`].
    pub(crate) fn inspecting(&self) -> Result<Builder, Failure> {
        let options = Options::default();
        Ok(self.builder()?.options(match self.args.restart_guard {
            Some(Guard::For(guard)) => options.ttl(guard.min(INSPECTING_TTL)),
            _ => options,
        }))
    }

    /// A client of these nodes.
    pub(crate) fn client(&self, options: Options) -> Result<Client, Failure> {
        Ok(self.builder()?.options(options).build()?)
    }

    /// A builder for clients of these nodes.
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let args = self.args;
        let mut builder = Client::builder().nodes(&self.urls);
        if let Some(metrics) = &self.metrics {
            builder = builder.observer(metrics.clone());
        }
        match args.restart_guard {
            None => {}
            Some(Guard::Off) => builder = builder.without_restart_guard(),
            Some(Guard::For(guard)) => builder = builder.restart_guard(guard),
        }
        self.check_replicas()?;
        if let Some(number) = args.replicas {
            builder = builder.replicas(number);
        }
        if let Some(number) = args.prefer_replicas {
            builder = builder.prefer_replicas(number).observer(warn_of_replicas);
        }
        if args.assume_fresh {
            builder = builder.assume_fresh();
        }
        if args.history {
            builder = builder.history();
        }
        let read = |option: &str, path| {
            read(path).map_err(|why| Failure::usage(format!("{option}: {why}")))
        };
        if let Some(path) = &args.tls_ca {
            builder = builder.tls_root_certificate(read("--tls-ca", path)?);
        }
        match (&args.tls_cert, &args.tls_key) {
            (Some(certificate), Some(key)) => {
                builder = builder.tls_client_certificate(
                    read("--tls-cert", certificate)?,
                    read("--tls-key", key)?,
                );
            }
            (None, None) => {}
            (Some(_), None) => return Err(Failure::usage("--tls-cert needs --tls-key")),
            (None, Some(_)) => return Err(Failure::usage("--tls-key needs --tls-cert")),
        }
        Ok(builder.prefix(&args.prefix))
    }

    /// The library refuses this, too. Its error does not name the option.
    fn check_replicas(&self) -> Result<(), Failure> {
        let is_local = |url: &String| url.starts_with("local:");
        let wanted = [
            ("--replicas", self.args.replicas),
            ("--prefer-replicas", self.args.prefer_replicas),
        ];
        let wanted = wanted.into_iter().find(|(_, number)| *number > Some(0));
        match (wanted, self.urls.iter().any(is_local)) {
            (Some((option, Some(number))), true) => Err(Failure::usage(format!(
                "{option} {number}: the embedded store has no replicas; leave {option} out, or use a \
                 server"
            ))),
            _ => Ok(()),
        }
    }

    /// The report with the names of the certificates of this client, which the library knows by their
    /// content only.
    pub(crate) fn with_tls_files(&self, mut report: Report) -> Report {
        let args = self.args;
        let files = [
            ("--cacert CA_FILE", "--cacert", &args.tls_ca),
            ("--cert CERT_FILE", "--cert", &args.tls_cert),
            ("--key KEY_FILE", "--key", &args.tls_key),
        ];
        for (placeholder, option, path) in files {
            let Some(path) = path else { continue };
            let named = format!("{option} {}", quoted(&path.to_string_lossy()));
            for finding in &mut report.findings {
                finding.remedy = finding.remedy.replace(placeholder, &named);
            }
        }
        report
    }

    /// The variables to set or to remove so that another `leasehold` uses the same nodes with the
    /// same options. They contain no password. `--assume-fresh` is not passed on: servers that were
    /// new when this process started may have restarted since.
    ///
    /// What comes from a configuration file is passed on as the file and its profile, so that a nested
    /// `leasehold` can choose another profile. If the file is a pipe, its values are passed on.
    pub(crate) fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let in_force = config::in_force();
        let (mut urls, mut file, mut hidden) = (None, None, None);
        match &self.source {
            Source::Default if is_left_to_nested(in_force) => {}
            Source::Default => urls = Some("local:".into()),
            Source::Config => {}
            Source::File(path) => file = Some(absolute(path)),
            Source::Urls if self.urls.iter().any(|url| is_private(url)) => {
                hidden = Some("1".into());
            }
            Source::Urls => urls = Some(self.urls.join(",").into()),
        }
        let mut variables = vec![(VARIABLE, urls), (FILE_VARIABLE, file), (HIDDEN, hidden)];
        variables.extend(passed_on(in_force));
        if let Some(file) = &in_force.file {
            let (path, profile) = match file.is_lasting {
                true => (file.path.clone(), in_force.profile.clone()),
                // An empty file, so that no other one is searched for.
                false => (PathBuf::from("/dev/null"), None),
            };
            variables.push((CONFIG_VARIABLE, Some(path.into())));
            variables.push((PROFILE_VARIABLE, profile.map(Into::into)));
        }
        variables
    }
}

/// Whether a nested `leasehold` without options uses the embedded store, too, if no variable names the
/// nodes. It does not if a variable of this process is empty, which is stronger than a configuration
/// file.
fn is_left_to_nested(in_force: &InForce) -> bool {
    let mut keys = ["nodes", "nodes_file"].iter();
    keys.all(|key| in_force.get(key).is_none_or(|given| given.source.is_file()))
}

/// The variables of all settings about nodes, apart from the nodes themselves. A value that is empty
/// is passed on, too: it is stronger than that of the configuration file.
fn passed_on(in_force: &InForce) -> impl Iterator<Item = (&'static str, Option<OsString>)> {
    let others = config::SETTINGS.iter().filter(|setting| {
        setting.is_passed_on && ![VARIABLE, FILE_VARIABLE].contains(&setting.variable)
    });
    others.map(|setting| {
        let given = in_force.get(setting.key);
        let given = given.filter(|given| !(given.source.is_file() && in_force.has_lasting_file()));
        (setting.variable, given.map(|given| text_of(setting, given)))
    })
}

/// The value of a setting as the text of its variable.
fn text_of(setting: &Setting, given: &Given) -> OsString {
    match given.values.first() {
        Some(path) if setting.kind == config::Kind::Path => absolute(Path::new(path)),
        Some(value) => value.clone(),
        None => OsString::new(),
    }
}

/// Makes a path absolute, because the command may change its working directory.
fn absolute(path: &Path) -> OsString {
    let absolute = std::path::absolute(path);
    absolute.unwrap_or_else(|_| path.to_owned()).into()
}

/// Whether a URL cannot be passed on in [`VARIABLE`], because it contains a password, or a comma,
/// which separates URLs there.
fn is_private(url: &str) -> bool {
    has_password(url) || url.contains(',') && !is_sentinel(url)
}

/// Whether a URL names sentinels, which are separated by commas.
fn is_sentinel(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.ends_with("+sentinel"))
}

/// Splits a list of URLs at its commas, except at those between the sentinels of one URL.
pub(crate) fn split(text: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let is_url = part.contains("://") || part.starts_with("local:");
        match urls.last_mut().filter(|url| !is_url && is_sentinel(url)) {
            Some(url) => *url += &format!(",{part}"),
            None => urls.push(part.to_owned()),
        }
    }
    urls
}

/// Whether an argument contains several URLs of servers.
fn is_list(argument: &str) -> bool {
    argument.split(',').skip(1).any(|url| url.contains("://"))
}

/// Reads a nodes file. Also returns whether another process can read it.
pub(crate) fn from_file(path: &Path) -> Result<(Vec<String>, bool), String> {
    let shown = path.display();
    let unreadable = |error| format!("cannot read the nodes file {shown}: {error}");
    let file = OpenFile::open(path).map_err(unreadable)?;
    // The mode of a device must not be changed.
    if !file.is_regular && !file.is_pipe {
        return Err(format!(
            "the nodes file {shown} is neither a regular file nor a pipe"
        ));
    }
    let what = format!("the nodes file {shown} may contain passwords");
    refuse_access_of_others(path, file.mode, &what)?;
    let is_lasting = file.is_lasting(path);
    let text = file.read().map_err(unreadable)?;
    let lines = text.lines().map(str::trim);
    // `#` starts a comment only after a space: it may be part of a URL.
    let lines = lines.map(|line| line.split_once(" #").map_or(line, |(url, _)| url.trim()));
    let urls: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    match urls.is_empty() {
        true => Err(format!(
            "the nodes file {shown} contains no URL; write one URL per line"
        )),
        false => Ok((urls, is_lasting)),
    }
}

/// Reads a certificate or a key.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn the_sentinels_of_a_url_stay_together() {
        let text = "redis://a, redis+sentinel://u@b,c:1 ,d/x/2,redis://e,local:";
        let urls = [
            "redis://a",
            "redis+sentinel://u@b,c:1,d/x/2",
            "redis://e",
            "local:",
        ];
        assert_eq!(split(text), urls);
        assert_eq!(split("redis://a,b,"), ["redis://a", "b"]);
    }
}
