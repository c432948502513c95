//! How long the tool takes to run a command under a lock, beside `flock`: from the start of the process
//! to its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use leasehold_testkit::TempDir;

use super::sheet::Sheet;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::servers::Servers;
use crate::stats::Spread;

pub(crate) const ID: &str = "16/tool";
pub(crate) const ON_REDIS: &str = "on Redis / flock";
pub(crate) const EMBEDDED: &str = "embedded store / flock";

/// How often each command runs in a turn.
const RUNS: usize = 40;

/// Builds the tool as it is distributed. Returns the path of its program.
pub(super) fn build(plan: &Plan) -> Result<PathBuf, String> {
    if !plan.wants(ID) {
        return Err("it is not wanted".into());
    }
    if plan.quick {
        return Err("the tool would have to be built".into());
    }
    eprintln!("building the tool");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new("cargo")
        .args(["build", "--release", "--quiet", "-p", "leasehold-cli"])
        .current_dir(&root)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the tool could not be built".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("release/leasehold"))
}

/// Runs the scenario on one server, with the tool at this path.
pub(super) fn run(plan: &Plan, server: &Servers, tool: &Path) -> Result<Sheet, String> {
    let [url] = &server.urls()[..] else {
        return Err("it needs one server".into());
    };
    let dir = TempDir::new();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (lock, store) = (file("flock"), format!("local:{}", file("locks.db")));
    let tool = tool.display().to_string();
    let leasehold = |node: &str| {
        let run = [&tool, "run", "16", "-n", "--node", node, "--", "true"];
        run.map(str::to_owned).to_vec()
    };
    let flock = ["flock", "-n", &lock, "true"].map(str::to_owned).to_vec();
    let commands = [flock, leasehold(url), leasehold(&store)];
    let mut sheet = Sheet::new(ID, "`leasehold run NAME -- true`", "runs at a time");
    sheet.add(1, Kind::Leasehold);
    sheet.take_turns(plan.contest_rounds, |_, _, _| {
        let mut times = [const { Vec::new() }; 3];
        for round in 0..=RUNS {
            for (command, times) in commands.iter().zip(&mut times) {
                let took = time(command)?;
                // The first run of each is not the usual one.
                if round > 0 {
                    times.push(took);
                }
            }
        }
        let median = |times: Vec<f64>| Spread::of(times).map_or(f64::NAN, |spread| spread.median);
        let [flock, redis, embedded] = times.map(median);
        Ok(vec![
            ("flock, ms", flock),
            ("on Redis, ms", redis),
            ("embedded store, ms", embedded),
            (ON_REDIS, redis / flock),
            (EMBEDDED, embedded / flock),
        ])
    });
    Ok(sheet)
}

/// Runs a command. Returns how many milliseconds it took.
fn time(command: &[String]) -> Result<f64, String> {
    let (program, args) = command.split_first().ok_or("there is no command")?;
    let start = Instant::now();
    let ran = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("{program}: {error}"))?;
    match ran.success() {
        true => Ok(start.elapsed().as_secs_f64() * 1e3),
        false => Err(format!("{program} ended with {ran}")),
    }
}
