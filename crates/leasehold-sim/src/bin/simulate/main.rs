//! `./simulate`: many seeds with progress, or one with a timeline.

#![forbid(unsafe_code)]

mod args;
mod meter;
mod table;

use std::process::ExitCode;

use clap::Parser;
use leasehold_sim::{Bug, Report, batch, run};

use args::Args;
use meter::Meter;

fn main() -> ExitCode {
    let args = Args::parse();
    let bug = match args.bug() {
        Ok(bug) => bug,
        Err(names) => {
            eprintln!("{names}");
            return ExitCode::from(64);
        }
    };
    match args.seed {
        Some(seed) => replay(&args, seed, bug),
        None => run_many(&args, bug),
    }
}

/// Runs one seed and prints what happened in it.
fn replay(args: &Args, seed: u64, bug: Option<Bug>) -> ExitCode {
    let report = run(seed, bug, true);
    print!("{}", report.plan);
    for line in report.timeline.lines() {
        // The answers of nodes are indented below what callers see.
        if !args.brief || !line.contains("s      n") {
            println!("{line}");
        }
    }
    let (leases, faults) = (report.leases, report.faults.total());
    let simulated = report.simulated.as_secs_f64();
    println!("{leases} leases and {faults} faults in {simulated:.1} s");
    match &report.violation {
        None => {
            println!("every promise was kept");
            ExitCode::SUCCESS
        }
        Some(_) => {
            print_violation(args, &report);
            ExitCode::FAILURE
        }
    }
}

fn run_many(args: &Args, bug: Option<Bug>) -> ExitCode {
    let (seeds, fresh) = args.seeds();
    match (seeds.first(), fresh) {
        (Some(first), None) => println!("{} seeds from {first} on", seeds.len()),
        (_, Some(fresh)) => println!("{} seeds, half of them from {fresh} on", seeds.len()),
        (None, None) => {}
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let meter = Meter::new(seeds.len() as u64);
    let threads = args.threads.unwrap_or(cores);
    let count = |report: &Report| meter.count(report);
    let (totals, failures) = batch::run_all(&seeds, bug, threads, false, count);
    println!("{}", meter.finish());
    if args.table {
        table::print(&totals, &failures);
    }
    for report in failures.iter().take(20) {
        print_violation(args, report);
    }
    match failures.len() {
        0 => {
            println!("every promise was kept");
            ExitCode::SUCCESS
        }
        count => {
            println!("{count} seeds broke a promise");
            ExitCode::FAILURE
        }
    }
}

/// Prints the broken promise, and how to reproduce it.
fn print_violation(args: &Args, report: &Report) {
    if let Some(violation) = &report.violation {
        let seed = report.plan.seed;
        println!(
            "seed {seed} broke \"{}\" at {:.6} s ({}): {}\n  replay: {}",
            violation.promise,
            std::time::Duration::from_nanos(violation.at).as_secs_f64(),
            report.plan.mode,
            violation.what,
            args.replay(seed)
        );
    }
}
