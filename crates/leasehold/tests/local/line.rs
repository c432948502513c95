//! Those who wait are served in the order in which they came, whoever of them dies, stops or
//! gives up meanwhile.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::params;

use super::puppet::{Puppet, since_boot};
use super::store::{Store, median};
use super::{client, forever, until};

/// Far below the second for which the lock is reserved for one whose turn it is.
const PROMPT: Duration = Duration::from_millis(300);

/// Puppets that wait for a lock, in this order.
fn line(store: &Store, length: usize) -> Vec<Puppet> {
    store.until_in_order();
    let mut puppets: Vec<_> = (0..length).map(|_| Puppet::of(&store.url())).collect();
    for (before, puppet) in puppets.iter_mut().enumerate() {
        puppet.say_lock("a");
        store.until_waiters(i64::try_from(before).expect("few") + 1);
    }
    puppets
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    let mut last = holder.lock("a").token;
    let mut puppets = line(&store, 8);
    holder.release("a");
    // Who comes now comes last.
    holder.say_lock("a");
    puppets.push(holder);
    for puppet in &mut puppets {
        // Nobody else gives it back, so nobody else has had it.
        let got = puppet.hear_got();
        assert!(got.token > last);
        last = got.token;
        puppet.release("a");
    }
    assert_eq!(store.waiters(), 0);
}

#[test]
fn nobody_takes_what_is_reserved_for_another() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let first = line_behind(&store, &mut holder);
    first[0].stop();
    holder.release("a");
    assert!(other.finds_held("a"), "it was the other's turn");
    assert!(holder.finds_held("a"), "it was the other's turn");
    first[0].resume();
    first[0].hear_got();
}

fn line_behind(store: &Store, holder: &mut Puppet) -> Vec<Puppet> {
    holder.lock("a");
    line(store, 1)
}

/// As long as it might be slow, its turn is kept; then it is taken for dead.
#[test]
fn a_stopped_one_delays_those_behind_it_by_some_seconds_and_not_more() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let puppets = line(&store, 3);
    puppets[0].stop();
    let released = holder.release("a");
    let second = puppets[1].hear_got();
    // The rule says 3 s and the turn of one. The TTL is an hour.
    let delay = second.at.saturating_sub(released);
    assert!(delay < Duration::from_secs(30), "{delay:?}");
    // It is not dead, and waits again: but now it comes last.
    puppets[0].resume();
    let mut puppets = puppets;
    puppets[1].release("a");
    let third = puppets[2].hear_got();
    assert!(third.token > second.token);
    puppets[2].release("a");
    assert!(puppets[0].hear_got().token > third.token);
}

#[test]
fn killed_ones_delay_nobody() {
    let store = Store::new();
    let mut took = Vec::new();
    for _ in 0..5 {
        let mut holder = Puppet::of(&store.url());
        holder.lock("a");
        let mut puppets = line(&store, 4);
        for dead in &mut puppets[..3] {
            dead.kill();
            dead.bury();
        }
        let released = holder.release("a");
        let got = puppets[3].hear_got();
        took.push(got.at.saturating_sub(released));
        puppets[3].release("a");
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// The holder dies, and so does the first in line at the same moment.
#[test]
fn a_line_outlives_the_holder_and_its_first() {
    let store = Store::new();
    let mut took = Vec::new();
    for _ in 0..5 {
        let mut holder = Puppet::of(&store.url());
        holder.lock("a");
        let mut puppets = line(&store, 3);
        let killed = since_boot();
        puppets[0].kill();
        holder.kill();
        let got = puppets[1].hear_got();
        took.push(got.at.saturating_sub(killed));
        puppets[1].release("a");
        puppets[2].hear_got();
        puppets[2].release("a");
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// Before its turn, as it comes, or after it: whoever gives up passes it on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_gives_up_passes_its_turn_on() {
    let store = Store::new();
    let client = client(&store.url()).await;
    let (mut holder, mut next) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let mut took = Vec::new();
    for round in 0..15 {
        holder.lock("a");
        let mutex = client.mutex("a").with_options(forever);
        let first = tokio::spawn(async move { mutex.lock().await.map(drop) });
        store.until_waiters(1);
        next.say_lock("a");
        store.until_waiters(2);
        let released = match round % 3 {
            0 => {
                first.abort();
                holder.release("a")
            }
            1 => {
                holder.say("release a");
                first.abort();
                released(&holder.hear())
            }
            _ => {
                let released = holder.release("a");
                first.abort();
                released
            }
        };
        took.push(next.hear_got().at.saturating_sub(released));
        next.release("a");
        store.until_waiters(0);
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

fn released(said: &str) -> Duration {
    let at = said.strip_prefix("Released ").expect(said);
    Duration::from_nanos(at.parse().expect("a number"))
}

/// Each gives the lock back and wants it again at once. If the one who has it were favoured,
/// or another, somebody would starve.
#[test]
fn eight_processes_have_their_turns_about_equally() {
    const ROUNDS: usize = 100;
    let store = Store::new();
    let log = store.dir().join("log");
    std::fs::write(&log, "").expect("written");
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let mut puppets: Vec<_> = (0..8).map(|_| Puppet::of(&store.url())).collect();
    store.until_in_order();
    for puppet in &mut puppets {
        puppet.say(&format!("turns a {} {ROUNDS}", log.display()));
    }
    store.until_waiters(8);
    holder.release("a");
    for puppet in &puppets {
        assert_eq!(puppet.hear(), "done");
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
    // When the first has had all its turns, the others have had most of theirs.
    assert_eq!(turns.len(), 8, "{turns:?}");
    assert!(turns.values().all(|turns| *turns > ROUNDS / 2), "{turns:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_who_live_are_counted() {
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
    puppets[1].bury();
    assert_eq!(waiters().await, 2, "of which one was killed");
    puppets[0].stop();
    let started = since_boot();
    while waiters().await > 1 {
        assert!(since_boot() - started < super::LONG, "it counts for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Somebody tidies up and takes the sockets away: those who wait make new ones.
#[test]
fn those_who_wait_can_be_told_again_when_their_sockets_were_deleted() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let puppets = line(&store, 2);
    std::fs::remove_dir_all(store.beside(".wake")).expect("deleted");
    until("new sockets", || store.sockets().len() == 2);
    holder.release("a");
    let mut puppets = puppets;
    puppets[0].hear_got();
    puppets[0].release("a");
    puppets[1].hear_got();
}

/// One who waits in another boot or time namespace, where the clock of boots says nothing:
/// it is known to live by the wall clock, and not for ever.
#[test]
fn one_who_waits_elsewhere_has_its_turn_and_is_taken_for_dead_like_others() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let ticket = holder.lock("a").token + 1_000;
    let owner = format!("{}:{ticket}:1@elsewhere:", "0".repeat(40));
    let asks = |later: Duration| {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let asked = (since_1970.expect("a clock") + later).as_micros();
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
    // For longer than it would be taken for living if it were silent.
    let started = since_boot();
    while since_boot() - started < Duration::from_secs(5) {
        asks(Duration::from_secs(2));
        std::thread::sleep(Duration::from_millis(100));
    }
    holder.release("a");
    assert!(other.finds_held("a"), "it was the turn of one elsewhere");
    let got = other.lock("a");
    assert!(got.token > ticket);
    // Nor does one live who asked in the future, because some clock was wrong.
    asks(Duration::from_secs(3600));
    other.release("a");
    assert!(!holder.finds_held("a"));
}
