//! A cache entry that many requests miss at the same moment, and one of them fills.
//!
//! ```sh
//! cargo run --example cache
//! ```
//!
//! Give it the URLs of Redis servers to share the entry between machines:
//! `cargo run --example cache -- redis://localhost`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let client = match urls.is_empty() {
        true => Client::in_memory(),
        false => Client::builder().nodes(urls).connect().await?,
    };
    let queries = Arc::new(AtomicU32::new(0));
    for round in 1..=2 {
        let started = Instant::now();
        let requests: Vec<_> = (0..1000)
            .map(|_| tokio::spawn(price_list(client.clone(), Arc::clone(&queries))))
            .collect();
        let mut longest = Duration::ZERO;
        for request in requests {
            request.await.expect("the task does not panic");
            longest = longest.max(started.elapsed());
        }
        let queries = queries.load(Ordering::Relaxed);
        println!("round {round}: 1000 requests within {longest:.0?}; queries so far: {queries}");
    }
    Ok(())
}

/// The price list, at most a minute old.
async fn price_list(client: Client, queries: Arc<AtomicU32>) -> Arc<[u8]> {
    let entry = client.once("cache/prices", Duration::from_secs(60));
    let filled = entry.run(async |_| {
        queries.fetch_add(1, Ordering::Relaxed);
        // An expensive query.
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, std::convert::Infallible>(b"tea 3, coffee 4".to_vec())
    });
    match filled.await {
        Ok(done) => done.bytes,
        // The lock only saves work: without it, each request would query by itself.
        Err(error) => panic!("no price list: {error}"),
    }
}
