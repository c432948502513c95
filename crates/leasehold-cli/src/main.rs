//! `leasehold`: runs commands under a lock.

mod args;
mod breaking;
mod exit;
mod generate;
mod init;
mod nested;
mod nodes;
mod outlet;
mod run;
mod script;
mod show;
mod signals;
mod talk;
mod waiting;
mod words;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use exit::Outcome;

fn main() -> ExitCode {
    let args = args::expand_watch(std::env::args_os());
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors. If they cannot be printed, nobody reads them.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => {
                    if args::is_for_eval(&args) {
                        script::fail_eval(exit::USAGE);
                    }
                    ExitCode::from(exit::USAGE)
                }
            };
        }
    };
    let code = dispatch(cli.command).unwrap_or_else(|failure| {
        if !failure.text.is_empty() {
            talk::say(format!("error: {}", failure.text));
        }
        ExitCode::from(failure.code)
    });
    outlet::finish_writing();
    code
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { command } => generate::man(command.as_deref()),
        Command::Run(args) => block_on(run::run(args)),
        Command::Acquire(args) => block_on(script::acquire(args)),
        Command::Extend(args) => block_on(script::extend(args)),
        Command::Release(args) => block_on(script::release(args)),
        Command::Show(args) => block_on(show::show(args)),
        Command::Ls(args) => block_on(show::ls(args)),
        Command::Break(args) => block_on(breaking::break_lock(args)),
        Command::Init(args) => block_on(init::init(args)),
    }
}

/// On this thread: the command is told when the thread that started it dies.
fn block_on(work: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
