//! Finds out which nodes to use: from arguments, a file, the environment, or the default.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Builder, Client, Options};

use crate::args::{Guard, NodeArgs};
use crate::exit::Failure;
use crate::report::print_message;

/// The variable that names the nodes.
const VARIABLE: &str = "LEASEHOLD_NODES";
/// The variable that names a file of nodes.
const FILE_VARIABLE: &str = "LEASEHOLD_NODES_FILE";
/// Set for a command if the nodes of its `leasehold run` are not passed on to it.
const HIDDEN: &str = "LEASEHOLD_NODES_HIDDEN";
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
}

/// Where the URLs of the nodes come from.
enum Source {
    Default,
    Urls,
    File(PathBuf),
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
        })
    }

    fn urls(&self) -> Result<(Source, Vec<String>), Failure> {
        if !self.node.is_empty() {
            if self.node.iter().any(|url| has_password(url)) {
                print_message(format!(
                    "warning: a password in an argument is visible to all users of this machine; \
                     put the nodes into {VARIABLE} or a --nodes-file"
                ));
            }
            if self.node.iter().any(|url| is_list(url)) {
                return Err(Failure::usage(format!(
                    "--node takes one URL; repeat it for each server (only {VARIABLE} is separated \
                     by commas)"
                )));
            }
            return Ok((Source::Urls, self.node.clone()));
        }
        if let Some(path) = &self.nodes_file {
            return Ok((Source::File(path.clone()), from_file(path)?));
        }
        let file = std::env::var_os(FILE_VARIABLE).map(PathBuf::from);
        match (std::env::var(VARIABLE), file) {
            (Err(std::env::VarError::NotUnicode(_)), _) => {
                Err(Failure::usage(format!("{VARIABLE} is not valid UTF-8")))
            }
            (Ok(_), Some(_)) => Err(Failure::usage(format!(
                "{VARIABLE} and {FILE_VARIABLE} are both set; unset one of them"
            ))),
            (Ok(text), None) => Ok((Source::Urls, from_variable(&text)?)),
            (Err(_), Some(path)) => {
                let urls = from_file(&path)?;
                Ok((Source::File(path), urls))
            }
            // The embedded store would not exclude clients of the nodes of the outer command.
            (Err(_), None) if std::env::var_os(HIDDEN).is_some() => Err(Failure::usage(
                "the node URLs of the enclosing `leasehold run` contain a password (or a comma), so they \
                 are not passed on to its command\nnext: put the URLs into a file with mode 0600, and use \
                 --nodes-file with the enclosing `leasehold run`, which passes it on, or with this \
                 command (to use the embedded store: `--node local:`)",
            )),
            (Err(_), None) => Ok((Source::Default, vec!["local:".to_owned()])),
        }
    }
}

impl Deployment<'_> {
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
        match args.restart_guard {
            None => {}
            Some(Guard::Off) => builder = builder.without_restart_guard(),
            Some(Guard::For(guard)) => builder = builder.restart_guard(guard),
        }
        if args.assume_fresh {
            builder = builder.assume_fresh();
        }
        if let Some(path) = &args.tls_ca {
            builder = builder.tls_root_certificate(read(path)?);
        }
        if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
            builder = builder.tls_client_certificate(read(certificate)?, read(key)?);
        }
        Ok(builder.prefix(&args.prefix))
    }

    /// The variables to set or to remove so that another `leasehold` uses the same nodes with the
    /// same options. They contain no password. `--assume-fresh` is not passed on: servers that were
    /// new when this process started may have restarted since.
    pub(crate) fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let (mut urls, mut file, mut hidden) = (None, None, None);
        match &self.source {
            Source::Default => {}
            Source::File(path) => file = Some(absolute(path)),
            Source::Urls if self.urls.iter().any(|url| is_private(url)) => {
                hidden = Some("1".into());
            }
            Source::Urls => urls = Some(self.urls.join(",").into()),
        }
        let args = self.args;
        let path = |path: &Option<PathBuf>| path.as_deref().map(absolute);
        let guard = args.restart_guard.map(|guard| match guard {
            Guard::Off => "off".to_owned(),
            Guard::For(guard) => humantime::format_duration(guard).to_string(),
        });
        vec![
            (VARIABLE, urls),
            (FILE_VARIABLE, file),
            (HIDDEN, hidden),
            (
                "LEASEHOLD_PREFIX",
                (!args.prefix.is_empty()).then(|| args.prefix.clone().into()),
            ),
            ("LEASEHOLD_RESTART_GUARD", guard.map(OsString::from)),
            ("LEASEHOLD_TLS_CA", path(&args.tls_ca)),
            ("LEASEHOLD_TLS_CERT", path(&args.tls_cert)),
            ("LEASEHOLD_TLS_KEY", path(&args.tls_key)),
        ]
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
fn split(text: &str) -> Vec<String> {
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

fn from_variable(text: &str) -> Result<Vec<String>, Failure> {
    let urls = split(text);
    match urls.is_empty() {
        true => Err(Failure::usage(format!(
            "{VARIABLE} is set but contains no URL; unset it to use the embedded store"
        ))),
        false => Ok(urls),
    }
}

fn from_file(path: &Path) -> Result<Vec<String>, Failure> {
    let unreadable = |error| {
        Failure::usage(format!(
            "cannot read the nodes file {}: {error}",
            path.display()
        ))
    };
    let mode = std::fs::metadata(path).map_err(unreadable)?.mode();
    if mode & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "the nodes file {} may contain passwords but other users have access to it (mode \
             {:04o}); run `chmod 600 {0}`",
            path.display(),
            mode & 0o7777
        )));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let lines = text.lines().map(str::trim);
    // `#` starts a comment only after a space: it may be part of a URL.
    let lines = lines.map(|line| line.split_once(" #").map_or(line, |(url, _)| url.trim()));
    let urls: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    match urls.is_empty() {
        true => Err(Failure::usage(format!(
            "the nodes file {} contains no URL; write one URL per line",
            path.display()
        ))),
        false => Ok(urls),
    }
}

/// Whether a URL contains a password: `scheme://user:password@host` or `?pass=…`.
fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = authority.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':'))
        || query
            .split('&')
            .any(|p| p.starts_with("pass=") || p.starts_with("sentinel_pass="))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::{has_password, split};

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

    #[test]
    fn passwords_are_recognised() {
        for url in [
            "redis://user:secret@host",
            "rediss://:secret@host:6379/1",
            "redis+unix:///run/redis.sock?db=1&pass=secret",
            "redis+sentinel://a,b/x?sentinel_pass=secret",
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in [
            "redis://host:6379",
            "redis://user@host",
            "local:/a:b@c",
            "redis://h/1?a=b",
        ] {
            assert!(!has_password(url), "{url}");
        }
    }
}
