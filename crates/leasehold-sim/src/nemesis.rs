//! The nemesis: injects faults at the rates of the plan.

use std::sync::Arc;

use leasehold::node::News;

use crate::agenda::{Nanos, SECOND};
use crate::check::progress;
use crate::fault::Fault;
use crate::network::Way;
use crate::process::{Pause, Process};
use crate::server::Memory;
use crate::stage;
use crate::store::Store;
use crate::world::World;

/// How far the wall clocks of clients may be off.
const YEARS_US: i64 = 3 * 365 * 86_400 * 1_000_000;

/// Starts all faults of the plan. They end when the world is calm.
pub fn start(world: &Arc<World>) {
    for index in 0..world.plan.strikes.len() {
        schedule(world, index);
    }
    if world.plan.islands {
        let until = world.agenda.now() + world.plan.fault_phase;
        for slot in 0..world.plan.processes {
            let minority = world.plan.nodes.div_ceil(2) - 1;
            cut_off(world, Fault::Minority, minority, Some(slot), until);
        }
    }
}

fn schedule(world: &Arc<World>, index: usize) {
    let (fault, mean) = world.plan.strikes[index];
    let at = world.agenda.now() + world.dice.until_next(mean);
    world.agenda.enter(at, move |world| {
        if !world.is_calm() {
            strike(world, fault);
            schedule(world, index);
        }
    });
}

/// How long a fault lasts: mostly less than a TTL, sometimes several.
fn duration(world: &World) -> Nanos {
    let ttl = world.plan.ttl.as_nanos() as Nanos;
    let most = world.dice.pick(&[ttl / 4, ttl, 3 * ttl, 8 * ttl]);
    world.dice.between(ttl / 50, most)
}

fn strike(world: &Arc<World>, fault: Fault) {
    let node = world.dice.below(world.plan.nodes);
    let slot = world.dice.below(world.plan.processes);
    match fault {
        Fault::Minority => partition(world, fault, world.plan.nodes.div_ceil(2) - 1),
        Fault::Majority => partition(world, fault, world.plan.nodes / 2 + 1),
        Fault::OneWay => one_way(world, slot, node),
        Fault::HungUp => hang_up(world, node),
        Fault::CrashKept => crash(world, node, fault, Memory::Kept),
        Fault::CrashSnapshot => crash(world, node, fault, Memory::Snapshot),
        Fault::CrashAmnesia => crash(world, node, fault, Memory::Lost),
        Fault::RolledBack => roll_back(world, node),
        Fault::NodeStep => step_node(world, node),
        Fault::ClientStep => step_client(world, slot),
        Fault::Stopped => pause(world, slot, fault, Pause::Stopped),
        Fault::Suspended => pause(world, slot, fault, Pause::Suspended),
        Fault::Killed => kill(world, slot, fault),
        Fault::Slow => slow(world, slot, node),
        Fault::Flushed => flush(world, node),
        Fault::ForgotScripts => {
            record(world, fault, || format!("n{node} forgets its scripts"));
            world.servers[node].forget_scripts();
        }
        _ => {}
    }
}

fn record(world: &World, fault: Fault, line: impl FnOnce() -> String) {
    world.strike(fault);
    world.note(|| format!("** {}", line()));
}

/// Cuts some nodes off: from all processes, or from one.
fn partition(world: &Arc<World>, fault: Fault, count: usize) {
    let until = world.agenda.now() + duration(world);
    let only = world
        .dice
        .chance(0.7)
        .then(|| world.dice.below(world.plan.processes));
    cut_off(world, fault, count, only, until);
}

fn cut_off(world: &Arc<World>, fault: Fault, count: usize, only: Option<usize>, until: Nanos) {
    if count == 0 {
        return;
    }
    let first = world.dice.below(world.plan.nodes);
    let nodes: Vec<_> = (first..first + count)
        .map(|node| node % world.plan.nodes)
        .collect();
    record(world, fault, || {
        let whom = only.map_or("all".to_owned(), |slot| format!("p{slot}"));
        format!("nodes {nodes:?} are cut off from {whom}")
    });
    for slot in 0..world.plan.processes {
        if only.is_none_or(|only| only == slot) {
            for node in &nodes {
                let ways = [Way::There, Way::Back];
                world.network.cut(slot, *node, &ways, until);
            }
        }
    }
}

fn one_way(world: &Arc<World>, slot: usize, node: usize) {
    let way = world.dice.pick(&[Way::There, Way::Back]);
    let until = world.agenda.now() + duration(world);
    record(world, Fault::OneWay, || {
        format!("p{slot} and n{node}: no messages {way:?}")
    });
    world.network.cut(slot, node, &[way], until);
}

fn hang_up(world: &Arc<World>, node: usize) {
    record(world, Fault::HungUp, || {
        format!("n{node} closes its connections")
    });
    for connection in world.network.connections_to(node) {
        if world.dice.chance(0.7) {
            world.network.hang_up(world, connection);
        }
    }
}

