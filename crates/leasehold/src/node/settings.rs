//! What nodes by URL are told by whoever makes a client.

use std::time::Duration;

use super::rules::Constants;
use crate::base::clock::Clock;
use crate::base::error::Invalid;

/// How long a node on a server is used without asking the server again who it is.
pub(crate) const VERIFY_AFTER: Duration = Duration::from_secs(1);

/// What a node needs to know beside its URL.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
#[derive(Clone)]
pub(crate) struct NodeSettings {
    pub(crate) constants: Constants,
    pub(crate) assume_fresh: bool,
    /// Put before every name. What a server has on record is separate for each.
    pub(crate) prefix: Vec<u8>,
    pub(crate) connect_timeout: Duration,
    /// [`VERIFY_AFTER`], or something else in a test.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) verify_after: Duration,
    pub(crate) clock: Clock,
    pub(crate) tls: Tls,
}

/// What `rediss://` nodes are shown and believed.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) struct Tls {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Checks that there is a certificate where there must be one, and a key: without, every
    /// server would be refused later, with an error that misleads.
    #[cfg(feature = "tls")]
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        use crate::base::error::TlsPart::{ClientCertificate, ClientKey, RootCertificate};
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let unreadable = |what, why: &dyn std::fmt::Display| {
            let why = format!("it cannot be read as PEM ({why})");
            Invalid::Tls { what, why }
        };
        let certificate = |what, pem: &[u8]| {
            let mut count = 0;
            for certificate in CertificateDer::pem_slice_iter(pem) {
                certificate.map_err(|error| unreadable(what, &error))?;
                count += 1;
            }
            match count {
                0 => Err(Invalid::Tls {
                    what,
                    why: "there is no certificate (PEM) in it".into(),
                }),
                _ => Ok(()),
            }
        };
        if let Some(pem) = &self.root {
            certificate(RootCertificate, pem)?;
        }
        if let Some((pem, key)) = &self.client {
            certificate(ClientCertificate, pem)?;
            PrivateKeyDer::from_pem_slice(key).map_err(|error| unreadable(ClientKey, &error))?;
        }
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }
}
