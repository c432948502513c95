//! Waiters are served in the order of their arrival, even if some of them die, stop or give up
//! meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_testkit::setup::blocking::until;
use leasehold_testkit::setup::eventually;
use leasehold_testkit::unix_us;
use rusqlite::params;

use super::puppet::{Puppet, released_at, since_boot};
use super::store::{Store, median};
use super::{client, forever};

/// Far below the 2 s for which the first in line is granted the lock when it is handed over, and
/// below the 1.1 s after which waiters send WAIT by themselves.
const PROMPT: Duration = Duration::from_millis(300);

/// Puppets that wait for a lock, in this order.
fn line(store: &Store, length: usize) -> Vec<Puppet> {
    store.until_in_order();
    let mut puppets: Vec<_> = (0..length).map(|_| Puppet::of(&store.url())).collect();
    for (before, puppet) in puppets.iter_mut().enumerate() {
        puppet.send_lock("a");
        store.until_waiters(i64::try_from(before).expect("few") + 1);
    }
    puppets
}

#[test]
fn processes_are_served_in_order_of_arrival() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    let mut last = holder.lock("a").token;
    let mut puppets = line(&store, 8);
    holder.release("a");
    // A waiter that arrives now comes last.
    holder.send_lock("a");
    puppets.push(holder);
    for puppet in &mut puppets {
        // Only this process releases the lock, so no other one has acquired it.
        let got = puppet.receive_lease();
        assert!(got.token > last);
        last = got.token;
        puppet.release("a");
    }
    assert_eq!(store.waiters(), 0);
}

#[test]
fn a_lock_handed_over_to_a_waiter_is_refused_to_others() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let first = line_behind(&store, &mut holder);
    first[0].stop();
    holder.release("a");
    assert!(
        other.finds_held("a"),
        "the lock was handed over to the waiter"
    );
    assert!(
        holder.finds_held("a"),
        "the lock was handed over to the waiter"
    );
    first[0].resume();
    first[0].receive_lease();
}

fn line_behind(store: &Store, holder: &mut Puppet) -> Vec<Puppet> {
    holder.lock("a");
    line(store, 1)
}

/// A waiter that may only be slow keeps its turn for a while. Then the others treat it as dead.
#[test]
fn a_stopped_waiter_delays_later_waiters_by_a_few_seconds() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let mut puppets = line(&store, 3);
    puppets[0].stop();
    let released = holder.release("a");
    let second = puppets[1].receive_lease();
    // The rule allows 3 s plus the turn of one waiter. The TTL is an hour.
    let delay = second.at.saturating_sub(released);
    assert!(delay < Duration::from_secs(30), "{delay:?}");
    puppets[1].release("a");
    let third = puppets[2].receive_lease();
    assert!(third.token > second.token);
    // The stopped waiter is not dead, and waits again. (If it did so earlier, it could overtake the
    // third: it takes the lowest ticket that can win.)
    puppets[0].resume();
    puppets[2].release("a");
    assert!(puppets[0].receive_lease().token > third.token);
}

