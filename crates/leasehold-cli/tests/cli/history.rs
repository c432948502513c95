//! `history`, and what `--history` records.

use leasehold_testkit::RedisServer;
use serde_json::Value;

use crate::{Place, until};

fn history(place: &Place, name: &str) -> Vec<Value> {
    let out = place.ok(&["history", name, "-o", "json"]);
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn a_run_with_history_is_in_the_history() {
    let (one, three) = (RedisServer::start_many(1), RedisServer::start_many(3));
    for place in [Place::local(), Place::redis(&one), Place::redis(&three)] {
        let args = ["run", "--history", "--label", "nightly", "a", "-c"];
        place.ok(&[&args[..], &["echo $LEASEHOLD_TOKEN > token"]].concat());
        // This one is not recorded.
        place.ok(&["run", "a", "--", "true"]);
        let leases = history(&place, "a");
        assert_eq!(leases.len(), 1, "{leases:?}");
        let lease = &leases[0];
        let token = place.await_file("token");
        assert_eq!(lease["token"].to_string(), token.trim());
        assert_eq!(
            (&lease["end"], &lease["label"]),
            (&"released".into(), &"nightly".into())
        );
        assert!(lease["acquired_ms"].as_u64() <= lease["ended_ms"].as_u64());
        let table = place.ok(&["history", "a"]);
        let row = table.lines().nth(1).expect("a row");
        assert!(
            row.contains(token.trim()) && row.ends_with("released"),
            "{table}"
        );
    }
}

#[test]
fn a_name_without_a_history_says_so() {
    let place = Place::local();
    let text = place.ok(&["history", "a"]);
    assert!(text.starts_with("`a` has no history"), "{text}");
    assert_eq!(place.ok(&["history", "a", "-o", "json"]), "[]\n");
}

#[test]
fn a_break_names_who_broke_the_lock() {
    let servers = RedisServer::start_many(1);
    for place in [Place::local(), Place::redis(&servers)] {
        let options = ["--history", "--on-lost", "warn"];
        let holder = place.holding("a", &options, "exec sleep 60");
        // A lease is recorded after a second.
        until("the lease is in the history", || {
            history(&place, "a").len() == 1
        });
        let lease = &history(&place, "a")[0];
        assert_eq!(
            (&lease["end"], &lease["ended_ms"]),
            (&"held".into(), &Value::Null)
        );
        let owner = lease["owner"].as_str().expect("an id").to_owned();
        place.ok(&["break", "a", "--yes", "--owner", &owner]);
        let lease = &history(&place, "a")[0];
        assert_eq!(lease["end"], "broken");
        let how = lease["how"].as_str().expect("text");
        assert!(
            how.starts_with("broken by ") && how.contains(" pid "),
            "{how}"
        );
        drop(holder);
    }
}
