//! `break`: releases a lock that another process holds.

use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::node::NodeError;
use leasehold::{Client, Error, Inspection, LockState, Sighting};

use crate::acquire::shut_down;
use crate::args::Break;
use crate::exit::{Failure, NOTHING, Outcome, UNAVAILABLE};
use crate::messages;
use crate::report::{print_message, short};

pub(crate) async fn break_lock(args: Break) -> Outcome {
    if args.owner.is_none() && (args.yes || !std::io::stdin().is_terminal()) {
        return Err(Failure::usage(
            "--owner ID is required, so that no other holder loses the lock; `leasehold show` prints \
             the id (on a terminal, `leasehold break NAME` shows the holder and asks)",
        ));
    }
    let client = args.nodes.inspecting_client()?;
    let inspection = look(&client, args.name.as_bytes(), args.permit).await?;
    let lock = find(&inspection, args.owner.as_deref())?;
    if !args.yes {
        confirm(&inspection, lock)?;
    }
    let broken = carry_out(&client, &inspection, lock).await;
    shut_down(&client).await;
    for message in broken? {
        print_message(message);
    }
    Ok(ExitCode::SUCCESS)
}

/// Breaks the lock or the permit of the owner with this id. Returns messages about what was done, and
/// about what it means for the holder.
#[cfg(feature = "top")]
pub(crate) async fn break_owner(
    client: &Client,
    name: &[u8],
    permit: Option<u32>,
    owner: &str,
) -> Result<Vec<String>, Failure> {
    let inspection = look(client, name, permit).await?;
    let lock = find(&inspection, Some(owner))?;
    carry_out(client, &inspection, lock).await
}

/// The inspection of a lock, or of a permit that is held.
async fn look(client: &Client, name: &[u8], permit: Option<u32>) -> Result<Inspection, Failure> {
    match permit {
        None => Ok(client.inspect(name).await?),
        Some(permit) => permit_of(client, name, permit).await,
    }
}

/// Breaks the lock that was found. Returns messages for the user.
async fn carry_out(
    client: &Client,
    inspection: &Inspection,
    lock: &Sighting,
) -> Result<Vec<String>, Failure> {
    let (key, owner) = (inspection.name.as_bytes(), lock.owner_id());
    let broken = match inspection.permit {
        None => client.break_lock(key, &owner).await,
        Some(permit) => client.break_permit(key, permit, &owner).await,
    };
    let after = match inspection.permit {
        None => client.inspect(key).await.map(Some),
        Some(permit) => find_permit(client, key, permit).await,
    };
    let what = what(inspection);
    if !broken? {
        let text = format!("{what} was released in the meantime; nothing was broken");
        return Err(Failure::new(NOTHING, text));
    }
    let mut messages = vec![done(inspection, lock)];
    if let Some(after) = after? {
        let what = match inspection.permit {
            None => "the lock",
            Some(_) => "the permit",
        };
        messages.extend(unconfirmed(&after, what, |seen| seen.owner_id() == owner));
    }
    messages.extend(next_renewal(lock));
    Ok(messages)
}

/// What was broken, and who held it.
fn done(inspection: &Inspection, lock: &Sighting) -> String {
    let (what, who) = (what(inspection), messages::holder_name(&lock.holder));
    if lock.holder.result.is_some() {
        return format!(
            "deleted the stored result {what} of {who}; the next caller runs the command again"
        );
    }
    match lock.holder.kept {
        false => match inspection.permit {
            None => format!("broke the lock {what} of {who}"),
            Some(_) => format!("broke {what}, which {who} held"),
        },
        true if lock.holder.shared => format!("{what} is no longer kept by {who}"),
        true => format!(
            "{what} was {} and is free now",
            messages::lock_held_by(lock)
        ),
    }
}

/// When a holder that is still running notices.
fn next_renewal(lock: &Sighting) -> Option<String> {
    let left = lock
        .remaining
        .filter(|_| lock.holder.token.is_some() && !lock.holder.kept)?;
    // A lease is renewed every third of its TTL, and no more than the TTL was left.
    let next = short(messages::round_up(left / 3));
    Some(match lock.holder.shared {
        false => {
            format!("if the holder is still running, it notices at its next renewal, within {next}")
        }
        true => format!(
            "if the reader is still running, it joins again at its next renewal, within {next}, \
             unless a writer has acquired the lock by then"
        ),
    })
}

/// Names the lock or the permit.
fn what(inspection: &Inspection) -> String {
    let name = &inspection.name;
    match inspection.permit {
        None => format!("`{name}`"),
        Some(permit) => format!("permit {permit} of `{name}`"),
    }
}

/// The inspection of a permit; `None` if it is free.
async fn find_permit(
    client: &Client,
    name: &[u8],
    permit: u32,
) -> Result<Option<Inspection>, Error> {
    let listing = client.inspect_permits(name).await?;
    let mut locks = listing.locks.into_iter();
    Ok(locks.find(|lock| lock.permit == Some(permit)))
}

