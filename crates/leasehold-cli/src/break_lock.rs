//! `break`: releases a lock that another process holds.

use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use leasehold::{Inspection, LockState, Sighting};

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
    let inspection = client.inspect(args.name.as_bytes()).await?;
    let name = &inspection.name;
    let lock = find(&inspection, args.owner.as_deref())?;
    if !args.yes {
        confirm(&inspection, lock)?;
    }
    let broken = client
        .break_lock(args.name.as_bytes(), &lock.owner_id())
        .await;
    shut_down(&client).await;
    if !broken? {
        let text = format!("`{name}` was released in the meantime; nothing was broken");
        return Err(Failure::new(NOTHING, text));
    }
    print_message(match lock.holder.kept {
        false => format!("broke the lock `{name}` of {}", messages::holder_name(lock)),
        true => format!(
            "`{name}` was kept by {} and is free now",
            messages::holder_name(lock)
        ),
    });
    for (node, error) in inspection.missing() {
        let error = messages::node_error(error);
        print_message(format!(
            "warning: {node} did not answer and may still hold the lock ({error})"
        ));
    }
    if let Some(left) = lock
        .remaining
        .filter(|_| lock.holder.token.is_some() && !lock.holder.kept)
    {
        print_message(format!(
            "if the holder is still running, it notices at its next renewal, in less than {}",
            short(left)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the lock of the given owner, or of the current holder if no owner was given.
fn find<'a>(inspection: &'a Inspection, owner: Option<&str>) -> Result<&'a Sighting, Failure> {
    let name = &inspection.name;
    let named = |seen: &&Sighting| Some(&*seen.owner_id()) == owner;
    if let Some(lock) = inspection.sightings().find(named)
        && inspection.nodes.len() - inspection.missing().count() >= inspection.majority()
    {
        return Ok(lock);
    }
    let text = match (inspection.state(), owner) {
        (LockState::Held(lock), None) => return Ok(lock),
        (LockState::Held(lock), Some(owner)) => format!(
            "`{name}` is not held by owner {owner}; it is held by {} (owner {})",
            messages::holder_of(lock),
            lock.owner_id()
        ),
        (LockState::NotHeld, _) => match inspection.sightings().next() {
            None => format!("`{name}` is free; nothing was broken"),
            Some(seen) => format!(
                "`{name}` is not held: no owner has a majority of the nodes; to remove the \
                 remaining claim, use --owner {}",
                seen.owner_id()
            ),
        },
        _ => return Err(unknown(inspection)),
    };
    Err(Failure::new(NOTHING, text))
}

fn unknown(inspection: &Inspection) -> Failure {
    let missing = inspection.missing();
    let missing = missing.map(|(node, error)| format!("{node}: {}", messages::node_error(error)));
    let missing = missing.collect::<Vec<_>>().join("; ");
    let name = &inspection.name;
    let mut text = format!("cannot tell who holds `{name}`: not enough nodes answered [{missing}]");
    if let Some(seen) = inspection.sightings().next() {
        let (who, owner) = (messages::holder_of(seen), seen.owner_id());
        text += &format!("\nsome of the other nodes report {who} (owner {owner})");
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
    let expires = lock.remaining.map_or("it has no TTL".to_owned(), |left| {
        format!("expires in {} unless renewed", short(left))
    });
    let mut out = std::io::stderr().lock();
    write!(
        out,
        "`{}` is held by {}; {expires} (owner {}).\nIf the holder is still running, only tokens \
         protect its data until it stops. Break the lock? [y/N] ",
        inspection.name,
        messages::holder_of(lock),
        lock.owner_id()
    )?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NOTHING, "not confirmed; nothing was changed")),
    }
}
