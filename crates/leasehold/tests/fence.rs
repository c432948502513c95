//! Fenced resources: a holder whose lease has ended is refused, and without the check its update
//! overwrites that of the next holder.

use std::time::Duration;

use leasehold::fence::{self, Fence};
use leasehold::{Client, Lease, MemoryNode, Name};
use leasehold_testkit::{PostgresServer, RedisServer, TempDir};
use rusqlite::Connection;

/// Two leases of one lock: one that has ended while its holder was paused, and the next.
async fn stale_and_current() -> (Lease, Lease) {
    let node = MemoryNode::new("memory");
    let client = || Client::builder().custom_node(node.clone()).build().unwrap();
    let (paused, next) = (client(), client());
    let stale = paused.mutex("account").lock().await.unwrap();
    // Its lock expires, and the process does not notice.
    node.set(&Name::new("account").unwrap(), b"", Some(Duration::ZERO));
    let current = next.mutex("account").lock().await.unwrap();
    assert!(stale.token() < current.token() && stale.is_valid());
    (stale, current)
}

/// Adds `amount` to the balance that was read before. `None` if the token is refused.
fn deposit_sqlite(file: &mut Connection, fence: Option<Fence>, amount: i64) -> Option<i64> {
    let transaction = file.transaction().unwrap();
    if let Some(fence) = fence {
        let passed = transaction.execute(fence.sql(), ("account", fence.token));
        if passed.unwrap() == 0 {
            return None;
        }
    }
    let read = "SELECT balance FROM accounts";
    let balance: i64 = transaction.query_row(read, (), |row| row.get(0)).unwrap();
    let write = "UPDATE accounts SET balance = ?1";
    transaction.execute(write, [balance + amount]).unwrap();
    transaction.commit().unwrap();
    Some(balance + amount)
}

#[tokio::test]
async fn sqlite_refuses_a_stale_holder() {
    let (stale, current) = stale_and_current().await;
    let dir = TempDir::new();
    let open = || Connection::open(dir.path().join("bank.db")).unwrap();
    let (mut one, mut two) = (open(), open());
    one.execute_batch(fence::SQL_TABLE).unwrap();
    one.execute_batch("CREATE TABLE accounts (balance); INSERT INTO accounts VALUES (0)")
        .unwrap();
    assert_eq!(deposit_sqlite(&mut one, Some(stale.fence()), 1), Some(1));
    assert_eq!(
        deposit_sqlite(&mut two, Some(current.fence()), 10),
        Some(11)
    );
    assert_eq!(deposit_sqlite(&mut one, Some(stale.fence()), 1), None);
    // The same holder may come again.
    assert_eq!(
        deposit_sqlite(&mut two, Some(current.fence()), 10),
        Some(21)
    );
}

/// Two readers and the writers before and after them. Readers have tokens in any order and must not
/// refuse each other; a writer refuses older readers, and readers refuse an older writer.
#[tokio::test]
async fn readers_refuse_writers_and_no_readers() {
    let client = Client::in_memory();
    let lock = client.rw_lock("account");
    let before = lock.write().await.unwrap();
    let old_writer = before.fence();
    before.release().await;
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    let [one, two] = readers.each_ref().map(Lease::fence);
    assert!(one.mode == leasehold::Mode::Shared && one.token != two.token);
    drop(readers);
    let after = lock.write().await.unwrap();
    let new_writer = after.fence();

    let mut file = Connection::open_in_memory().unwrap();
    file.execute_batch(fence::SQL_TABLE).unwrap();
    let mut sqlite = |fence: Fence| {
        let transaction = file.transaction().unwrap();
        let passed = transaction.execute(fence.sql(), ("account", fence.token));
        transaction.commit().unwrap();
        passed.unwrap() == 1
    };
    let server = RedisServer::start();
    let script = fence::redis_script("return 1");
    let mut redis = |fence: Fence| {
        let (token, mode) = (fence.token.to_string(), fence.mode.to_string());
        let words = ["EVAL", &script, "1", "fence", &token, &mode];
        server.command(&words.map(str::as_bytes)) == ":1\r\n"
    };
    for enter in [&mut sqlite as &mut dyn FnMut(Fence) -> bool, &mut redis] {
        assert!(enter(old_writer));
        assert!(enter(two) && enter(one) && enter(two), "readers");
        assert!(!enter(old_writer), "a writer that is older than a reader");
        assert!(enter(new_writer));
        assert!(
            !enter(one) && !enter(two),
            "readers that are older than a writer"
        );
    }
}

/// The balance that a stale holder read before it was paused overwrites what the next holder wrote.
#[tokio::test]
async fn postgres_refuses_a_stale_holder_and_loses_an_update_without_the_check() {
    let (stale, current) = stale_and_current().await;
    let server = PostgresServer::start();
    let connect = async || {
        let config = server.config();
        let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    };
    let (mut one, mut two) = (connect().await, connect().await);
    one.batch_execute(fence::SQL_TABLE).await.unwrap();
    one.batch_execute("CREATE TABLE accounts (balance BIGINT); INSERT INTO accounts VALUES (0)")
        .await
        .unwrap();
    let read = "SELECT balance FROM accounts";
    let write = "UPDATE accounts SET balance = $1";
    for checks in [false, true] {
        // The stale holder has read the balance, and then pauses.
        let seen: i64 = one.query_one(read, &[]).await.unwrap().get(0);
        let enter = async |transaction: &tokio_postgres::Transaction<'_>, fence: Fence| {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
                [&"account", &fence.token];
            !checks || transaction.execute(fence.sql(), &parameters).await.unwrap() == 1
        };
        let transaction = two.transaction().await.unwrap();
        assert!(enter(&transaction, current.fence()).await);
        let now: i64 = transaction.query_one(read, &[]).await.unwrap().get(0);
        transaction.execute(write, &[&(now + 10)]).await.unwrap();
        transaction.commit().await.unwrap();
        // It goes on, and writes what it computed.
        let transaction = one.transaction().await.unwrap();
        let passed = enter(&transaction, stale.fence()).await;
        if passed {
            transaction.execute(write, &[&(seen + 1)]).await.unwrap();
        }
        transaction.commit().await.unwrap();
        let balance: i64 = one.query_one(read, &[]).await.unwrap().get(0);
        match checks {
            false => assert_eq!((passed, balance), (true, seen + 1), "an update is lost"),
            true => assert_eq!((passed, balance), (false, now + 10), "none is lost"),
        }
    }
}

#[tokio::test]
async fn redis_refuses_a_stale_holder() {
    let (stale, current) = stale_and_current().await;
    let server = RedisServer::start();
    let script = fence::redis_script("return redis.call('INCRBY', KEYS[2], ARGV[3])");
    let deposit = |fence: Fence, amount: &str| {
        let (token, mode) = (fence.token.to_string(), fence.mode.to_string());
        let words = [
            "EVAL", &script, "2", "fence", "balance", &token, &mode, amount,
        ];
        server.command(&words.map(str::as_bytes))
    };
    assert_eq!(deposit(stale.fence(), "1"), ":1\r\n");
    assert_eq!(deposit(current.fence(), "10"), ":11\r\n");
    assert!(deposit(stale.fence(), "1").starts_with("-FENCED"));
    assert_eq!(deposit(current.fence(), "10"), ":21\r\n");
}
