//! Runs seeds.
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let from: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    if n == 1 {
        let bug = std::env::args()
            .nth(3)
            .and_then(|b| leasehold_sim::Bug::named(&b));
        let r = leasehold_sim::run(from, bug, true);
        println!("{}{}", r.plan, r.timeline);
        println!(
            "{:?} leases {} events {} sim {:?} faults {}",
            r.violation,
            r.leases,
            r.events,
            r.simulated,
            r.faults.total()
        );
        return;
    }
    let bug = std::env::args()
        .nth(3)
        .and_then(|b| leasehold_sim::Bug::named(&b));
    let seeds: Vec<u64> = (from..from + n).collect();
    let t = std::time::Instant::now();
    let (totals, failures) = leasehold_sim::batch::run_all(&seeds, bug, 2, false, |_| {});
    for f in failures.iter().take(30) {
        println!("{} {} {:?}", f.plan.seed, f.plan.mode, f.violation);
    }
    println!(
        "{} failures; {:?} {:.1}/s",
        failures.len(),
        t.elapsed(),
        n as f64 / t.elapsed().as_secs_f64()
    );
    println!("{totals:?}");
}
