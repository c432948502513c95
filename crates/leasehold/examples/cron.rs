//! A job that is due on many machines at the same moment and runs on one of them.
//!
//! ```sh
//! cargo run --example cron
//! ```
//!
//! Three tasks play the machines, on the in-memory node. Give it the URLs of Redis servers and start
//! it on several machines to see the same there: `cargo run --example cron -- redis://localhost`.

use std::time::Duration;

use leasehold::{Client, Error, MemoryNode, Once, OnceError};

/// How long the job is not repeated after it has succeeded.
const PERIOD: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let memory = MemoryNode::new("memory");
    let mut machines = Vec::new();
    for machine in ["web-1", "web-2", "web-3"] {
        // A client of its own for each: only the nodes connect them.
        let client = match urls.is_empty() {
            true => Client::builder().custom_node(memory.clone()).build()?,
            false => Client::builder().nodes(&urls).connect().await?,
        };
        let job = client.once("nightly-report", PERIOD);
        machines.push(tokio::spawn(cron(machine, job)));
    }
    for machine in machines {
        machine.await.expect("the task does not panic")?;
    }
    Ok(())
}

/// The job is due twice, three seconds apart. The first machine to try fails once.
async fn cron(machine: &str, job: Once) -> Result<(), Error> {
    for night in 1..=2 {
        let report = async |lease: &leasehold::Lease| {
            println!(
                "night {night}: {machine} writes the report, token {}",
                lease.token()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
            match machine == "web-1" && night == 1 {
                true => Err("the disk is full"),
                false => Ok(format!("written by {machine}").into_bytes()),
            }
        };
        match job.run(report).await {
            Ok(done) if done.ran_here => println!("night {night}: {machine} is done"),
            Ok(done) => {
                let text = String::from_utf8_lossy(&done.bytes);
                println!("night {night}: {machine} has nothing to do: {text}");
            }
            Err(OnceError::Work(why)) => {
                println!("night {night}: {machine} failed ({why}); the next one runs");
            }
            Err(OnceError::Lease(error)) => return Err(error),
            Err(error) => println!("night {night}: {machine}: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    Ok(())
}
