//! Metrics for Prometheus: serves `/metrics`, does some work under locks, and prints what a scrape
//! returns.
//!
//! ```sh
//! cargo run -p leasehold --features metrics --example prometheus
//! cargo run -p leasehold --features metrics --example prometheus -- --serve    # until Ctrl-C
//! ```

use std::error::Error;
use std::time::Duration;

use axum::{Router, routing::get};
use leasehold::observe::MetricsObserver;
use leasehold::{Client, MemoryNode};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Chosen for locks: from a round trip to a wait that somebody notices.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // First the recorder, then the observer, which describes its metrics to it.
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("leasehold_".into()), &BUCKETS)?
        .install_recorder()?;
    let client = Client::builder()
        .custom_node(MemoryNode::new("memory"))
        .observer(MetricsObserver::new())
        .build()?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("metrics are at http://{address}/metrics");
    let app = Router::new().route("/metrics", get(async move || metrics.render()));
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    work(&client).await?;
    if std::env::args().nth(1).as_deref() == Some("--serve") {
        return Ok(server.await??);
    }
    let page = scrape(&address.to_string()).await?;
    let shown = page.lines().filter(|line| !line.starts_with('#'));
    for line in shown.filter(|line| line.starts_with("leasehold_") && !line.contains("_bucket")) {
        println!("{line}");
    }
    for expected in [
        "leasehold_acquire_wait_seconds_count{class=\"orders/*\",outcome=\"granted\"} 2",
        "leasehold_acquire_wait_seconds_count{class=\"orders/*\",outcome=\"timeout\"} 1",
        "leasehold_contended_total{class=\"orders/*\"} 1",
        "leasehold_leases_held{class=\"orders/*\"} 0",
    ] {
        assert!(page.contains(expected), "no {expected} in:\n{page}");
    }
    Ok(())
}

/// Holds two locks of one class, and waits for one of them in vain.
async fn work(client: &Client) -> Result<(), leasehold::Error> {
    let first = client.mutex("orders/1").lock().await?;
    let second = client.mutex("orders/2").lock().await?;
    let again = client
        .mutex("orders/1")
        .try_lock_for(Duration::from_millis(20));
    assert!(again.await?.is_none());
    first.release().await;
    second.release().await;
    Ok(())
}

/// Requests the page as Prometheus does.
async fn scrape(address: &str) -> Result<String, std::io::Error> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}
