use std::sync::Arc;

use super::*;
use crate::node::rules::Constants;
use crate::node::{Tls, VERIFY_AFTER};
use crate::observe::Sight;

fn settings(connect_timeout: Duration) -> NodeSettings {
    NodeSettings {
        constants: Constants::for_nodes(1),
        assume_fresh: true,
        prefix: Vec::new(),
        connect_timeout,
        verify_after: VERIFY_AFTER,
        clock: Clock::default(),
        seed: 1,
        tls: Tls::default(),
        replicas: None,
        sight: Arc::new(Sight::new(Clock::default(), 1, Vec::new(), None)),
    }
}

/// As a server that is stopped: the kernel accepts, and nobody answers.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_that_sends_no_certificate_is_not_waited_for() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = Target::parse(
        &format!("rediss://127.0.0.1:{port}"),
        &settings(Duration::from_millis(50)),
    );
    let address = Address::Tls {
        host: "127.0.0.1".into(),
        port,
    };
    let target = target.unwrap();
    let asking = target.certificate(&address, Duration::from_millis(50));
    let answer = tokio::time::timeout(Duration::from_secs(60), asking).await;
    let why = answer.expect("it gives up").expect("it uses TLS");
    assert_eq!(why.unwrap_err(), "no answer within 50ms");
}
