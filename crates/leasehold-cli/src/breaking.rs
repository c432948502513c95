//! `break`: taking a lock away from the holder that was named.

use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use leasehold::node::NodeError;
use leasehold::{Name, Options, Sighting};

use crate::args::Break;
use crate::exit::{Failure, NOTHING, Outcome, UNAVAILABLE, next_step_after};
use crate::talk::{say, short};
use crate::waiting::{break_off, with_age};

pub(crate) async fn break_lock(args: Break) -> Outcome {
    let client = args.nodes.client(Options::default())?;
    let inspection = client.inspect(args.name.as_bytes()).await?;
    let name = &inspection.name;
    let failed = inspection.nodes.iter();
    let failed = failed.filter_map(|(node, seen)| Some((node, seen.as_ref().err()?)));
    let failed: Vec<(&String, &NodeError)> = failed.collect();
    if !inspection.is_conclusive() {
        return Err(unanswered(name, &failed));
    }
    let named = |seen: &&Sighting| seen.owner_id() == args.owner;
    let Some(lock) = inspection.sightings().find(named) else {
        let text = match inspection.lock() {
            None => format!("`{name}` is free: there is nothing to break"),
            Some(lock) => format!(
                "`{name}` is not held by {}, but by {} (owner {})",
                args.owner,
                with_age(&lock.holder),
                lock.owner_id()
            ),
        };
        return Err(Failure::new(NOTHING, text));
    };
    if !args.yes {
        confirm(lock)?;
    }
    let broken = client.break_lock(args.name.as_bytes(), &args.owner).await;
    break_off(&client).await;
    if !broken? {
        let text = format!("`{name}` was given back meanwhile: there is nothing to break");
        return Err(Failure::new(NOTHING, text));
    }
    say(format!("`{name}` was taken away from {}", lock.holder));
    for (node, error) in failed {
        say(format!(
            "warning: {node} may have it still: it could not be asked ({error})"
        ));
    }
    if let Some(left) = lock
        .remaining
        .filter(|_| lock.holder.token.is_some() && !lock.holder.kept)
    {
        say(format!(
            "if it still runs, it hears of it at its next renewal, in less than {}",
            short(left)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn unanswered(name: &Name, failed: &[(&String, &NodeError)]) -> Failure {
    let errors: Vec<_> = failed.iter().map(|(_, error)| *error).collect();
    let failed = failed
        .iter()
        .map(|(node, error)| format!("{node}: {error}"));
    let failed = failed.collect::<Vec<_>>().join("; ");
    let mut text = format!("not enough nodes answer to say who holds `{name}` [{failed}]");
    if let Some(step) = next_step_after(&errors) {
        text += &format!("\n{step}");
    }
    Failure::new(UNAVAILABLE, text)
}

fn confirm(lock: &Sighting) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "breaking a lock needs a confirmation: a terminal to ask on, or --yes",
        ));
    }
    let mut out = std::io::stderr().lock();
    write!(
        out,
        "`{}` is held by {}.\nWhat it works on is unprotected from now on, except by tokens. Take the \
         lock away? [y/N] ",
        lock.name,
        with_age(&lock.holder)
    )?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(NOTHING, "not confirmed: nothing was changed")),
    }
}
