//! `rediss://`, with certificates that the test makes with the `openssl` program.
#![cfg(feature = "tls")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::node::NodeError;
use leasehold::{Client, Error, Invalid, Released, TlsPart};
use leasehold_testkit::{RedisServer, TempDir, free_port};

/// A directory with a certificate authority and a certificate for 127.0.0.1.
struct Certificates(TempDir);

impl Certificates {
    fn make() -> Self {
        let dir = TempDir::new();
        std::fs::write(
            dir.path().join("names"),
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
        )
        .unwrap();
        let key = ["-newkey", "rsa:2048", "-nodes", "-keyout"];
        let authority = [
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=test-ca",
            "-out",
            "ca.pem",
        ];
        openssl(dir.path(), &[&authority[..], &key, &["ca.key"]].concat());
        let request = ["req", "-subj", "/CN=localhost", "-out", "server.csr"];
        openssl(dir.path(), &[&request[..], &key, &["server.key"]].concat());
        let sign = [
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            "server.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "names",
            "-out",
            "server.pem",
        ];
        openssl(dir.path(), &sign);
        Self(dir)
    }

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).display().to_string()
    }

    fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(file)).unwrap()
    }
}

fn openssl(dir: &Path, args: &[&str]) {
    let mut command = Command::new("openssl");
    let command = command.args(args).current_dir(dir).stderr(Stdio::null());
    let status = command.status().expect("the openssl program is installed");
    assert!(status.success(), "openssl {args:?}");
}

#[tokio::test]
async fn client_and_server_check_certificates() {
    let certificates = Certificates::make();
    let port = free_port().to_string();
    let _server = RedisServer::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificates.path("server.pem"),
        "--tls-key-file",
        &certificates.path("server.key"),
        "--tls-ca-cert-file",
        &certificates.path("ca.pem"),
        "--tls-auth-clients",
        "yes",
    ]);
    let builder = || {
        Client::builder()
            .node(format!("rediss://127.0.0.1:{port}"))
            .connect_timeout(Duration::from_secs(10))
    };
    let ca = || certificates.read("ca.pem");
    // First an authority that the client does not know, then a client without a certificate.
    for builder in [builder(), builder().tls_root_certificate(ca())] {
        let refused = builder.connect().await;
        let Err(Error::Invalid(Invalid::Node { error, .. })) = &refused else {
            panic!("{refused:?}");
        };
        assert!(matches!(error, NodeError::Tls { .. }), "{error:?}");
    }
    for (what, builder) in [
        (
            TlsPart::RootCertificate,
            builder().tls_root_certificate("no certificate"),
        ),
        (
            TlsPart::RootCertificate,
            builder().tls_root_certificate(certificates.read("ca.key")),
        ),
        (
            TlsPart::ClientCertificate,
            builder().tls_client_certificate("", certificates.read("ca.key")),
        ),
        (
            TlsPart::ClientKey,
            builder().tls_client_certificate(ca(), ""),
        ),
    ] {
        let refused = builder.build();
        assert!(
            matches!(&refused, Err(Error::Invalid(Invalid::Tls { what: is, .. })) if *is == what),
            "{refused:?}"
        );
    }
    let client = builder()
        .tls_root_certificate(ca())
        .tls_client_certificate(
            certificates.read("server.pem"),
            certificates.read("server.key"),
        )
        .connect()
        .await
        .expect("let in");
    let lease = client.mutex("a").lock().await.expect("a lease");
    lease.extend().await.expect("extended");
    assert_eq!(lease.release().await, Released::Released);
}
