//! Compares what is recorded with the table in docs/observability.md.

use std::collections::{BTreeMap, BTreeSet};

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::Loss;
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::observe::{End, HandOver, Waiting};

const SECRET: &str = "orders/customer-4711";

fn events() -> Vec<Event> {
    let name = Name::new(SECRET).expect("a name");
    let class: Arc<str> = "orders/*".into();
    let node: Arc<str> = "127.0.0.1:6379".into();
    let second = Duration::from_secs(1);
    let change = |change| {
        Event::Node(NodeEvent {
            node: Arc::clone(&node),
            change,
            quorum_margin: 1,
        })
    };
    vec![
        Event::Waiting(Waiting {
            name: name.clone(),
            class: Arc::clone(&class),
        }),
        Event::Acquire(Acquire {
            name: name.clone(),
            class: Arc::clone(&class),
            mode: Mode::Exclusive,
            outcome: Outcome::Granted,
            token: Some(1),
            waited: second,
            contended: true,
            did_wait: true,
            hand_over: Some(HandOver::Local),
        }),
        Event::Renewal(Renewal {
            name: name.clone(),
            class: Arc::clone(&class),
            token: 1,
            ok: true,
            slack: second,
            ttl: second,
            confirms_hand_over: false,
        }),
        Event::Ended(Ended {
            name,
            class,
            token: 1,
            end: End::Lost,
            loss: Some(Loss::NotRenewed),
            held: second,
        }),
        change(NodeChange::Connected {
            again: true,
            clock_offset_us: -500_000,
        }),
        change(NodeChange::Up),
        change(NodeChange::Quarantined { left: second }),
        change(NodeChange::TooFewReplicas {
            acked: None,
            wanted: 1,
        }),
        Event::Request(Request {
            index: 0,
            node,
            verb: Verb::Extend,
            took: second,
            error: None,
        }),
    ]
}

/// The metrics in a text of Prometheus, with their labels.
fn recorded(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let name = name.trim_end_matches("_sum").trim_end_matches("_count");
        let labels = labels.trim_end_matches('}').split("\",");
        let labels = labels.filter_map(|label| label.split_once('=').map(|(key, _)| key));
        let keys = found.entry(name.to_owned()).or_default();
        keys.extend(
            labels
                .filter(|key| *key != "quantile")
                .map(ToOwned::to_owned),
        );
    }
    found
}

/// The metrics in the table of the page: the name is in the first column, labels are in the third.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/observability.md");
    let page = std::fs::read_to_string(page).expect("the page");
    // The tool's own metrics are in another section.
    let (_, section) = page.split_once("\n## Metrics\n").expect("the section");
    let rows = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `leasehold_"));
    let row = |line: &str| {
        let columns: Vec<_> = line.split(" | ").collect();
        let code = |text: &str| -> BTreeSet<String> {
            let parts = text.split('`').skip(1).step_by(2);
            parts.map(ToOwned::to_owned).collect()
        };
        let name = code(columns[0]).pop_first().expect("a name");
        (name, code(columns[2]))
    };
    rows.map(row).collect()
}

fn render(events: &[Event]) -> String {
    render_by(MetricsObserver::new, events)
}

fn render_by(observer: impl FnOnce() -> MetricsObserver, events: &[Event]) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let observer = observer();
        for event in events {
            observer.event(event);
        }
    });
    recorder.handle().render()
}

#[test]
fn names_and_labels_are_those_of_the_page() {
    let text = render(&events());
    assert_eq!(recorded(&text), documented(), "{text}");
    for name in documented().keys() {
        assert!(text.contains(&format!("# HELP {name} ")), "{name}: {text}");
    }
}

#[test]
fn the_name_of_a_lock_is_in_no_label() {
    let text = render(&events());
    assert!(!text.contains("4711"), "{text}");
    assert!(text.contains("class=\"orders/*\""), "{text}");
}

#[test]
fn values_are_in_seconds_and_gauges_return_to_zero() {
    let text = render(&events());
    for line in [
        "leasehold_waiters{class=\"orders/*\"} 0",
        "leasehold_leases_held{class=\"orders/*\"} 0",
        "leasehold_node_clock_offset_seconds{node=\"127.0.0.1:6379\"} -0.5",
        "leasehold_lease_slack_seconds_sum{class=\"orders/*\"} 1",
        "leasehold_lost_total{class=\"orders/*\",why=\"not_renewed\"} 1",
        "leasehold_quorum_margin 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

/// Its time was over, as the caller wanted.
#[test]
fn a_lease_that_expired_was_not_lost() {
    let mut events = events();
    for event in &mut events {
        if let Event::Ended(lease) = event {
            lease.end = End::Expired;
        }
    }
    let text = render(&events);
    let held = "leasehold_hold_seconds_count{class=\"orders/*\",ended=\"expired\"} 1";
    assert!(text.lines().any(|line| line == held), "{text}");
    assert!(!text.contains("leasehold_lost_total{"), "{text}");
}

/// A lease that was handed over begins with little time, which must not look like an alarm.
#[test]
fn the_slack_of_a_confirmation_is_not_recorded() {
    let mut events = events();
    for event in &mut events {
        if let Event::Renewal(renewal) = event {
            renewal.confirms_hand_over = true;
        }
    }
    let text = render(&events);
    assert!(text.contains("leasehold_renewals_total{"), "{text}");
    assert!(
        !text.contains("leasehold_lease_slack_seconds_sum"),
        "{text}"
    );
}

/// A call that finds the lock taken and does not wait.
#[test]
fn a_call_that_does_not_wait_is_no_waiter() {
    let mut events = events();
    events.remove(0);
    if let Event::Acquire(call) = &mut events[0] {
        call.did_wait = false;
    }
    let text = render(&events);
    assert!(
        text.contains("leasehold_contended_total{class=\"orders/*\"} 1"),
        "{text}"
    );
    assert!(!text.contains("leasehold_waiters{"), "{text}");
}

#[test]
fn without_requests_none_are_wanted_or_recorded() {
    assert!(MetricsObserver::new().wants_requests());
    assert!(!MetricsObserver::new().without_requests().wants_requests());
    let text = render_by(|| MetricsObserver::new().without_requests(), &events());
    let mut all = documented();
    all.remove(NODE_REQUEST);
    assert_eq!(recorded(&text), all, "{text}");
}
