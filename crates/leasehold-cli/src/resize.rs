//! `resize`: changes the number of permits of a semaphore.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use leasehold::Options;

use crate::acquire::shut_down;
use crate::args::Resize;
use crate::exit::Outcome;
use crate::report::print_message;

pub(crate) async fn resize(args: Resize) -> Outcome {
    let nodes = args.nodes.resolve()?;
    let client = nodes.client(Options::default())?;
    let semaphore = client.semaphore(args.name.as_bytes(), args.permits);
    let resized = semaphore.resize().await;
    shut_down(&client).await;
    resized?;
    let (name, permits) = (args.name.to_string_lossy(), args.permits);
    print_message(format!("`{name}` has {permits} permits now"));
    Ok(ExitCode::SUCCESS)
}
