//! What can be said on the command line. The help, the man page and the shell completions
//! are made of this.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::outlet::EventsFd;

/// What all commands have in common.
#[derive(Parser)]
#[command(
    name = "leasehold",
    version,
    about = "Runs commands under a lock, on one machine or on many",
    long_about = "Runs commands under a lock that is a lease: taken for a time, renewed while the \
                  command runs, given back when it ends, and fenced with a token that only grows.\n\n\
                  On one machine it works with nothing installed. On many, name one Redis or Valkey \
                  server, or several independent ones, of which a majority must agree (Redlock).",
    after_help = "Exit codes: the command's own; 128 + n if it died of signal n; 75 the lock is held \
                  by another; 69 no majority of nodes can be reached; 79 the lease was lost; 124 the \
                  time limit (--at-most-for) was reached; 64 wrong usage; 126 the command cannot be run; 127 it was not found.",
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Wait for the lock, run a command while holding it, give it back
    Run(Run),
    /// Take the lock and leave it taken, for scripts
    Acquire(Acquire),
    /// Keep a lock that `acquire` took for another TTL
    Extend(Extend),
    /// Give a lock that `acquire` took back
    Release(Release),
    /// Show who holds a lock, on every node
    Show(Show),
    /// List the locks that are held
    Ls(Ls),
    /// Take a lock away from its holder
    Break(Break),
    /// Record on new servers which of them belong together, so that they vote at once
    Init(Init),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff), of all or of one command
    Man {
        /// The command; none: the page about all
        command: Option<String>,
    },
}

/// Where the locks are.
#[derive(Args)]
#[command(next_help_heading = "Nodes (default: the embedded store of this machine)")]
pub(crate) struct Nodes {
    /// A node: `redis://[user:pass@]host[:port][/db]`, `rediss://…`, `redis+unix:///path`,
    /// `local:` or `local:/path`. May be given several times; a majority of them must agree
    /// [env: LEASEHOLD_NODES, separated by commas]
    #[arg(long = "node", value_name = "URL", conflicts_with = "nodes_file")]
    pub(crate) node: Vec<String>,
    /// A file of node URLs, one on each line, which only its owner may read (mode 0600) [env:
    /// LEASEHOLD_NODES_FILE]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nodes_file: Option<PathBuf>,
    /// Put before every name
    #[arg(
        long,
        value_name = "TEXT",
        env = "LEASEHOLD_PREFIX",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(crate) prefix: String,
    /// How long a restarted node does not vote, or `off`; the same for all clients [default: 60s
    /// for three nodes and more, else off]
    #[arg(long, value_name = "TIME", value_parser = guard, env = "LEASEHOLD_RESTART_GUARD",
          hide_env_values = true)]
    pub(crate) restart_guard: Option<Guard>,
    /// Let nodes vote that have restarted not long ago: for the first start of a deployment
    #[arg(long, env = "LEASEHOLD_ASSUME_FRESH", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) assume_fresh: bool,
    /// The certificate authority (PEM) of `rediss://` nodes [default: Mozilla's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          env = "LEASEHOLD_TLS_CA", hide_env_values = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The certificate (PEM) to show to `rediss://` nodes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key",
          env = "LEASEHOLD_TLS_CERT", hide_env_values = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert",
          env = "LEASEHOLD_TLS_KEY", hide_env_values = true)]
    pub(crate) tls_key: Option<PathBuf>,
}

/// How to wait for a lock.
#[derive(Args)]
pub(crate) struct Waiting {
    /// Wait at most this long; a number without a unit is in seconds [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with 75 if another holds the lock
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// The exit code when another holds the lock
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::HELD)]
    pub(crate) conflict_exit_code: u8,
    /// A text that tells others who holds the lock
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) label: String,
}

/// What to print about the lock.
#[derive(Args)]
pub(crate) struct Talk {
    /// Print errors only. That another process holds the lock is not an error
    #[arg(short, long, conflicts_with_all = ["verbose", "json"])]
    pub(crate) quiet: bool,
    /// Print each step
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print events as JSON instead of text, one on each line of stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Write events as JSON to this file descriptor, which must be open; stderr keeps the text.
    /// The command does not inherit the descriptor
    #[arg(long, value_name = "N", value_parser = EventsFd::open)]
    pub(crate) events_fd: Option<EventsFd>,
}

#[derive(Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] <NAME> [--] <COMMAND>...\n       \
                      leasehold run [OPTIONS] <NAME> -c <LINE>",
    after_help = "The command gets LEASEHOLD_NAME, LEASEHOLD_TOKEN (larger than that of every earlier \
                  holder) and LEASEHOLD_DEADLINE_MS (when the lease ends if it cannot be renewed, in \
                  ms since 1970) in its environment. A `leasehold` inside it uses the same nodes.\n\n\
                  Ctrl-Z while waiting leaves the line; after `fg` the wait starts again at its end."
)]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: OsString,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "line", conflicts_with = "line",
          value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    /// If an enclosing `leasehold run` holds the lock, run the command under its lease
    #[arg(long, conflicts_with_all = ["at_most_for", "at_least_for"])]
    pub(crate) inherit: bool,
    /// Run a line with `sh -c`
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// How long the lock stays taken if this process dies with its machine; renewed every third
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) ttl: Duration,
    /// Stop the command after this time, and exit with 124
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) at_most_for: Option<Duration>,
    /// Keep the name taken so long from the start, even if the command ends earlier: once per
    /// period, on however many machines
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) at_least_for: Option<Duration>,
    /// How long the command has to end between TERM and KILL; at most half the TTL [default:
    /// 5s, or half the TTL]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// What to do when the lease is about to be lost
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,
    #[command(flatten)]
    pub(crate) talk: Talk,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Stop the command: TERM before the deadline, KILL at it
    Kill,
    /// Say so, and let the command go on unprotected
    Warn,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeaseFormat {
    /// Lines for `eval` in a shell
    Export,
    /// One JSON object
    Json,
}

