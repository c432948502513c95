//! Which nodes to use: arguments, a file, the environment, or the embedded store.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leasehold::{Builder, Client, Options};

use crate::args::Nodes;
use crate::exit::Failure;
use crate::talk::say;

/// The variable that names the nodes.
pub(crate) const VARIABLE: &str = "LEASEHOLD_NODES";
/// Says to a `leasehold` inside of a command that the above was taken from it.
pub(crate) const REMOVED: &str = "LEASEHOLD_NODES_REMOVED";

impl Nodes {
    /// A client of these nodes.
    pub(crate) fn client(&self, options: Options) -> Result<Client, Failure> {
        let mut builder = self.builder()?.options(options);
        if let Some(guard) = self.restart_guard {
            builder = builder.restart_guard(guard);
        }
        if self.assume_fresh {
            builder = builder.assume_fresh();
        }
        if let Some(path) = &self.tls_ca {
            builder = builder.tls_root_certificate(read(path)?);
        }
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            builder = builder.tls_client_certificate(read(certificate)?, read(key)?);
        }
        Ok(builder.prefix(&self.prefix).build()?)
    }

    fn builder(&self) -> Result<Builder, Failure> {
        let urls = self.urls()?;
        Ok(Client::builder().nodes(urls))
    }

    fn urls(&self) -> Result<Vec<String>, Failure> {
        if !self.node.is_empty() {
            if self.node.iter().any(|url| has_password(url)) {
                say(format!(
                    "warning: every user of this machine can see a password in an argument; put \
                     the nodes into {VARIABLE} or a --nodes-file"
                ));
            }
            return Ok(self.node.clone());
        }
        if let Some(path) = &self.nodes_file {
            return from_file(path);
        }
        match std::env::var(VARIABLE) {
            Ok(text) => {
                let urls = text.split(',').map(str::trim);
                let urls: Vec<_> = urls
                    .filter(|url| !url.is_empty())
                    .map(str::to_owned)
                    .collect();
                match urls.is_empty() {
                    true => Err(Failure::usage(format!(
                        "{VARIABLE} is set but names no node; unset it to use the embedded store"
                    ))),
                    false => Ok(urls),
                }
            }
            // Another store than the one outside would exclude nobody.
            Err(std::env::VarError::NotPresent) if std::env::var_os(REMOVED).is_some() => {
                Err(Failure::usage(format!(
                    "which nodes? A command that `leasehold run` started does not get {VARIABLE}; \
                     give --nodes-file, or `--node local:` for the embedded store"
                )))
            }
            Err(std::env::VarError::NotPresent) => Ok(vec!["local:".to_owned()]),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Failure::usage(format!("{VARIABLE} is not valid UTF-8")))
            }
        }
    }
}

fn from_file(path: &Path) -> Result<Vec<String>, Failure> {
    let unreadable = |error| {
        Failure::usage(format!(
            "cannot read --nodes-file {}: {error}",
            path.display()
        ))
    };
    let mode = std::fs::metadata(path).map_err(unreadable)?.mode();
    if mode & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "--nodes-file {} can be read by others (mode {:04o}) and may hold passwords; run \
             `chmod 600 {0}`",
            path.display(),
            mode & 0o7777
        )));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let lines = text.lines().map(str::trim);
    // `#` begins a comment, but may be part of a URL.
    let lines = lines.map(|line| line.split_once(" #").map_or(line, |(url, _)| url.trim()));
    let urls: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    match urls.is_empty() {
        true => Err(Failure::usage(format!(
            "--nodes-file {} names no node; write one URL on each line",
            path.display()
        ))),
        false => Ok(urls),
    }
}

/// Whether a URL carries a password: `scheme://user:password@host` or `?pass=…`.
fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else {
        return false;
    };
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = authority.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':')) || query.split('&').any(|p| p.starts_with("pass="))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn passwords_are_recognised() {
        for url in [
            "redis://user:secret@host",
            "rediss://:secret@host:6379/1",
            "redis+unix:///run/redis.sock?db=1&pass=secret",
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
