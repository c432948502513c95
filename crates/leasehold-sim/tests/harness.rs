//! The simulator is deterministic, every kind of fault occurs, leases are acquired, and all
//! promises are kept.

use leasehold_sim::{Fault, Mode, SentCounts, batch, run};

const SEEDS: std::ops::Range<u64> = 1..301;

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 2, 3, 19, 42, 269, 450] {
        let (first, second) = (run(seed, None, true), run(seed, None, true));
        // The first line that differs is easier to read than two timelines.
        let pairs = first.timeline.lines().zip(second.timeline.lines());
        for (line, again) in pairs {
            assert_eq!(line, again, "seed {seed}");
        }
        assert_eq!(first.timeline.len(), second.timeline.len(), "seed {seed}");
        assert_eq!(first.events, second.events, "seed {seed}");
        assert!(first.events > 100, "seed {seed}");
        // Recording the timeline does not change the run.
        assert_eq!(run(seed, None, false).events, first.events, "seed {seed}");
    }
}

#[test]
fn seeds_differ() {
    let timelines = [1, 2, 3].map(|seed| run(seed, None, true).timeline);
    assert_ne!(timelines[0], timelines[1]);
    assert_ne!(timelines[1], timelines[2]);
}

#[test]
fn every_fault_occurs_and_every_promise_is_kept() {
    let seeds: Vec<_> = SEEDS.collect();
    let (totals, failures) = batch::run_all(&seeds, None, 2, false, |report| {
        assert!(report.leases > 0, "seed {} took no lease", report.plan.seed);
    });
    let broken: Vec<_> = failures
        .iter()
        .map(|report| (report.plan.seed, &report.violation))
        .collect();
    assert!(broken.is_empty(), "{broken:?}");
    eprintln!("{:?}", totals.sent);
    let SentCounts {
        shared,
        plain,
        native,
        in_order,
        again,
    } = totals.sent;
    // Every way in which the link sends a call is used, and often.
    for sent in [shared, plain, native, in_order, again] {
        assert!(sent > SEEDS.end, "{:?}", totals.sent);
    }
    for mode in [Mode::Within, Mode::Beyond] {
        let seeds = totals.seeds_in(mode);
        assert!(seeds > 50, "{mode}: {seeds} seeds");
        let leases = totals.leases[mode as usize];
        assert!(leases > 10 * seeds, "{mode}: {leases} leases");
        let handed_over = totals.handed_over[mode as usize];
        assert!(
            handed_over > leases / 3,
            "{mode}: {handed_over} of {leases}"
        );
        let orders = totals.orders_seen[mode as usize];
        assert!(orders > 10 * seeds, "{mode}: {orders} times");
        for fault in Fault::ALL {
            // These faults break the assumptions of exclusion by themselves.
            let allowed = mode == Mode::Beyond || !fault.is_beyond(true);
            let strikes = totals.faults[mode as usize].of(fault);
            assert_eq!(
                strikes > 0,
                allowed,
                "{mode}: {fault} occurred {strikes} times"
            );
        }
    }
}
