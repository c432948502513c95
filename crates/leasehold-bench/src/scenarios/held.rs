//! Many held leases: the memory of each, and the cost of renewing all.

use std::time::Duration;

use serde_json::Value;

use super::sheet::{Figures, Sheet};
use crate::TTL;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::cpu::CpuClock;
use crate::pin::Placement;
use crate::servers::Servers;
use crate::worker::Worker;

pub(crate) const ID: &str = "11/held";
const PLACEMENT: Placement = Placement::OwnCores;
pub(crate) const LEASES: usize = 100_000;
/// The limit for acquiring them all, and for the final report beyond the measured time.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const BYTES: &str = "bytes each";
pub(crate) const CORES: &str = "client, cores";
pub(crate) const BATCH: &str = "renewals per request";
pub(crate) const LOST: &str = "lost";

/// Runs the scenario on one server.
pub(super) fn run(plan: &Plan, server: &Servers) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    server.place(PLACEMENT)?;
    let mut sheet = Sheet::new(ID, "one node, leases of one client, renewed", "leases");
    sheet.add(LEASES, Kind::Leasehold);
    sheet.take_turns(plan.held_rounds, |leases, _, _| turn(leases, server, plan));
    Ok(sheet)
}

fn turn(leases: usize, server: &Servers, plan: &Plan) -> Result<Figures, String> {
    let url = server.urls().into_iter().next().ok_or("no server")?;
    let mut worker = Worker::hold(&url, leases, plan.renewals)?;
    let taken = worker.next(LIMIT)?;
    let (pids, counts) = (server.pids()?, server.counts());
    let cpu = CpuClock::start(&pids)?;
    worker.go()?;
    let done = worker.next(TTL * plan.renewals + LIMIT)?;
    let (server_cpu, requests) = (cpu.elapsed()?, server.requests_since(&counts));
    let (seconds, renewals) = (float(&done, "seconds")?, float(&done, "renewals")?);
    Ok(vec![
        (BYTES, float(&taken, "bytes_each")?),
        (CORES, float(&done, "cores")?),
        ("server, cores", server_cpu.as_secs_f64() / seconds),
        ("renewals/s", renewals / seconds),
        (BATCH, renewals / requests.max(1) as f64),
        (LOST, float(&done, "lost")?),
        ("acquired in, s", float(&taken, "took_s")?),
    ])
}

fn float(value: &Value, field: &str) -> Result<f64, String> {
    let number = value[field].as_f64();
    number.ok_or_else(|| format!("no {field:?} in {value}"))
}
