//! What can be said on the command line. The help, the man page and the shell completions
//! are made of this.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};

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
                  by another; 69 no majority of nodes can be reached; 79 the lease was lost; 64 wrong \
                  usage; 126 the command cannot be run; 127 it was not found.",
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
    #[arg(long = "node", value_name = "URL", conflicts_with = "nodes_file")]
    pub(crate) node: Vec<String>,
    /// A file of node URLs, one on each line, which only its owner may read (mode 0600)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nodes_file: Option<PathBuf>,
    /// Put before every name
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) prefix: String,
    /// How long a restarted node does not vote; the same for all clients [default: 60s for
    /// three nodes and more, else off]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) restart_guard: Option<Duration>,
    /// Let nodes vote that have restarted not long ago: for the first start of a deployment
    #[arg(long)]
    pub(crate) assume_fresh: bool,
    /// The certificate authority (PEM) of `rediss://` nodes [default: Mozilla's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The certificate (PEM) to show to `rediss://` nodes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// How to wait for a lock.
#[derive(Args)]
pub(crate) struct Waiting {
    /// Wait at most so long [default: for ever]
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

/// What to say.
#[derive(Args)]
pub(crate) struct Talk {
    /// Say nothing but errors
    #[arg(short, long, conflicts_with_all = ["verbose", "json"])]
    pub(crate) quiet: bool,
    /// Say what happens
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Say what happens as JSON, one event on each line of stderr
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] <NAME> [--] <COMMAND>...\n       \
                      leasehold run [OPTIONS] <NAME> -c <LINE>",
    after_help = "The command gets LEASEHOLD_NAME, LEASEHOLD_TOKEN (larger than that of every earlier \
                  holder) and LEASEHOLD_DEADLINE_MS (when the lease ends if it cannot be renewed, in \
                  ms since 1970) in its environment."
)]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: OsString,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "line", conflicts_with = "line",
          value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    /// Run a line with `sh -c`
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// How long the lock stays taken if this process dies with its machine; renewed every third
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) ttl: Duration,
    /// Stop the command after so long
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
    after_help = "In a script:\n\n  eval \"$(leasehold acquire deploy)\" || exit\n  …\n  \
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
    /// How long the lock stays taken from now
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s")]
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

/// How to print, and how often.
#[derive(Args)]
pub(crate) struct Printing {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Print again every so often, until interrupted
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1,
          default_missing_value = "1s", require_equals = true)]
    pub(crate) watch: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct Show {
    /// The lock's name
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// Which names: `*` is any text, `?` any character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    #[command(flatten)]
    pub(crate) printing: Printing,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

#[derive(Args)]
pub(crate) struct Break {
    /// The lock's name
    pub(crate) name: OsString,
    /// The owner's id, as `show` prints it: the lock is taken from nobody else
    #[arg(long, value_name = "ID")]
    pub(crate) owner: String,
    /// Do not ask
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
}

/// `30s`, `1h 30m`, `250ms`.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error} (examples: 250ms, 30s, 5m, 1h 30m)"))
}
