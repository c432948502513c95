//! Compares leasehold with a raw client and its peers: in one run, on servers that it starts
//! itself, as ratios. See `README.md` for what is measured and how.

mod args;
mod contenders;
mod cpu;
mod noise;
mod peers;
mod pin;
mod report;
mod scenarios;
mod servers;
mod stats;
mod tally;
mod targets;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

/// The TTL of every contender.
pub(crate) const TTL: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    if let Some(done) = worker::work() {
        return done;
    }
    let plan = match args::parse() {
        Ok(Some(plan)) => plan,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\n\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    if !scenarios::ids().any(|id| plan.wants(id)) {
        let ids: Vec<_> = scenarios::ids().collect();
        eprintln!("no such scenario; the scenarios are {}", ids.join(", "));
        return ExitCode::from(2);
    }
    let results = match scenarios::run_all(&plan) {
        Ok(results) => results,
        Err(error) => {
            eprintln!("nothing could be measured: {error}");
            return ExitCode::FAILURE;
        }
    };
    let verdicts = targets::judge(&results);
    print!("{}", report::text(&plan, &results, &verdicts));
    let json = report::write_json(&plan, &results, &verdicts).map(|path| vec![path]);
    for written in [json, report::write_plots(&results)] {
        match written {
            Ok(paths) => paths
                .iter()
                .for_each(|path| eprintln!("written: {}", path.display())),
            Err(error) => {
                eprintln!("a file could not be written: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