#[derive(Args)]
#[command(
    after_help = "In a script:\n\n  lease=$(leasehold acquire deploy) || exit\n  eval \"$lease\"\n  …\n  \
                        leasehold release deploy     # the owner is in the environment"
)]
pub(crate) struct Acquire {
    /// The lock's name
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// How long the lock stays taken; nobody renews it
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s")]
    pub(crate) ttl: Duration,
    /// How to print the lease
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = LeaseFormat::Export)]
    pub(crate) output: LeaseFormat,
    #[command(flatten)]
    pub(crate) talk: Talk,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

/// A lock that `acquire` took.
#[derive(Args)]
pub(crate) struct Owned {
    /// The lock's name
    pub(crate) name: OsString,
    /// The owner that `acquire` printed; better in the environment, where others cannot see it
    #[arg(
        long,
        value_name = "OWNER",
        env = "LEASEHOLD_OWNER",
        hide_env_values = true
    )]
    pub(crate) owner: String,
}

#[derive(Args)]
pub(crate) struct Extend {
    #[command(flatten)]
    pub(crate) owned: Owned,
    /// How long the lock stays taken from now, at least: a lock that has more time left keeps it.
    /// The default is the TTL that `acquire` set
    #[arg(
        long,
        value_name = "TIME",
        env = "LEASEHOLD_TTL",
        value_parser = duration,
        default_value = "60s"
    )]
    pub(crate) ttl: Duration,
    /// How to print the lease
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = LeaseFormat::Export)]
    pub(crate) output: LeaseFormat,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) owned: Owned,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// What fits on a line
    Table,
    /// Everything
    Wide,
    /// JSON
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// What fits on a line
    Table,
    /// Everything
    Wide,
    /// JSON
    Json,
    /// The names only, one on each line
    Name,
}

/// How often to print.
#[derive(Args)]
pub(crate) struct Watching {
    /// Print again at this interval until interrupted [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1,
          default_missing_value = "1s")]
    pub(crate) watch: Option<Duration>,
}

/// `--watch NAME` means `--watch=1s NAME`: the time may be left out.
pub(crate) fn expand_watch(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.collect();
    let looks = matches!(
        args.get(1).and_then(|arg| arg.to_str()),
        Some("show" | "ls")
    );
    for index in 2..args.len() {
        let next = args.get(index + 1).and_then(|next| next.to_str());
        let time = next.is_some_and(|next| duration(next).is_ok());
        if looks && args[index] == "--watch" && !time {
            args[index] = "--watch=1s".into();
        }
    }
    args
}

/// Whether the output of a command line that could not be parsed is for `eval`.
pub(crate) fn is_for_eval(args: &[OsString]) -> bool {
    let word = |index: usize| args.get(index).and_then(|arg| arg.to_str());
    let json = (2..args.len()).any(|index| match word(index) {
        Some("-o" | "--output") => word(index + 1) == Some("json"),
        Some(word) => matches!(word, "-ojson" | "-o=json" | "--output=json"),
        None => false,
    });
    matches!(word(1), Some("acquire" | "extend")) && !json
}

#[derive(Args)]
pub(crate) struct Show {
    /// The lock's name
    pub(crate) name: OsString,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) watching: Watching,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// Which names: `*` is any text, `?` any character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// How to print them
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ListFormat::Table)]
    pub(crate) output: ListFormat,
    /// Print the table without its first line
    #[arg(long)]
    pub(crate) no_headers: bool,
    #[command(flatten)]
    pub(crate) watching: Watching,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
#[command(
    after_help = "Run it once for new servers, before the first client. All of them must be reachable. \
                  Do not run it with --assume-fresh after a restart: leases may be running that the servers have \
                  forgotten."
)]
pub(crate) struct Init {
    /// Put these nodes and values in place of those on record: to add nodes, to replace a server
    /// that is gone, or to change a value. Clients of the old set are refused and lose their
    /// leases; the nodes vote when none of those leases can run
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
pub(crate) struct Break {
    /// The lock's name
    pub(crate) name: OsString,
    /// The owner's id, as `show` prints it: no other holder loses the lock. Without it, the
    /// holder is shown and a confirmation asked for, on a terminal. A script must give --yes, too
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// Do not ask for confirmation; needs --owner. Required in a script
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

/// How long a restarted node does not vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Off,
    For(Duration),
}

/// A time, or `off`.
fn guard(text: &str) -> Result<Guard, String> {
    match text {
        "off" => Ok(Guard::Off),
        text => duration(text).map(Guard::For),
    }
}

/// `30s`, `1h 30m`, `250ms`; a number without a unit is in seconds.
fn duration(text: &str) -> Result<Duration, String> {
    const EXAMPLES: &str = "examples: 30 (seconds), 250ms, 5m, 1h 30m";
    if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
        && let Ok(seconds) = text.parse()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text).map_err(|error| format!("{error} ({EXAMPLES})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_unit_is_in_seconds() {
        for (text, ms) in [
            ("10", 10_000),
            ("0", 0),
            ("0.25", 250),
            ("250ms", 250),
            ("1m 30s", 90_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", ".", "1.2.3", "-1", "1e3", "inf", "NaN", "ten", "5 x"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration(&"9".repeat(40)).is_err());
    }
}
