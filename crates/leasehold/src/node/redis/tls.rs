//! TLS to a server.

use std::io;

use tokio::net::TcpStream;

use super::stream::Bytes;
use crate::node::NodeSettings;

/// How to open TLS connections; nothing for servers without TLS.
#[derive(Clone, Default)]
pub(super) struct TlsClient {
    #[cfg(feature = "tls")]
    connector: Option<tokio_rustls::TlsConnector>,
}

#[cfg(feature = "tls")]
impl TlsClient {
    /// With the certificates of the settings, or those of public authorities.
    pub(super) fn new(settings: &NodeSettings) -> Result<Self, String> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        // rustls needs a cryptography provider, unless the program has chosen one.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // If another thread was faster, its provider is used.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let certificates = |pem: &[u8]| -> Result<Vec<_>, String> {
            let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>();
            certificates.map_err(|_| "a certificate cannot be read".into())
        };
        let mut roots = rustls::RootCertStore::empty();
        match &settings.tls.root {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(pem) => {
                for certificate in certificates(pem)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| format!("the root certificate: {error}"))?;
                }
            }
        }
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        let config = match &settings.tls.client {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| "the client key cannot be read".to_owned())?;
                let config = config.with_client_auth_cert(certificates(chain)?, key);
                config.map_err(|error| format!("the client certificate: {error}"))?
            }
        };
        Ok(Self {
            connector: Some(std::sync::Arc::new(config).into()),
        })
    }

    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<Box<dyn Bytes>> {
        let name = rustls::pki_types::ServerName::try_from(host.to_owned());
        let name = name.map_err(io::Error::other)?;
        match &self.connector {
            Some(connector) => Ok(Box::new(connector.connect(name, stream).await?)),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

#[cfg(not(feature = "tls"))]
impl TlsClient {
    pub(super) fn new(_: &NodeSettings) -> Result<Self, String> {
        Err("TLS needs the `tls` feature of leasehold".into())
    }

    pub(super) async fn connect(&self, _: &str, _: TcpStream) -> io::Result<Box<dyn Bytes>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
