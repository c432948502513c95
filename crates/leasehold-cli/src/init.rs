//! `init`: records on each server which nodes belong together.

use std::process::ExitCode;

use leasehold::node::{Change, Initialized};

use crate::args::Init;
use crate::exit::{Failure, Outcome};
use crate::talk::{say, short};

pub(crate) async fn init(args: Init) -> Outcome {
    let builder = args.nodes.resolve()?.builder()?;
    let done = match args.replace {
        true => builder.init_replacing().await?,
        false => builder.init().await?,
    };
    if done.is_empty() {
        return Err(Failure::usage(
            "the embedded store needs no init; name servers with --node or LEASEHOLD_NODES",
        ));
    }
    let known = |node: &Initialized| node.change == Change::Unchanged && !node.votes_in.is_zero();
    let guarded = done.iter().any(known);
    for node in done {
        let change = match node.change {
            Change::Unchanged => "was recorded before",
            Change::Replaced => "recorded, in place of another set or other values",
            _ => "recorded",
        };
        let votes = match node.votes_in.is_zero() {
            true => "votes at once".to_owned(),
            false => format!("votes in {}", short(node.votes_in)),
        };
        say(format!("{}: {change}; {votes}", node.node));
    }
    if guarded {
        say(
            "servers that started recently may have forgotten locks; if these are new, \
             `leasehold init --assume-fresh` lets them vote at once",
        );
    }
    Ok(ExitCode::SUCCESS)
}
