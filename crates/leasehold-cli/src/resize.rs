//! `resize`: changes the number of permits of a semaphore.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use leasehold::node::NodeError;
use leasehold::{Inspection, Options};

use crate::acquire::shut_down;
use crate::args::Resize;
use crate::exit::Outcome;
use crate::messages;
use crate::report::print_message;

pub(crate) async fn resize(args: Resize) -> Outcome {
    let nodes = args.nodes.resolve()?;
    let client = nodes.client(Options::default())?;
    let semaphore = client.semaphore(args.name.as_bytes(), args.permits);
    let resized = semaphore.resize().await;
    // Only to find out which nodes answer: the lock of this name is another thing.
    let after = client.inspect(args.name.as_bytes()).await;
    shut_down(&client).await;
    resized?;
    let (name, permits) = (args.name.to_string_lossy(), args.permits);
    print_message(format!("`{name}` has {permits} permits now"));
    if warn_of_silent_nodes(&after?) {
        print_message(format!(
            "run `leasehold resize {name} {permits}` again when all nodes can be reached"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns of each node that does not answer. Returns whether there is one.
fn warn_of_silent_nodes(after: &Inspection) -> bool {
    let silent = after
        .missing()
        .filter(|(_, error)| **error != NodeError::WrongType);
    let mut warned = false;
    for (node, error) in silent {
        print_message(format!(
            "warning: {node} did not answer and may still have another number of permits ({})",
            messages::node_error(error)
        ));
        warned = true;
    }
    warned
}
