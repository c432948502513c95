//! `break`: taking a lock away from its holder.

use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use leasehold::{Inspection, LockState, Sighting};

use crate::args::Break;
use crate::exit::{Failure, NOTHING, Outcome, UNAVAILABLE};
use crate::talk::{say, short};
use crate::waiting::break_off;
use crate::words;

pub(crate) async fn break_lock(args: Break) -> Outcome {
    if args.owner.is_none() && (args.yes || !std::io::stdin().is_terminal()) {
        return Err(Failure::usage(
            "whose lock? Give --owner ID, as `leasehold show` prints it, so that no other holder \
             loses the lock (on a terminal, `leasehold break NAME` shows the holder and asks)",
        ));
    }
    let client = args.nodes.looking_client()?;
    let inspection = client.inspect(args.name.as_bytes()).await?;
    let name = &inspection.name;
    let lock = find(&inspection, args.owner.as_deref())?;
    if !args.yes {
        confirm(&inspection, lock)?;
    }
    let broken = client
        .break_lock(args.name.as_bytes(), &lock.owner_id())
        .await;
    break_off(&client).await;
    if !broken? {
        let text = format!("`{name}` was released meanwhile: there is nothing to break");
        return Err(Failure::new(NOTHING, text));
    }
    say(match lock.holder.kept {
        false => format!("`{name}` was taken away from {}", words::who(lock)),
        true => format!("`{name}` was kept by {}, and is free now", words::who(lock)),
    });
    for (node, error) in inspection.missing() {
        let error = words::node_error(error);
        say(format!(
            "warning: {node} did not answer and may still have it ({error})"
        ));
    }
    if let Some(left) = lock
        .remaining
        .filter(|_| lock.holder.token.is_some() && !lock.holder.kept)
    {
        say(format!(
            "if the holder still runs, it is notified at its next renewal, in less than {}",
            short(left)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The lock of the owner that was named; of its holder, if none was.
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
            "`{name}` is not held by owner {owner}, but by {} (owner {})",
            words::holder_of(lock),
            lock.owner_id()
        ),
        (LockState::NotHeld, _) => match inspection.sightings().next() {
            None => format!("`{name}` is free: there is nothing to break"),
            Some(seen) => format!(
                "`{name}` is not held: no owner has a majority of the nodes; to remove what is \
                 left, give --owner {}",
                seen.owner_id()
            ),
        },
        _ => return Err(unknown(inspection)),
    };
    Err(Failure::new(NOTHING, text))
}

fn unknown(inspection: &Inspection) -> Failure {
    let missing = inspection.missing();
    let missing = missing.map(|(node, error)| format!("{node}: {}", words::node_error(error)));
    let missing = missing.collect::<Vec<_>>().join("; ");
    let name = &inspection.name;
    let mut text = format!("not enough nodes answer to tell who holds `{name}` [{missing}]");
    if let Some(seen) = inspection.sightings().next() {
        let (who, owner) = (words::holder_of(seen), seen.owner_id());
        text += &format!("\nof those that answer, some have it for {who} (owner {owner})");
    }
    if let Some(step) = words::next_step_after(inspection.missing().map(|(_, error)| error)) {
        text += &format!("\nnext: {step}");
    }
    Failure::new(UNAVAILABLE, text)
}

fn confirm(inspection: &Inspection, lock: &Sighting) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "breaking a lock needs a confirmation: a terminal to ask on, or --yes",
        ));
    }
    let expires = lock.remaining.map_or("it has no TTL".to_owned(), |left| {
        format!("expires in {} unless renewed", short(left))
    });
    let mut out = std::io::stderr().lock();
    write!(
        out,
        "`{}` is held by {}; {expires} (owner {}).\nIf the holder still runs, only tokens protect \
         what it works on from now on. Take the lock away? [y/N] ",
        inspection.name,
        words::holder_of(lock),
        lock.owner_id()
    )?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NOTHING, "not confirmed: nothing was changed")),
    }
}