/// The inspection of a permit that is held.
async fn permit_of(client: &Client, name: &[u8], permit: u32) -> Result<Inspection, Failure> {
    let found = find_permit(client, name, permit).await?;
    let name = String::from_utf8_lossy(name);
    let free = || format!("permit {permit} of `{name}` is free; nothing was broken");
    found.ok_or_else(|| Failure::new(NOTHING, free()))
}

/// A warning for each node that does not confirm that it released something.
pub(crate) fn unconfirmed(
    after: &Inspection,
    what: &str,
    is_it: impl Fn(&Sighting) -> bool,
) -> Vec<String> {
    let warning = |(node, seen): &(String, Result<Vec<Sighting>, NodeError>)| match seen {
        Err(error) => Some(format!(
            "warning: {node} did not answer and may still hold {what} ({})",
            messages::node_error(error)
        )),
        Ok(seen) if seen.iter().any(&is_it) => Some(format!(
            "warning: {node} did not confirm the release and still holds {what}"
        )),
        Ok(_) => None,
    };
    after.nodes.iter().filter_map(warning).collect()
}

/// Finds the lock of the given owner, or of the current holder if no owner was given.
fn find<'a>(inspection: &'a Inspection, owner: Option<&str>) -> Result<&'a Sighting, Failure> {
    let what = what(inspection);
    let named = |seen: &&Sighting| Some(&*seen.owner_id()) == owner;
    if let Some(lock) = inspection.sightings().find(named)
        && inspection.nodes.len() - inspection.missing().count() >= inspection.majority()
    {
        return Ok(lock);
    }
    let text = match (inspection.state(), owner) {
        (LockState::Held(lock), None) => return Ok(lock),
        (LockState::Held(lock), Some(owner)) => format!(
            "{what} is not held by owner {owner}; it is {} (owner {})",
            messages::lock_held_by(lock),
            lock.owner_id()
        ),
        (LockState::NotHeld, _) => match inspection.sightings().next() {
            None => format!("{what} is free; nothing was broken"),
            Some(seen) => format!(
                "{what} is not held: no owner has a majority of the nodes; to remove the \
                 remaining claim, use --owner {}",
                seen.owner_id()
            ),
        },
        _ => return Err(unknown(inspection)),
    };
    Err(Failure::new(NOTHING, text))
}

pub(crate) fn unknown(inspection: &Inspection) -> Failure {
    let missing = inspection.missing();
    let missing = missing.map(|(node, error)| format!("{node}: {}", messages::node_error(error)));
    let missing = missing.collect::<Vec<_>>().join("; ");
    let name = &inspection.name;
    let mut text = match messages::is_of_another_type(inspection) {
        true => format!("`{name}` is not a lock [{missing}]"),
        false => {
            format!("the holder of `{name}` is unknown: not enough nodes answered [{missing}]")
        }
    };
    if let Some(seen) = inspection.sightings().next() {
        let (held, owner) = (messages::lock_held_by(seen), seen.owner_id());
        text += &format!("\nsome of the other nodes report that it is {held} (owner {owner})");
    }
    if let Some(step) = messages::next_step_after(inspection.missing().map(|(_, error)| error)) {
        text += &format!("\nnext: {step}");
    }
    Failure::new(UNAVAILABLE, text)
}

fn confirm(inspection: &Inspection, lock: &Sighting) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "cannot ask for confirmation because stdin is not a terminal; use --yes",
        ));
    }
    let mut out = std::io::stderr().lock();
    write!(
        out,
        "{}. {} [y/N] ",
        consequences(inspection, lock),
        question(lock)
    )?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NOTHING, "not confirmed; nothing was changed")),
    }
}

/// Who holds the lock, and what it means to break it. Without a full stop at the end.
pub(crate) fn consequences(inspection: &Inspection, lock: &Sighting) -> String {
    let (renewed, effect) = match (&lock.holder.result, lock.holder.kept) {
        (Some(_), _) => (
            "",
            "The stored result is deleted, and the next caller runs the command again",
        ),
        (None, true) => (
            "",
            "The holder has released it, so breaking it stops nobody",
        ),
        (None, false) => (
            " unless renewed",
            "If the holder is still running, only tokens protect its data until it stops",
        ),
    };
    let expires = match lock.remaining {
        None => "it has no TTL".to_owned(),
        Some(Duration::ZERO) => format!("expired{renewed}"),
        Some(left) => format!("expires in {}{renewed}", short(left)),
    };
    format!(
        "{} is {}; {expires} (owner {}).\n{effect}",
        what(inspection),
        messages::lock_held_by(lock),
        lock.owner_id()
    )
}

/// What the user is asked.
pub(crate) fn question(lock: &Sighting) -> &'static str {
    match lock.holder.result {
        None => "Break the lock?",
        Some(_) => "Delete the stored result?",
    }
}
