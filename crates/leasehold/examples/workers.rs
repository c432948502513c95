//! Job workers that together do no more than two jobs at a time, wherever they run.
//!
//! ```sh
//! cargo run --example workers
//! ```
//!
//! Give it the URLs of Redis servers to do the same there, in as many terminals as you like:
//! `cargo run --example workers -- redis://localhost`. All of them together stay below the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Client, Error, Options};

const WORKERS: usize = 5;
const JOBS: usize = 2;
const AT_A_TIME: u32 = 2;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let client = if urls.is_empty() {
        Client::in_memory()
    } else {
        Client::builder().nodes(urls).connect().await?
    };
    println!("{WORKERS} workers, {JOBS} jobs each, at most {AT_A_TIME} jobs at a time:\n");
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let workers = (1..=WORKERS).map(|worker| {
        let (client, running, most) = (client.clone(), Arc::clone(&running), Arc::clone(&most));
        tokio::spawn(async move { work(&client, worker, &running, &most).await })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("the worker does not panic")?;
    }
    let most = most.load(Ordering::SeqCst);
    println!("\nAt most {most} of these jobs ran at the same time.");
    assert!(most <= AT_A_TIME as usize, "the limit holds");
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn work(
    client: &Client,
    worker: usize,
    running: &AtomicUsize,
    most: &AtomicUsize,
) -> Result<(), Error> {
    let label = |options: Options| options.label(format!("worker {worker}"));
    let limit = client.semaphore("exports", AT_A_TIME).with_options(label);
    for job in 1..=JOBS {
        // The job is dropped if the permit is lost, before another worker can have it.
        limit
            .with(async |permit| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let number = permit.permit().unwrap_or_default();
                println!("worker {worker} does job {job} with permit {number}");
                tokio::time::sleep(Duration::from_millis(200)).await;
                running.fetch_sub(1, Ordering::SeqCst);
            })
            .await?;
    }
    Ok(())
}