fn crash(world: &Arc<World>, node: usize, fault: Fault, memory: Memory) {
    let (server, now) = (&world.servers[node], world.agenda.now());
    if memory != Memory::Kept && !server.may_forget(now) || server.run().is_none() {
        return;
    }
    record(world, fault, || format!("n{node} crashes ({memory:?})"));
    // Connected processes are notified, or find out by themselves.
    if world.dice.chance(0.5) {
        for connection in world.network.connections_to(node) {
            world.network.hang_up(world, connection);
        }
    }
    server.crash(memory);
    let back = now + world.dice.pick(&[SECOND / 100, duration(world)]);
    world.agenda.enter(back, move |world| restart(world, node));
}

fn restart(world: &Arc<World>, node: usize) {
    world.note(|| format!("** n{node} is back"));
    world.servers[node].restart(world.agenda.now());
}

/// A replica of a node becomes an independent master. Later the node becomes a replica of that
/// server for a while and is promoted again, so that it has lost what it granted in between. No
/// connection breaks. This happens to one node, or to all of them as in the failover of a site.
fn roll_back(world: &Arc<World>, node: usize) {
    let nodes = match world.dice.chance(0.5) {
        true => 0..world.plan.nodes,
        false => node..node + 1,
    };
    let now = world.agenda.now();
    let from = now + duration(world);
    let back = from + world.plan.shortest_demotion() + duration(world) / 4;
    // Clients that send requests meanwhile notice the change, and clients that know a larger
    // token ask for one above it. Stopped processes do neither, nor do new ones.
    let awake = world.dice.below(world.plan.processes);
    if world.dice.chance(0.5) {
        world.note(|| format!("** all but p{awake} are stopped until nodes forget"));
        for slot in (0..world.plan.processes).filter(|slot| *slot != awake) {
            let sleeper = world.process(slot);
            if sleeper.pause(Pause::Stopped, now) {
                let until = back + world.dice.between(0, SECOND / 50);
                world
                    .agenda
                    .enter(until, move |world| resume(world, &sleeper));
            }
        }
    }
    if world.dice.chance(0.5) {
        let slot = world.dice.below(world.plan.processes);
        world
            .agenda
            .enter(from, move |world| kill(world, slot, Fault::Killed));
    }
    for node in nodes {
        let copy = world.servers[node].copy();
        world.agenda.enter(from, move |world| {
            if !world.is_calm() && world.servers[node].demote() {
                record(world, Fault::RolledBack, || {
                    format!("n{node} becomes a replica")
                });
            }
        });
        world
            .agenda
            .enter(back, move |world| promote(world, node, Some(copy)));
    }
}

fn promote(world: &Arc<World>, node: usize, memory: Option<Store>) {
    let server = &world.servers[node];
    let memory = memory.filter(|_| server.may_forget(world.agenda.now()));
    let what = if memory.is_some() { "old" } else { "its own" };
    if server.promote(memory, world.bug) {
        world.note(|| format!("** n{node} is promoted with {what} data"));
    }
}

fn step_node(world: &Arc<World>, node: usize) {
    let server = &world.servers[node];
    let offset = server.clock_offset_us();
    // Less than F. A node whose clock jumps further, there and back, would forget the tokens of
    // names without noticing.
    let farthest = world.plan.constants.fence_retention.as_micros() as i64;
    let ttl = world.plan.ttl.as_micros() as i64;
    let target = match world.dice.below(5) {
        // Back to about where it was.
        0 | 1 => world.dice.signed(-1_000_000, 1_000_000),
        2 => world.dice.signed(offset, offset.max(farthest)),
        _ => farthest.min(offset + world.dice.signed(0, 2 * ttl)),
    };
    // Back only while it remembers its epoch, or else its floor would be below what it granted.
    if target < offset && !server.remembers() {
        return;
    }
    record(world, Fault::NodeStep, || {
        format!(
            "n{node}'s clock jumps by {} s",
            (target - offset) / 1_000_000
        )
    });
    server.step_clock(target - offset);
}

/// The clocks of all nodes jump ahead. The nodes drop what has expired by then.
pub fn jump_ahead(world: &Arc<World>, by_us: i64) {
    record(world, Fault::JumpThereAndBack, || {
        format!("all nodes' clocks jump ahead by {} s", by_us / 1_000_000)
    });
    world
        .servers
        .iter()
        .for_each(|server| server.step_clock(by_us));
}

/// The clocks jump back, where the node has kept its memory. (Others stay ahead: their floor would
/// be below what they granted.)
pub fn jump_back(world: &Arc<World>, by_us: i64) {
    world.note(|| "** the clocks jump back".to_owned());
    let nodes = world.servers.iter().filter(|server| server.remembers());
    nodes.for_each(|server| server.step_clock(-by_us));
}

fn step_client(world: &Arc<World>, slot: usize) {
    let wall_us = match world.plan.slow_walls {
        true => world.dice.signed(-YEARS_US, 0),
        false => world.dice.signed(-YEARS_US, YEARS_US),
    };
    record(world, Fault::ClientStep, || {
        format!(
            "p{slot}'s wall clock is off by {} s now",
            wall_us / 1_000_000
        )
    });
    world.process(slot).clock.set_wall(wall_us);
}

