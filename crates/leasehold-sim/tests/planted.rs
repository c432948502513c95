//! The simulator finds every planted bug, with the checker that should find it, within a stated
//! number of seeds.

use leasehold_sim::{Bug, batch};

/// A bug, the promises of which it must break at least one, and the number of seeds within which
/// it must do so: five to ten times the average.
const PLANTED: [(&str, &[&str], u64); 51] = [
    (
        "validity-from-reply",
        &["exclusion", "lost() in time"],
        1_500,
    ),
    ("no-drift", &["exclusion"], 1_500),
    ("owner-per-client", &["exclusion", "lost() in time"], 20),
    ("subset-majority", &["exclusion", "lost() in time"], 20_000),
    ("failed-attempt-kept", &["nothing left", "progress"], 30),
    ("late-grant-kept", &["nothing left", "progress"], 20),
    ("chases-fence", &["progress"], 2_500),
    ("lost-too-late", &["lost() in time"], 20),
    ("lost-by-flag", &["lost() in time"], 300),
    ("ties-win", &["tokens", "no lost update"], 300),
    ("fence-dies-with-lock", &["tokens"], 20),
    ("fence-kept-too-short", &["tokens"], 1_500),
    ("missing-fence-is-zero", &["tokens"], 300),
    ("no-restart-guard", &["exclusion", "lost() in time"], 500),
    ("no-floor", &["tokens"], 500),
    ("promotion-ignored", &["tokens", "exclusion"], 1_000),
    ("never-verified", &["tokens", "exclusion"], 7_000),
    ("extend-ignores-fence", &["tokens"], 6_000),
    (
        "wrong-reply",
        &["exclusion", "lost() in time", "tokens", "progress"],
        60,
    ),
    ("plain-delete-across-connections", &["nothing left"], 100),
    ("releases-in-doubt", &["exclusion", "lost() in time"], 2_500),
    ("missed-notification", &["progress"], 10),
    ("dead-waiter-kept", &["progress", "nothing left"], 4_000),
    ("stale-ticket-granted", &["tokens"], 20),
    ("line-by-arrival", &["order"], 400),
    ("line-kept-by-first", &["order"], 4_000),
    (
        "handed-over-validity-from-reply",
        &["exclusion", "lost() in time", "tokens"],
        300,
    ),
    ("turn-is-grant", &["exclusion", "tokens"], 20),
    ("gives-up-in-silence", &["nothing left"], 70),
    ("no-lead", &["progress"], 800),
    ("result-of-a-minority", &["once"], 5_000),
    ("failure-keeps", &["once"], 50),
    ("kept-notifies-nobody", &["progress"], 200),
    ("unsorted", &["progress"], 50),
    ("some-names-suffice", &["exclusion", "lost() in time"], 70),
    ("free-is-grant", &["exclusion", "tokens"], 40),
    ("leaves-when-told", &["order"], 400),
    ("ticket-ignored", &["order"], 60),
    ("rest-not-announced", &["progress"], 800),
    ("other-number-accepted", &["limit"], 400),
    ("resource-unfenced", &["no lost update"], 700),
    ("resource-ignores-reads", &["no lost update"], 500),
    ("reader-leaves-fence", &["tokens"], 50),
    ("reader-ignores-write-fence", &["tokens"], 60),
    ("exclusive-keeps-write-fence", &["tokens"], 150),
    ("reader-joins-anyway", &["tokens"], 200),
    (
        "writer-ignores-marker",
        &["exclusion", "lost() in time"],
        30,
    ),
    ("downgrade-forgets-writer", &["tokens"], 250),
    ("no-floor-for-readers", &["tokens"], 2_000),
    (
        "marker-of-the-last",
        &["exclusion", "lost() in time"],
        2_500,
    ),
    ("readers-pass-the-line", &["order"], 60),
];

#[test]
fn every_planted_bug_is_found_in_time() {
    let names: Vec<_> = PLANTED.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, Bug::ALL.map(|(name, _)| name), "one entry for each");
    for (name, promises, within) in PLANTED {
        let bug = Bug::named(name);
        let expected = |promise: &str| promises.contains(&promise);
        let found = first_found(bug, within, expected);
        eprintln!("{name}: {found:?} of {within}");
        assert!(
            found.is_some(),
            "{name} broke none of {promises:?} in {within} seeds"
        );
    }
}

/// The first seed at which the bug breaks one of the expected promises. It may break others
/// before that.
fn first_found(bug: Option<Bug>, within: u64, expected: impl Fn(&str) -> bool) -> Option<u64> {
    const AT_ONCE: u64 = 32;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..within).step_by(AT_ONCE as usize).find_map(|from| {
        let seeds: Vec<_> = (from..within.min(from + AT_ONCE)).map(|n| n + 1).collect();
        let (_, failures) = batch::run_all(&seeds, bug, cores, false, |_| {});
        let found = failures.iter().find(|report| {
            let violation = report.violation.as_ref();
            violation.is_some_and(|violation| expected(violation.promise))
        });
        found.map(|report| report.plan.seed)
    })
}
