//! Two tasks take turns under one lock, on the in-memory node: nothing to install.
//!
//! ```sh
//! cargo run --example turns
//! ```
//!
//! Give it the URLs of Redis servers to do the same there, in as many terminals as you
//! like: `cargo run --example turns -- redis://localhost`.

use std::time::Duration;

use leasehold::{Client, Error, Options};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let client = if urls.is_empty() {
        Client::in_memory()
    } else {
        Client::builder().nodes(urls).connect().await?
    };
    println!("Two tasks want the lock `kitchen`, three times each.\n");
    let anna = tokio::spawn(cook(client.clone(), "anna"));
    let bert = tokio::spawn(cook(client.clone(), "bert"));
    for task in [anna, bert] {
        task.await.expect("the task does not panic")?;
    }
    println!("\nEvery turn had a larger token than the one before: a resource that keeps");
    println!("the largest it has seen can refuse whoever comes late.");
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn cook(client: Client, who: &'static str) -> Result<(), Error> {
    let label = |options: Options| options.label(who);
    let kitchen = client.mutex("kitchen").with_options(label);
    for _ in 0..3 {
        let lease = match kitchen.try_lock().await? {
            Some(lease) => lease,
            None => {
                println!("          {who} waits");
                kitchen.lock().await?
            }
        };
        println!("{who} has it   token {}", lease.token());
        tokio::time::sleep(Duration::from_millis(300)).await;
        println!("{who} is done  {:?}", lease.release().await);
        // Time to do something else, so that the other gets a turn.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