fn pause(world: &Arc<World>, slot: usize, fault: Fault, how: Pause) {
    let process = world.process(slot);
    if !process.pause(how, world.agenda.now()) {
        return;
    }
    record(world, fault, || {
        format!("{} is paused ({how:?})", process.label())
    });
    let until = world.agenda.now() + duration(world);
    world
        .agenda
        .enter(until, move |world| resume(world, &process));
}

fn resume(world: &Arc<World>, process: &Arc<Process>) {
    if !process.is_dead() && !process.is_running() {
        world.note(|| format!("** {} resumes", process.label()));
        process.resume(world);
    }
}

fn kill(world: &Arc<World>, slot: usize, fault: Fault) {
    let process = world.process(slot);
    if process.is_dead() || !world.take_victim() {
        return;
    }
    record(world, fault, || format!("{} is killed", process.label()));
    world.network.orphan(world, &process);
    process.kill();
    world.waiters().idle_since.clear();
    let at = world.agenda.now() + duration(world) / 4;
    let life = process.life + 1;
    // The run must not end without this process.
    let busy = world.busy();
    world.agenda.enter(at, move |world| {
        stage::start(world, slot, life);
        drop(busy);
    });
}

/// Ends an idle process, and starts another one in its place.
pub fn replace(world: &Arc<World>, slot: usize) {
    let process = world.process(slot);
    world.network.orphan(world, &process);
    process.kill();
    stage::start(world, slot, process.life + 1);
}

/// May kill a process that a node notifies of its turn. The notification arrives at `arrival`, if
/// at all.
pub fn on_notification(
    world: &Arc<World>,
    process: &Arc<Process>,
    news: News,
    arrival: Option<Nanos>,
) {
    let kills = news != News::AskAgain && world.dice.chance(world.plan.kill_in_turn);
    if !kills || process.is_dead() {
        return;
    }
    let (now, slot) = (world.agenda.now(), process.slot);
    // Before the notification arrives, at the same moment, or while the process sends its
    // ACQUIRE.
    let arrives = arrival.unwrap_or(now);
    let soon = arrives + world.plan.longest_round_trip();
    let at = world.dice.pick(&[now, arrives, arrives + 1, soon]);
    let at = world.dice.between(now, at);
    let life = process.life;
    world.agenda.enter(at, move |world| {
        if world.process(slot).life == life {
            kill(world, slot, Fault::KilledInTurn);
        }
    });
}

/// Lets processes be killed though there are no other faults.
pub fn kill_during_calm(world: &Arc<World>) {
    world.set_victims(world.dice.below(4));
    for _ in 0..world.dice.below(3) {
        let slot = world.dice.below(world.plan.processes);
        let at = world.agenda.now() + world.dice.between(0, 4 * SECOND);
        world
            .agenda
            .enter(at, move |world| kill(world, slot, Fault::Killed));
    }
}

/// Slows down a node for all processes, all nodes for a process, or one node for one process, in
/// one direction.
fn slow(world: &Arc<World>, slot: usize, node: usize) {
    let until = world.agenda.now() + duration(world);
    let most = world.plan.ttl.as_nanos() as Nanos / 3;
    let by = world.dice.between(0, most);
    let way = world.dice.pick(&[Way::There, Way::Back]);
    let (any_process, any_node) =
        world
            .dice
            .pick(&[(true, false), (false, true), (false, true), (false, false)]);
    record(world, Fault::Slow, || {
        let process = if any_process {
            "all".to_owned()
        } else {
            format!("p{slot}")
        };
        let nodes = if any_node {
            "all nodes".to_owned()
        } else {
            format!("n{node}")
        };
        format!(
            "{nodes} and {process}: slow by {} ms ({way:?})",
            by / 1_000_000
        )
    });
    for each_slot in 0..world.plan.processes {
        for each_node in 0..world.plan.nodes {
            if (any_process || each_slot == slot) && (any_node || each_node == node) {
                world
                    .network
                    .slow_down(each_slot, each_node, way, until, by);
            }
        }
    }
}

fn flush(world: &Arc<World>, node: usize) {
    let server = &world.servers[node];
    if server.may_forget(world.agenda.now()) {
        record(world, Fault::Flushed, || format!("n{node} is flushed"));
        server.flush();
    }
}

/// Ends all faults.
pub fn heal(world: &Arc<World>) {
    world.set_calm(true);
    world.set_victims(0);
    progress::watch(world);
    world.note(|| "== all faults end".to_owned());
    world.network.mend();
    // All clocks are set to the latest: a node whose clock goes back too far grants nothing until
    // it has caught up with its own tokens.
    let latest = world.servers.iter().map(|s| s.latest_offset_us()).max();
    for (node, server) in world.servers.iter().enumerate() {
        if server.run().is_none() {
            restart(world, node);
        }
        promote(world, node, None);
        let step = latest.unwrap_or(0) - server.clock_offset_us();
        if step > world.plan.constants.skew.as_micros() as i64 / 8 {
            server.step_clock(step);
        }
    }
    let processes = crate::sync::locked(&world.processes).clone();
    for process in &processes {
        resume(world, process);
    }
}
