//! The same as `fenced_sqlite`, on PostgreSQL and with the work inside of one transaction.
//!
//! ```sh
//! cargo run --example fenced_postgres -- 'host=localhost user=me dbname=test'
//! ```

use std::error::Error;
use std::time::Duration;

use leasehold::{Client, Lease, MemoryNode, Name, fence};
use tokio_postgres::{Client as Postgres, NoTls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(config) = std::env::args().nth(1) else {
        return Err("usage: fenced_postgres 'host=localhost user=me dbname=test'".into());
    };
    let (mut database, connection) = tokio_postgres::connect(&config, NoTls).await?;
    tokio::spawn(connection);
    database.batch_execute(fence::SQL_TABLE).await?;
    let table = "CREATE TEMPORARY TABLE stock (pieces BIGINT); INSERT INTO stock VALUES (10)";
    database.batch_execute(table).await?;

    let node = MemoryNode::new("memory");
    let client = || Client::builder().custom_node(node.clone()).build();
    let (anna, bert) = (client()?, client()?);
    let name = format!("stock-{}", std::process::id());

    // Anna acquires the lock, and then her machine is suspended. Her lock expires.
    let paused = anna.mutex(&name).lock().await?;
    node.set(&Name::new(&name)?, b"", Some(Duration::ZERO));
    let lease = bert.mutex(&name).lock().await?;
    println!("bert sells 3: {}", sell(&mut database, &lease, 3).await?);
    println!("anna sells 1: {}", sell(&mut database, &paused, 1).await?);
    println!("bert sells 2: {}", sell(&mut database, &lease, 2).await?);
    Ok(())
}

/// Sells pieces, if the token of the lease is not older than one that was used.
async fn sell(
    database: &mut Postgres,
    lease: &Lease,
    count: i64,
) -> Result<String, Box<dyn Error>> {
    let transaction = database.transaction().await?;
    let (name, fence) = (lease.name().to_string(), lease.fence());
    let passed = transaction
        .execute(fence.sql(), &[&name, &fence.token])
        .await?;
    if passed == 0 {
        return Ok(format!("refused, token {} is too old", fence.token));
    }
    let row = transaction
        .query_one("SELECT pieces FROM stock", &[])
        .await?;
    let left = row.get::<_, i64>(0) - count;
    let update = "UPDATE stock SET pieces = $1";
    transaction.execute(update, &[&left]).await?;
    transaction.commit().await?;
    Ok(format!("{left} left, with token {}", fence.token))
}
