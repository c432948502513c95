//! Transfers between two accounts, each of which has a lock of its own: several names at once.
//!
//! ```sh
//! cargo run --example transfer
//! ```
//!
//! Half of the tasks move money one way, half of them the other way. Locking the accounts one after the
//! other would end in a deadlock. Give it the URLs of Redis servers to do the same there.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let client = match urls.is_empty() {
        true => Client::in_memory(),
        false => Client::builder().nodes(urls).connect().await?,
    };
    let accounts: Arc<[AtomicI64; 2]> = Arc::new([AtomicI64::new(100), AtomicI64::new(100)]);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (from, to) = (number % 2, 1 - number % 2);
        tasks.spawn(transfer(client.clone(), Arc::clone(&accounts), from, to));
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no task panics")?;
    }
    let [a, b] = [0, 1].map(|account: usize| accounts[account].load(Ordering::SeqCst));
    println!("after 20 transfers: {a} + {b} = {}", a + b);
    assert_eq!((a, b), (100, 100));
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Reads both balances, thinks, and writes both: without the locks, updates would be lost.
async fn transfer(
    client: Client,
    accounts: Arc<[AtomicI64; 2]>,
    from: usize,
    to: usize,
) -> Result<(), Error> {
    let names = [from, to].map(|account| format!("accounts/{account}"));
    client
        .mutexes(names)
        .with(async |leases| {
            let [source, target] = [from, to].map(|a| accounts[a].load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(2)).await;
            accounts[from].store(source - 10, Ordering::SeqCst);
            accounts[to].store(target + 10, Ordering::SeqCst);
            let tokens: Vec<u64> = leases.tokens().map(|(_, token)| token).collect();
            println!("10 from {from} to {to}, with tokens {tokens:?}");
        })
        .await
}
