//! Readers and a writer: reports that see a consistent state, while an import changes it.
//!
//! ```sh
//! cargo run --example readers
//! ```
//!
//! Give it the URLs of Redis servers to do the same there:
//! `cargo run --example readers -- redis://localhost`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Client, Error};

/// Two tables that must agree. Nothing but the lock keeps a reader from seeing one of them changed and
/// the other one not.
#[derive(Default)]
struct Catalog {
    prices: AtomicU32,
    stock: AtomicU32,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let client = if urls.is_empty() {
        Client::in_memory()
    } else {
        Client::builder().nodes(urls).connect().await?
    };
    let catalog = Arc::new(Catalog::default());
    let mut tasks = Vec::new();
    for reader in 1..=3 {
        let (client, catalog) = (client.clone(), Arc::clone(&catalog));
        tasks.push(tokio::spawn(async move {
            report(&client, &catalog, reader).await
        }));
    }
    let (importing, imported) = (client.clone(), Arc::clone(&catalog));
    tasks.push(tokio::spawn(
        async move { import(&importing, &imported).await },
    ));
    for task in tasks {
        task.await.expect("the task does not panic")?;
    }
    println!("\nNo report saw half of an import.");
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn import(client: &Client, catalog: &Catalog) -> Result<(), Error> {
    for version in 1..=3 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let writing = client.rw_lock("catalog").write().await?;
        println!("        import {version} begins, token {}", writing.token());
        catalog.prices.store(version, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(80)).await;
        catalog.stock.store(version, Ordering::SeqCst);
        // Read what was written, together with others, before anyone changes it again.
        let reading = writing.downgrade().await?;
        println!("        import {version} is checked");
        reading.release().await;
    }
    Ok(())
}

async fn report(client: &Client, catalog: &Catalog, reader: u32) -> Result<(), Error> {
    let lock = client.rw_lock("catalog");
    for _ in 0..4 {
        lock.with_read(async |_| {
            let prices = catalog.prices.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(40)).await;
            let stock = catalog.stock.load(Ordering::SeqCst);
            println!("report {reader}: prices {prices}, stock {stock}");
            assert_eq!(prices, stock, "a consistent state");
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
