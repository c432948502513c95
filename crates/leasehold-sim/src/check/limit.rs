//! At most as many holders have a valid lease of a semaphore as it has permits.

use std::collections::BTreeMap;

use crate::ledger::{Holding, Ledger};
use crate::plan::Mode;
use crate::semaphore::Keys;
use crate::world::World;

/// The name of the promise.
pub const PROMISE: &str = "limit";

/// The number of permits that the holder of each permit uses, by permit and token, and which memory each
/// node had when it was acquired.
pub type Numbers = BTreeMap<(usize, u64), (u32, Vec<u64>)>;

/// Whenever a permit is granted, no more leases of the semaphore report themselves as valid than it has
/// permits. All their holders use the same number of permits, as long as no node has lost its memory
/// since: a client with another number is refused.
///
/// # Errors
///
/// The holders.
pub fn not_exceeded(world: &World, semaphore: &Keys) -> Result<(), String> {
    if world.plan.mode == Mode::Beyond {
        return Ok(());
    }
    let (journal, numbers) = (world.journal(), world.numbers());
    let believed = believed(&journal.ledger, semaphore);
    let memories = world.memories();
    let known = |holding: &&Holding| {
        let (number, then) = numbers.get(&(holding.name, holding.token))?;
        (*then == memories).then_some(*number)
    };
    let known: Vec<u32> = believed.iter().filter_map(known).collect();
    let most = numbers_of(&believed, &numbers).max().unwrap_or(u32::MAX);
    let differs = known.iter().min() != known.iter().max();
    if !differs && believed.len() <= most as usize {
        return Ok(());
    }
    let holders = believed.iter().map(|holding| {
        let number = numbers.get(&(holding.name, holding.token));
        let of = number.map_or(0, |(number, _)| *number);
        let (who, token) = (holding.process.label(), holding.token);
        format!("{who} with token {token} and {of} permits")
    });
    let holders: Vec<_> = holders.collect();
    let holders = holders.join(", ");
    Err(match differs {
        true => format!("holders use different numbers of permits: {holders}"),
        false => format!("more holders than permits: {holders}"),
    })
}

fn believed<'a>(ledger: &'a Ledger, semaphore: &Keys) -> Vec<&'a Holding> {
    let believed = ledger.believed().map(|id| ledger.get(id));
    let of_it = believed.filter(|holding| semaphore.has(holding.name));
    of_it.collect()
}

fn numbers_of<'a>(
    holdings: &'a [&Holding],
    numbers: &'a Numbers,
) -> impl Iterator<Item = u32> + 'a {
    let of = |holding: &&Holding| numbers.get(&(holding.name, holding.token));
    holdings.iter().filter_map(of).map(|(number, _)| *number)
}
