//! Completions and manual pages, generated from the definition of the command line.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::config::documented;
use crate::exit::{Failure, Outcome};
use crate::report::print_stdout;

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut documented(), "leasehold", &mut script);
    print_stdout(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(of: Option<&str>) -> Outcome {
    let mut command = documented();
    command.build();
    let command = match of {
        None => command,
        Some(name) => page_of(&command, name)?,
    };
    // What follows the options: the exit codes of the program, and notes about one command.
    let heading = match of {
        None => ".SH \"EXIT STATUS\"\n",
        Some(_) => ".SH NOTES\n",
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .source(concat!("leasehold ", env!("CARGO_PKG_VERSION")))
        .render(&mut page)?;
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\n", heading);
    // The heading says so.
    let page = page
        .replace("\nExit codes:\n", "\n.nf\n")
        .replace("\nOtherwise, ", "\n.fi\n.PP\nOtherwise, ")
        .replace("\nSettings:\n", "\n.SH SETTINGS\n.nf\n");
    print_stdout(page.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn page_of(all: &Command, name: &str) -> Result<Command, Failure> {
    let one = all.get_subcommands().find(|one| one.get_name() == name);
    match one {
        Some(one) => Ok(one.clone()),
        None => Err(Failure::usage(format!(
            "unknown command `{name}`; see `leasehold help`"
        ))),
    }
}
