//! Commands to copy into a shell. Servers, other clients and URLs choose some of their words.

use super::facts::{Address, TlsFiles};

/// A word of a command, as a shell reads it.
#[doc(hidden)]
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        // Within single quotes only the single quote is special.
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The name of a lock as an argument of `leasehold`, also if it looks like an option.
pub(super) fn lock(name: &str) -> String {
    match quoted(name) {
        plain if plain == name && !name.starts_with('-') => plain,
        quoted => format!("-- {quoted}"),
    }
}

impl Address {
    /// The start of a command line for this server.
    pub(super) fn redis_cli(&self) -> String {
        let at = |host: &str, port: &u16| {
            let host = quoted(host.trim_matches(['[', ']']));
            format!("-h {host} -p {port}")
        };
        match self {
            Self::Socket(path) => format!("redis-cli -s {}", quoted(path)),
            Self::Tcp { host, port } => format!("redis-cli {}", at(host, port)),
            Self::Tls { host, port, files } => {
                format!("redis-cli --tls{} {}", files.options(), at(host, port))
            }
        }
    }
}

impl TlsFiles {
    /// The options of redis-cli. The library knows the content of these files, and not where they are.
    fn options(self) -> String {
        let mut options = String::new();
        if self.root {
            options += " --cacert CA_FILE";
        }
        if self.client {
            options += " --cert CERT_FILE --key KEY_FILE";
        }
        options
    }
}
