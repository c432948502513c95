//! `leasehold`: runs commands under a lock.

mod acquire;
mod args;
mod break_lock;
mod config;
mod doctor;
mod exit;
mod generate;
mod held;
mod history;
mod init;
mod list_nodes;
mod messages;
mod metrics_file;
mod nested;
mod node_url;
mod nodes;
mod output;
mod private_file;
mod report;
mod resize;
mod run;
mod script;
mod show;
mod signals;
mod subject;
#[cfg(feature = "top")]
mod top;
mod wait_free;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;

use args::Command;
use config::Unusable;
use exit::Outcome;

fn main() -> ExitCode {
    let args = args::expand_watch(std::env::args_os());
    let outcome = match config::parse(&args) {
        Ok(cli) => dispatch(cli.command),
        Err(Unusable::Settings(failure)) => {
            fail_eval(&args);
            Err(failure)
        }
        Err(Unusable::Arguments(error)) => {
            // Help and version are not errors. A closed output is not one either.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => {
                    fail_eval(&args);
                    ExitCode::from(exit::USAGE)
                }
            };
        }
    };
    let code = outcome.unwrap_or_else(|failure| {
        if !failure.text.is_empty() {
            report::print_message(format!("error: {}", failure.text));
        }
        ExitCode::from(failure.code)
    });
    output::finish_writing();
    code
}

/// Lets `eval` fail if a shell uses it for the output of this command line, which is not carried out.
fn fail_eval(args: &[OsString]) {
    if args::is_for_eval(args) {
        script::fail_eval(exit::USAGE);
    }
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { command } => generate::man(command.as_deref()),
        Command::Run(args) => block_on(run::run(args)),
        Command::Once(args) => block_on(run::once(args)),
        Command::Elect(args) => block_on(run::elect(args)),
        Command::Wait(args) => block_on(wait_free::wait_free(args)),
        Command::Acquire(args) => block_on(script::acquire(args)),
        Command::Extend(args) => block_on(script::extend(args)),
        Command::Release(args) => block_on(script::release(args)),
        Command::Show(args) => block_on(show::show(args)),
        Command::Ls(args) => block_on(show::ls(args)),
        Command::History(args) => block_on(history::history(args)),
        #[cfg(feature = "top")]
        Command::Top(args) => top::top(&args),
        Command::Break(args) => block_on(break_lock::break_lock(args)),
        Command::Resize(args) => block_on(resize::resize(args)),
        Command::Init(args) => block_on(init::init(args)),
        Command::Doctor(args) => block_on(doctor::doctor(args)),
        Command::Nodes(args) => block_on(list_nodes::list_nodes(args)),
        Command::Config(args) => block_on(config::show(args)),
    }
}

/// Runs the future on the main thread. On Linux the command gets a signal when the thread that
/// started it ends, so that thread must live as long as this process.
fn block_on(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(work);
    // Does not wait for the address of a node whose name server is silent, nor for a file that another
    // process has locked. All that must be finished, the commands have waited for.
    runtime.shutdown_background();
    outcome
}
