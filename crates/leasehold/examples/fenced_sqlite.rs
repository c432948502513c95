//! A holder that was paused for longer than its lease writes late, and SQLite refuses it.
//!
//! ```sh
//! cargo run --example fenced_sqlite
//! ```
//!
//! Without the check (`-- unchecked`), the late write destroys what the next holder wrote.

use std::error::Error;
use std::time::Duration;

use leasehold::{Client, Lease, MemoryNode, Name, fence};
use rusqlite::Connection;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let checked = !std::env::args().any(|arg| arg == "unchecked");
    let mut database = Connection::open_in_memory()?;
    database.execute(fence::SQL_TABLE, ())?;
    database.execute_batch("CREATE TABLE stock (pieces); INSERT INTO stock VALUES (10)")?;

    let node = MemoryNode::new("memory");
    let client = || Client::builder().custom_node(node.clone()).build();
    let (anna, bert) = (client()?, client()?);

    // Anna reads, and then her machine is suspended. Her lock expires.
    let paused = anna.mutex("stock").lock().await?;
    let seen = pieces(&database)?;
    println!(
        "anna, token {}: sees {seen} pieces, and pauses",
        paused.token()
    );
    node.set(&Name::new("stock")?, b"", Some(Duration::ZERO));

    // Bert is the next holder, and sells three.
    let lease = bert.mutex("stock").lock().await?;
    let left = pieces(&database)? - 3;
    let written = write(&mut database, checked.then_some(&lease), left)?;
    println!(
        "bert, token {}: sells 3, {left} left (written: {written})",
        lease.token()
    );

    // Anna wakes up in the middle of her work, and sells one of the pieces that she saw.
    let written = write(&mut database, checked.then_some(&paused), seen - 1)?;
    println!(
        "anna, token {}: sells 1 (written: {written})",
        paused.token()
    );

    let left = pieces(&database)?;
    println!("the database says: {left} pieces");
    match checked {
        true => assert_eq!(left, 7, "the late write was refused"),
        false => assert_eq!(left, 9, "an update was lost"),
    }
    Ok(())
}

fn pieces(database: &Connection) -> rusqlite::Result<i64> {
    database.query_row("SELECT pieces FROM stock", (), |row| row.get(0))
}

/// Writes the number of pieces if the token of the lease is not older than one that was used.
fn write(database: &mut Connection, lease: Option<&Lease>, pieces: i64) -> rusqlite::Result<bool> {
    let transaction = database.transaction()?;
    if let Some(fence) = lease.map(Lease::fence)
        && transaction.execute(fence.sql(), ("stock", fence.token))? == 0
    {
        return Ok(false);
    }
    transaction.execute("UPDATE stock SET pieces = ?1", [pieces])?;
    transaction.commit()?;
    Ok(true)
}
