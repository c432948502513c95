//! An increasing number of nodes: the processor time of a pair, of the client and the servers.

use super::pairs::pairs;
use super::sheet::{Figures, Sheet};
use super::{on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::Kind;
use crate::cpu::CpuClock;
use crate::pin::Placement;
use crate::servers::Servers;

pub(crate) const ID: &str = "10/nodes";
pub(super) const SIZES: [usize; 5] = [1, 3, 5, 7, 9];
const PLACEMENT: Placement = Placement::OwnCores;
const KINDS: [Kind; 3] = [Kind::Raw, Kind::RslockNodelay, Kind::Leasehold];

pub(crate) const CLIENT: &str = "client, µs per pair";
pub(crate) const SERVERS: &str = "servers, µs per pair";
pub(crate) const BOTH: &str = "both, µs per pair";

/// Runs the scenario on these sets of servers.
pub(super) fn run(plan: &Plan, sets: &[&Servers]) -> Result<Sheet, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    let mut sheet = Sheet::new(ID, "processor time, one task", "nodes");
    for servers in sets {
        servers.place(PLACEMENT)?;
        let wanted = |kind: &Kind| !plan.quick || *kind != Kind::RslockNodelay;
        for kind in KINDS.into_iter().filter(wanted) {
            sheet.add(servers.count(), kind);
        }
    }
    sheet.take_turns(plan.crowd_rounds, |nodes, kind, _| {
        let servers = sets.iter().find(|servers| servers.count() == nodes);
        let servers = servers.ok_or("there are no such servers")?;
        on_pinned_thread(PLACEMENT, || turn(kind, servers, plan))
    });
    Ok(sheet)
}

fn turn(kind: Kind, servers: &Servers, plan: &Plan) -> Result<Figures, String> {
    let (urls, pids) = (servers.urls(), servers.pids()?);
    let runtime = one_thread_runtime()?;
    let figures = runtime.block_on(async {
        let contender = kind.connect(&urls).await?;
        pairs(&contender, kind, 1, plan.warm_up).await?;
        let (client, server) = (CpuClock::of_this_process()?, CpuClock::start(&pids)?);
        let done = pairs(&contender, kind, 1, plan.turn).await?;
        let (client, server) = (client.elapsed()?, server.elapsed()?);
        let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / done.count.max(1) as f64;
        Ok(vec![
            (CLIENT, each(client)),
            (SERVERS, each(server)),
            (BOTH, each(client + server)),
        ])
    });
    runtime.shutdown_background();
    figures
}