#[test]
fn killed_waiters_do_not_delay_others() {
    let store = Store::new();
    let mut took = Vec::new();
    for _ in 0..5 {
        let mut holder = Puppet::of(&store.url());
        holder.lock("a");
        let mut puppets = line(&store, 4);
        for dead in &mut puppets[..3] {
            dead.kill();
            dead.reap();
        }
        let released = holder.release("a");
        let got = puppets[3].receive_lease();
        took.push(got.at.saturating_sub(released));
        puppets[3].release("a");
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// The holder dies, and so does the first in line at the same moment.
#[test]
fn a_line_survives_the_death_of_the_holder_and_the_first_waiter() {
    let store = Store::new();
    let mut took = Vec::new();
    for _ in 0..5 {
        let mut holder = Puppet::of(&store.url());
        holder.lock("a");
        let mut puppets = line(&store, 3);
        let killed = since_boot();
        puppets[0].kill();
        holder.kill();
        let got = puppets[1].receive_lease();
        took.push(got.at.saturating_sub(killed));
        puppets[1].release("a");
        puppets[2].receive_lease();
        puppets[2].release("a");
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// A waiter that gives up before its turn, at its turn or after it passes the turn on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_passes_its_turn_on() {
    let store = Store::new();
    let client = client(&store.url()).await;
    let (mut holder, mut next) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let mut took = Vec::new();
    for round in 0..15 {
        holder.lock("a");
        let mutex = client.mutex("a").with_options(forever);
        let first = tokio::spawn(async move { mutex.lock().await.map(drop) });
        store.until_waiters(1);
        next.send_lock("a");
        store.until_waiters(2);
        let released = match round % 3 {
            0 => {
                first.abort();
                holder.release("a")
            }
            1 => {
                holder.send("release a");
                first.abort();
                released_at(&holder.receive())
            }
            _ => {
                let released = holder.release("a");
                first.abort();
                released
            }
        };
        took.push(next.receive_lease().at.saturating_sub(released));
        next.release("a");
        store.until_waiters(0);
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// Each process releases the lock and acquires it again at once. If the holder or any other
/// process were favoured, some process would starve.
#[test]
fn eight_processes_get_about_equally_many_turns() {
    const ROUNDS: usize = 100;
    let store = Store::new();
    let log = store.dir().join("log");
    std::fs::write(&log, "").expect("written");
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let mut puppets: Vec<_> = (0..8).map(|_| Puppet::of(&store.url())).collect();
    store.until_in_order();
    for puppet in &mut puppets {
        puppet.send(&format!("turns a {} {ROUNDS}", log.display()));
    }
    store.until_waiters(8);
    holder.release("a");
    for puppet in &puppets {
        assert_eq!(puppet.receive(), "done");
    }
    let text = std::fs::read_to_string(&log).expect("the log");
    let mut turns: HashMap<&str, usize> = HashMap::new();
    for pid in text.lines() {
        let turn = turns.entry(pid).or_default();
        *turn += 1;
        if *turn == ROUNDS {
            break;
        }
    }
    // When the first process has had all its turns, the others have had most of theirs.
    assert_eq!(turns.len(), 8, "{turns:?}");
    assert!(turns.values().all(|turns| *turns > ROUNDS / 2), "{turns:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_living_waiters_are_counted() {
    let store = Store::new();
    let client = client(&store.url()).await;
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let mut puppets = line(&store, 3);
    let waiters = async || {
        let seen = client.inspect("a").await.expect("a name");
        seen.lock().expect("it is held").waiters.expect("a number")
    };
    assert_eq!(waiters().await, 3);
    puppets[1].kill();
    puppets[1].reap();
    assert_eq!(waiters().await, 2, "one of them was killed");
    puppets[0].stop();
    eventually("the dead waiter is not counted", async || {
        (waiters().await == 1).then_some(())
    })
    .await;
}

/// The sockets are deleted from outside: waiters create new ones.
#[test]
fn waiters_create_their_deleted_sockets_again() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let puppets = line(&store, 2);
    std::fs::remove_dir_all(store.beside(".wake")).expect("deleted");
    until("new sockets", || store.sockets().len() == 2);
    holder.release("a");
    let mut puppets = puppets;
    puppets[0].receive_lease();
    puppets[0].release("a");
    puppets[1].receive_lease();
}

/// A waiter in another boot or time namespace, where the boot clock means nothing here. Its
/// heartbeat counts by the wall clock, and for a limited time.
#[test]
fn a_waiter_of_another_boot_gets_its_turn_and_expires_like_others() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let ticket = holder.lock("a").token + 1_000;
    let owner = format!("{}:{ticket}:1@elsewhere:", "0".repeat(40));
    let asks = |later: Duration| {
        let asked = u128::from(unix_us()) + later.as_micros();
        let enter = "INSERT INTO waiters (name, owner, ticket, clock, asked_boot_ns,
                                          asked_unix_us, socket, id)
                     VALUES (x'61', ?, ?, 'elsewhere', 0, ?, '', 0)
                     ON CONFLICT (name, owner) DO UPDATE SET asked_unix_us = excluded.asked_unix_us";
        let (ticket, asked) = (i64::try_from(ticket), i64::try_from(asked));
        let row = params![
            owner.as_bytes(),
            ticket.expect("fits"),
            asked.expect("fits")
        ];
        let sql = store.sql();
        sql.execute(enter, row).expect("written");
        sql.execute("UPDATE names SET line = 1", [])
            .expect("written");
    };
    // For longer than a silent waiter counts as alive.
    let started = since_boot();
    while since_boot() - started < Duration::from_secs(5) {
        asks(Duration::from_secs(2));
        std::thread::sleep(Duration::from_millis(100));
    }
    holder.release("a");
    assert!(
        other.finds_held("a"),
        "it was the turn of the other boot's waiter"
    );
    let got = other.lock("a");
    assert!(got.token > ticket);
    // A waiter whose heartbeat is far in the future, because some clock was wrong, does not count as
    // alive.
    asks(Duration::from_secs(3600));
    other.release("a");
    assert!(!holder.finds_held("a"));
}
