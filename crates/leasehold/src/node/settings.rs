//! Settings of a client that nodes with a URL need.

use std::sync::Arc;
use std::time::Duration;

use super::rules::Constants;
use crate::base::clock::Clock;
use crate::base::error::Invalid;
use crate::observe::Sight;

/// How long a client uses a connection before it asks the server for its identity again.
pub(crate) const VERIFY_AFTER: Duration = Duration::from_secs(1);

/// What a node needs besides its URL.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
#[derive(Clone)]
pub(crate) struct NodeSettings {
    pub(crate) constants: Constants,
    pub(crate) assume_fresh: bool,
    /// The prefix of every name. Each prefix has its own record on a server.
    pub(crate) prefix: Vec<u8>,
    pub(crate) connect_timeout: Duration,
    /// [`VERIFY_AFTER`], or another value in a test.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) verify_after: Duration,
    pub(crate) clock: Clock,
    /// For the jitter of retries.
    #[cfg_attr(not(any(feature = "redis", feature = "local")), allow(dead_code))]
    pub(crate) seed: u64,
    pub(crate) tls: Tls,
    /// `None`: a vote counts at once.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) replicas: Option<Replicas>,
    /// Where the state of the node is reported.
    pub(crate) sight: Arc<Sight>,
}

/// How many replicas of a server must have what it grants.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) wanted: u32,
    pub(crate) otherwise: Shortfall,
}

/// What happens to a grant that too few replicas have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortfall {
    /// It does not count.
    Refuse,
    /// It counts, and a warning is logged.
    Warn,
}

/// The certificates and the key for `rediss://` nodes.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) struct Tls {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Which of them there are.
    #[cfg(all(feature = "doctor", feature = "redis"))]
    pub(crate) fn files(&self) -> crate::doctor::facts::TlsFiles {
        crate::doctor::facts::TlsFiles {
            root: self.root.is_some(),
            client: self.client.is_some(),
        }
    }

    /// Checks that the certificates and the key can be parsed. Otherwise connections would fail
    /// later, with an error that misleads.
    #[cfg(feature = "tls")]
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        use crate::base::error::TlsPart::{ClientCertificate, ClientKey, RootCertificate};
        use rustls::pki_types::pem::{self, PemObject};
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let invalid = |what, error: &pem::Error| {
            let why = format!("invalid PEM: {}", describe(error));
            Invalid::Tls { what, why }
        };
        let certificate = |what, pem: &[u8]| {
            let mut count = 0;
            for certificate in CertificateDer::pem_slice_iter(pem) {
                certificate.map_err(|error| invalid(what, &error))?;
                count += 1;
            }
            match count {
                0 => Err(Invalid::Tls {
                    what,
                    why: "it contains no certificate (PEM)".into(),
                }),
                _ => Ok(()),
            }
        };
        if let Some(pem) = &self.root {
            certificate(RootCertificate, pem)?;
        }
        if let Some((pem, key)) = &self.client {
            certificate(ClientCertificate, pem)?;
            PrivateKeyDer::from_pem_slice(key).map_err(|error| invalid(ClientKey, &error))?;
        }
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }
}

/// Describes a PEM error without quoting the file, which may contain a private key.
#[cfg(feature = "tls")]
fn describe(error: &rustls::pki_types::pem::Error) -> &'static str {
    use rustls::pki_types::pem::Error;
    match error {
        Error::MissingSectionEnd { .. } => {
            "a section has no `-----END` line; the file may be truncated"
        }
        Error::IllegalSectionStart { .. } => "a `-----BEGIN` line is malformed",
        Error::Base64Decode(_) => "a section contains characters that are not base64",
        Error::NoItemsFound => "it contains no section of the expected kind",
        _ => "it cannot be read",
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;

    /// A key on a single line, as in an environment variable without line breaks.
    #[test]
    fn errors_do_not_quote_a_private_key() {
        let begin = "-----BEGIN PRIVATE KEY-----";
        let end = "-----END PRIVATE KEY-----";
        for key in [
            format!("{begin}\nc2VjcmV0\n"),
            format!("{begin}c2VjcmV0{end}"),
            format!("{begin} c2VjcmV0"),
            format!("{begin}\nc2VjcmV0!\n{end}\n"),
        ] {
            let certificate = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
            let tls = Tls {
                root: None,
                client: Some((certificate.into(), key.clone().into())),
            };
            let text = tls.validate().expect_err(&key).to_string();
            assert!(text.starts_with("the client key: invalid PEM: "), "{text}");
            // As text, or as a list of bytes ("c2V").
            assert!(
                !text.contains("c2V") && !text.contains("99, 50, 86"),
                "{text}"
            );
        }
    }
}
