//! TLS to a server.

use std::io;

use tokio::net::TcpStream;

#[cfg(all(feature = "tls", feature = "doctor"))]
use super::connection::Connection;
use super::stream::Bytes;
use crate::node::NodeSettings;

/// How to open TLS connections; nothing for servers without TLS.
#[derive(Clone, Default)]
pub(super) struct TlsClient {
    #[cfg(feature = "tls")]
    connector: Option<tokio_rustls::TlsConnector>,
    #[cfg(all(feature = "tls", feature = "doctor"))]
    roots: Option<std::sync::Arc<rustls::RootCertStore>>,
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
        let roots = std::sync::Arc::new(roots);
        let config = rustls::ClientConfig::builder();
        let config = config.with_root_certificates(std::sync::Arc::clone(&roots));
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
            #[cfg(feature = "doctor")]
            roots: Some(roots),
        })
    }

    /// How long the server's certificate, and those that it depends on, are valid. Connects for it.
    #[cfg(feature = "doctor")]
    pub(super) async fn certificate_left(
        &self,
        host: &str,
        port: u16,
    ) -> Result<std::time::Duration, String> {
        use rustls::CertificateError::{Expired, ExpiredContext};
        use rustls::client::WebPkiServerVerifier;
        use rustls::client::danger::ServerCertVerifier;
        use rustls::pki_types::{ServerName, UnixTime};

        /// A certificate that is valid for longer is not looked at further.
        const FAR: std::time::Duration = std::time::Duration::from_secs(100 * 366 * 24 * 3600);
        let (Some(connector), Some(roots)) = (&self.connector, &self.roots) else {
            return Err("TLS is not set up".into());
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let stream = connector.connect(name.clone(), stream).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let (_, session) = stream.get_ref();
        let sent = session.peer_certificates().map(<[_]>::to_vec);
        let Some([own, others @ ..]) = sent.as_deref() else {
            return Err("the server sent no certificate".into());
        };
        // A connection that is closed before the server has looked at it counts as rejected there.
        let mut ping = redis::Pipeline::new();
        ping.cmd("PING");
        let answered = Connection::new(Box::new(stream), std::sync::Weak::new());
        let answered = answered.exchange(&ping).await;
        answered.map_err(|error| error.to_string())?;
        let verifier = WebPkiServerVerifier::builder(std::sync::Arc::clone(roots)).build();
        let verifier = verifier.map_err(|error| error.to_string())?;
        // Asks until when the certificates can be verified: an error names the first that ends.
        let now = UnixTime::now();
        let mut end = UnixTime::since_unix_epoch(
            std::time::Duration::from_secs(now.as_secs()).saturating_add(FAR),
        );
        loop {
            let verified = verifier.verify_server_cert(own, others, &name, &[], end);
            match verified {
                Ok(_) => {
                    let left = end.as_secs().saturating_sub(now.as_secs());
                    return Ok(std::time::Duration::from_secs(left));
                }
                Err(rustls::Error::InvalidCertificate(ExpiredContext { not_after, .. }))
                    if not_after < end =>
                {
                    end = not_after;
                }
                Err(rustls::Error::InvalidCertificate(Expired)) => {
                    return Err("the library does not say when it expires".into());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
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

    #[cfg(feature = "doctor")]
    pub(super) async fn certificate_left(
        &self,
        _: &str,
        _: u16,
    ) -> Result<std::time::Duration, String> {
        Err("TLS needs the `tls` feature of leasehold".into())
    }
}
