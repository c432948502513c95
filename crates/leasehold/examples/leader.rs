//! A leader that fails, the candidate that follows it, and an observer.
//!
//! ```sh
//! cargo run --example leader
//! ```
//!
//! Give it the URLs of Redis servers and start it in several terminals to see one of them lead:
//! `cargo run --example leader -- redis://localhost`.

use std::time::Duration;

use leasehold::{Client, Election, Error, MemoryNode};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let memory = MemoryNode::new("memory");
    let client = async || match urls.is_empty() {
        true => Client::builder().custom_node(memory.clone()).build(),
        false => Client::builder().nodes(&urls).connect().await,
    };
    let observed = client().await?.election("scheduler");
    let observer = tokio::spawn(observe(observed));
    let mut candidates = Vec::new();
    for value in ["10.0.0.1:80", "10.0.0.2:80"] {
        // A failover takes at most a TTL.
        let options = |o: leasehold::Options| o.ttl(Duration::from_secs(3));
        let election = client().await?.election("scheduler").with_options(options);
        candidates.push(tokio::spawn(lead(election, value)));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Its task ends, and the client resigns for it. If the process is killed, the TTL ends its lease.
    println!("-- 10.0.0.1:80 fails");
    candidates.remove(0).abort();
    tokio::time::sleep(Duration::from_secs(5)).await;
    observer.abort();
    Ok(())
}

async fn lead(election: Election, value: &str) -> Result<(), Error> {
    let term = election.lead(value, async |lease| {
        println!("{value} leads, token {}", lease.token());
        std::future::pending::<()>().await;
    });
    term.await
}

async fn observe(election: Election) -> Result<(), Error> {
    let mut observer = election.observe();
    loop {
        match observer.changed().await? {
            Some(leader) => println!("observer: {} leads, token {}", leader.value, leader.token),
            None => println!("observer: nobody leads"),
        }
    }
}
