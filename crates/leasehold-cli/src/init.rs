//! `init`: records on each server which nodes form the set.

use std::process::ExitCode;

use leasehold::node::{Change, Initialized};

use crate::args::Init;
use crate::exit::{Failure, Outcome};
use crate::report::{print_message, short};

pub(crate) async fn init(args: Init) -> Outcome {
    let builder = args.nodes.resolve()?.builder()?;
    let done = match args.replace {
        true => builder.init_replacing().await?,
        false => builder.init().await?,
    };
    if done.is_empty() {
        return Err(Failure::usage(
            "the embedded store does not need init; name servers with --node or LEASEHOLD_NODES",
        ));
    }
    let known = |node: &Initialized| node.change == Change::Unchanged && !node.votes_in.is_zero();
    let guarded = done.iter().any(known);
    for node in done {
        let change = match node.change {
            Change::Unchanged => "already recorded",
            Change::Replaced => "recorded, replacing another set or other values",
            _ => "recorded",
        };
        let votes = match node.votes_in.is_zero() {
            true => "votes at once".to_owned(),
            false => format!("votes in {}", short(node.votes_in)),
        };
        print_message(format!("{}: {change}; {votes}", node.node));
    }
    if guarded {
        print_message(
            "servers that started recently may have forgotten locks; if these servers are new, \
             run `leasehold init --assume-fresh` to let them vote at once",
        );
    }
    Ok(ExitCode::SUCCESS)
}
