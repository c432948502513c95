//! The command line. The help, the manual pages and the shell completions are generated from
//! these definitions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::output::EventsFd;

const EXIT_CODES: &str = "\
Exit codes:
  64       wrong usage, or an enclosing `leasehold run` or script holds the lock
  69       no majority of the nodes can be reached, or the nodes refuse this client
  70       another failure, such as output that cannot be written
  75       the lock is held by another process
  79       the lease was lost
  124      the time limit of the command (--at-most-for) was reached
  126      the command cannot be executed
  127      the command was not found
  128 + n  signal n killed the command or ended the wait

Otherwise, `run`, `once` and `elect` exit with the exit code of the command. `break` exits with 1 if \
it broke nothing, `once --clear` if nothing was stored, and `doctor --strict` if there are warnings. \
`doctor` exits with 2 if a check failed.

Settings:
  The value of an option comes from the command line, else from its environment variable, else from
  the profile (--profile, LEASEHOLD_PROFILE), else from the top level of the configuration file
  (--config, LEASEHOLD_CONFIG, ~/.config/leasehold/leasehold.toml, /etc/leasehold/leasehold.toml),
  else it is the built-in default. `leasehold config` shows all values and where they come from.";

/// The program.
#[derive(Parser)]
#[command(
    name = "leasehold",
    version,
    about = "Run commands under a lock, on one machine or on many",
    long_about = "Run commands under a lock, on one machine or on many.\n\n\
                  The lock is a lease. It is acquired for a limited time (TTL), renewed while the \
                  command runs, and released when the command exits. Each lease has a fencing token \
                  that is larger than the token of every earlier lease.\n\n\
                  Without options, locks are stored in a file and work between the processes of one \
                  user on one machine. To lock across machines, name one Redis or Valkey server, or \
                  several independent servers of which a majority must agree (Redlock).",
    after_help = EXIT_CODES,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

// Deferred: a run needs the arguments of one command, and those of all take a while to define. So a doc
// comment of a struct that is flattened into a command would replace the text about that command.
#[derive(Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Run),
    /// Run a command once per period on one of many machines, and print its output on all of them
    Once(Once),
    /// Run a command on one of many machines at a time, and on another one if that fails
    Elect(Elect),
    /// Wait until a lock is free
    Wait(WaitFree),
    /// Acquire a lock and print the lease, for scripts
    Acquire(Acquire),
    /// Extend a lease from `acquire` by another TTL
    Extend(Extend),
    /// Release a lease from `acquire`
    Release(Release),
    /// Show the holder of a lock and the state of each node
    Show(Show),
    /// List held locks
    Ls(Ls),
    /// Show the past leases of a lock
    History(History),
    /// Watch held locks and nodes on a live screen
    #[cfg(feature = "top")]
    Top(Top),
    /// Release a lock that another process holds
    Break(Break),
    /// Change the number of permits of a semaphore
    Resize(Resize),
    /// Record on each server which nodes form the set, so that new servers vote at once
    Init(Init),
    /// Examine the nodes: what is wrong, why it matters and what to do about it
    Doctor(Doctor),
    /// Show the state of each node
    Nodes(Nodes),
    /// Show the settings in force and where each of them comes from
    Config(Config),
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page (roff)
    Man {
        /// The command. Default: the page of the whole program
        command: Option<String>,
    },
}

// Which nodes store the locks.
#[derive(Args)]
#[command(next_help_heading = "Nodes (default: the embedded store of this machine)")]
pub(crate) struct NodeArgs {
    /// A node: `redis://[user:pass@]host[:port][/db]`, `rediss://…`, `redis+unix:///path`,
    /// `redis+sentinel://host,host/service`, `local:` or `local:/path`. Repeat the option for several nodes; a majority must agree. In the
    /// variable, commas separate the URLs
    #[arg(
        id = "nodes",
        long = "node",
        value_name = "URL",
        conflicts_with = "nodes_file"
    )]
    pub(crate) node: Vec<String>,
    /// Read node URLs from this file, one per line. Only its owner may have access (mode 0600)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nodes_file: Option<PathBuf>,
    /// Prepend this text to every lock name
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) prefix: String,
    /// How long a node does not vote after a restart, or `off`. All clients must use the same
    /// value [default: 60s for three or more nodes, otherwise off]
    #[arg(long, value_name = "TIME", value_parser = guard)]
    pub(crate) restart_guard: Option<Guard>,
    /// How many replicas of a server must have a lock before it counts, so that a failover does not
    /// lose it. At most 64 [default: 0, which waits for none]
    #[arg(long, value_name = "N", conflicts_with = "prefer_replicas",
          value_parser = clap::value_parser!(u32).range(..=64))]
    pub(crate) replicas: Option<u32>,
    /// As --replicas, but warn if too few replicas have a lock, instead of releasing it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=64))]
    pub(crate) prefer_replicas: Option<u32>,
    /// Let nodes vote even if they restarted recently. For the first start of a deployment
    #[arg(long)]
    pub(crate) assume_fresh: bool,
    /// Record the leases of this command, for `leasehold history`
    #[arg(long)]
    pub(crate) history: bool,
    /// Certificate authority (PEM) for `rediss://` nodes [default: Mozilla's list]
    #[arg(id = "tls.ca", long = "tls-ca", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Client certificate (PEM) for `rediss://` nodes. Needs --tls-key
    #[arg(id = "tls.cert", long = "tls-cert", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate. Needs --tls-cert
    #[arg(id = "tls.key", long = "tls-key", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

// Where defaults of options come from. `config::parse` reads these.
#[derive(Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct ConfigArgs {
    /// Read the defaults of options from this file [default: leasehold/leasehold.toml in
    /// $XDG_CONFIG_HOME or ~/.config, or in /etc]
    #[arg(id = "config", long = "config", value_name = "FILE", value_hint = ValueHint::FilePath)]
    _config: Option<PathBuf>,
    /// Use this profile of the configuration file
    #[arg(id = "profile", long = "profile", value_name = "NAME")]
    _profile: Option<String>,
}

// How to wait for a lock.
#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this long. A number without a unit is in seconds [default: no limit]
    #[arg(short, long, value_name = "TIME", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait. Exit with 75 if another process holds the lock
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// Exit code when another process holds the lock
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::HELD)]
    pub(crate) conflict_exit_code: u8,
    /// Text to show to other processes as part of the holder
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) label: String,
}

// What to print about the lock.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Print only errors. A lock that another process holds is not an error
    #[arg(short, long, conflicts_with_all = ["verbose", "json"])]
    pub(crate) quiet: bool,
    /// Print each step
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print events to stderr as JSON instead of text, one per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Write events as JSON to this open file descriptor. Text still goes to stderr, and the
    /// command does not inherit the descriptor
    #[arg(long, value_name = "N", value_parser = EventsFd::open)]
    pub(crate) events_fd: Option<EventsFd>,
}

#[derive(Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] <NAME> [--] <COMMAND>...\n       \
                      leasehold run [OPTIONS] <NAME> -c <LINE>",
    after_help = "The environment of the command contains LEASEHOLD_NAME, LEASEHOLD_TOKEN (larger than \
                  the token of every earlier holder) and LEASEHOLD_DEADLINE_MS (when the lease expires \
                  unless it is renewed, in ms since 1970). LEASEHOLD_TOKENS has the tokens of all locks, \
                  separated by spaces: that of NAME, those of --also, and those of --also-shared. \
                  LEASEHOLD_PERMIT has the numbers of the permits, separated by spaces. A \
                  `leasehold` that the command starts uses the same nodes.\n\n\
                  Ctrl-Z during the wait gives up the place in line. After `fg`, the wait starts again \
                  at the end of the line."
)]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: OsString,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "line", conflicts_with = "line",
          value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    /// Hold another lock, too. All locks are acquired together: all or none, and without deadlocks.
    /// Repeat the option for more locks. When one of them is lost, the command is stopped
    #[arg(long, value_name = "NAME")]
    pub(crate) also: Vec<OsString>,
    /// As --also, but hold that lock together with others that share it
    #[arg(long, value_name = "NAME")]
    pub(crate) also_shared: Vec<OsString>,
    /// Hold the lock together with others that use --shared, and not with anybody else. Does not
    /// apply to the locks of --also
    #[arg(long)]
    pub(crate) shared: bool,
    /// Hold a permit of the semaphore NAME, which has N permits, instead of a lock. All processes must
    /// use the same N
    #[arg(long, value_name = "N", conflicts_with_all = ["also", "also_shared", "shared", "inherit"])]
    pub(crate) permits: Option<u32>,
    /// Hold K permits, all or none
    #[arg(long, value_name = "K", requires = "permits", default_value_t = 1)]
    pub(crate) take: u32,
    /// If an enclosing `leasehold run` holds the lock, run the command under its lease
    #[arg(long, conflicts_with_all = ["at_most_for", "at_least_for", "also", "also_shared"])]
    pub(crate) inherit: bool,
    /// Run this line with `sh -c`
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub(crate) line: Option<OsString>,
    #[command(flatten)]
    pub(crate) waiting: WaitArgs,
    /// How long the lock stays held if this process or its machine fails. The lease is renewed every
    /// third of this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) ttl: Duration,
    /// Stop the command after this time and exit with 124
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) at_most_for: Option<Duration>,
    /// Keep the lock for at least this long, even if the command exits earlier. For jobs that run
    /// once per period on one of many machines
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) at_least_for: Option<Duration>,
    /// Time between SIGTERM and SIGKILL, at most half the TTL [default: 5s, or half the TTL if
    /// that is less]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// What to do when the lease is lost or cannot be renewed in time
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,
    /// Write metrics about the runs to this file, for the textfile collector of node_exporter. The
    /// name must end in `.prom`. Use one file for each lock
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "inherit")]
    pub(crate) metrics_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

// How to hold a lock while a command runs, and how to stop the command.
#[derive(Args)]
pub(crate) struct HoldArgs {
    /// How long the lock stays held if this process or its machine fails. The lease is renewed every
    /// third of this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) ttl: Duration,
    /// Time between SIGTERM and SIGKILL, at most half the TTL [default: 5s, or half the TTL if
    /// that is less]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Args)]
#[command(
    override_usage = "leasehold once [OPTIONS] <NAME> --for <TIME> [--] <COMMAND>...\n       \
                      leasehold once [OPTIONS] <NAME> --for <TIME> -c <LINE>\n       \
                      leasehold once [OPTIONS] <NAME> --clear",
    after_help = "The first process runs the command. Its stdout is passed through, and stored if the command \
                  exits with 0. Until the period is over, all others print the stored output and exit with 0. \
                  The period counts from the end of the command. If the command fails, nothing is stored, \
                  and the next process in line runs its own. The environment is that of `run`.\n\n\
                  The same cron line on all machines:\n\n  \
                  leasehold once nightly-report --for 12h --skip -q -E 0 -c './report.sh >> report.log'"
)]
pub(crate) struct Once {
    /// The name of the result, and of the lock
    pub(crate) name: OsString,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present_any = ["line", "clear"],
          conflicts_with_all = ["line", "clear"], value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    /// Run this line with `sh -c`
    #[arg(
        short = 'c',
        long = "command",
        value_name = "LINE",
        conflicts_with = "clear"
    )]
    pub(crate) line: Option<OsString>,
    /// How long the output is kept, and the command is not run again. At most 366 days
    #[arg(long = "for", value_name = "TIME", value_parser = duration,
          required_unless_present = "clear")]
    pub(crate) period: Option<Duration>,
    /// Do not wait for another process that runs the command. Exit with 75
    #[arg(long, conflicts_with_all = ["wait", "clear"])]
    pub(crate) skip: bool,
    /// Delete the stored output, so that the next process runs the command
    #[arg(long)]
    pub(crate) clear: bool,
    /// Wait at most this long for another process that runs the command [default: no limit]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Exit code when another process runs the command
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::HELD)]
    pub(crate) conflict_exit_code: u8,
    /// Text to show to other processes as part of the holder
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) label: String,
    /// Stop the command after this time and exit with 124. Nothing is stored
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) at_most_for: Option<Duration>,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    override_usage = "leasehold elect [OPTIONS] <NAME> [--] <COMMAND>...\n       \
                      leasehold elect [OPTIONS] <NAME> -c <LINE>\n       \
                      leasehold elect [OPTIONS] <NAME> --observe",
    after_help = "Waits until this process leads, runs the command, and resigns when the command exits. After a \
                  pause it is a candidate again. The pause is 1s, and doubles up to 30s each time that the \
                  command fails within 10s. During the pause nobody leads, so a broken command does not \
                  move from machine to machine. SIGTERM and SIGINT end the command and this process. If the \
                  lease is lost, the command is stopped as by `run`. The environment is that of `run`."
)]
pub(crate) struct Elect {
    /// The name of the election, and of the lock
    pub(crate) name: OsString,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present_any = ["line", "observe"],
          conflicts_with_all = ["line", "observe"], value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    /// Run this line with `sh -c`
    #[arg(
        short = 'c',
        long = "command",
        value_name = "LINE",
        conflicts_with = "observe"
    )]
    pub(crate) line: Option<OsString>,
    /// What other processes see of this leader, for example its address
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) value: String,
    /// Print each change of the leader to stdout, and run nothing. With --json, as JSON
    #[arg(long, conflicts_with = "events_fd")]
    pub(crate) observe: bool,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
pub(crate) struct WaitFree {
    /// The lock's name
    pub(crate) name: OsString,
    /// Wait at most this long. A number without a unit is in seconds [default: no limit]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Exit code when the lock is still held after that time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::HELD)]
    pub(crate) conflict_exit_code: u8,
    /// Print only errors. A lock that is still held is not an error
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Stop the command: SIGTERM before the deadline, SIGKILL at the deadline
    Kill,
    /// Print a warning and let the command continue without the lock
    Warn,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeaseFormat {
    /// Shell commands for `eval`
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
    /// Hold the lock together with others that use --shared, and not with anybody else
    #[arg(long)]
    pub(crate) shared: bool,
    #[command(flatten)]
    pub(crate) waiting: WaitArgs,
    /// How long the lock stays held. It is not renewed
    #[arg(id = "acquire_ttl", long = "ttl", value_name = "TIME", value_parser = duration,
          default_value = "60s")]
    pub(crate) ttl: Duration,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = LeaseFormat::Export)]
    pub(crate) output: LeaseFormat,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

// A lease that `acquire` printed.
#[derive(Args)]
pub(crate) struct Owned {
    /// The lock's name
    pub(crate) name: OsString,
    /// The owner that `acquire` printed. Other users can see an argument, but not the environment
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
    /// How long the lock stays held, from now on. A lease that has more time left keeps it. The
    /// default is the TTL of the lease, which `acquire` has put into LEASEHOLD_LEASE_TTL, or else
    /// LEASEHOLD_ACQUIRE_TTL, or else `acquire_ttl` of the configuration file
    #[arg(
        id = "acquire_ttl",
        long = "ttl",
        value_name = "TIME",
        value_parser = duration,
        default_value = "60s"
    )]
    pub(crate) ttl: Duration,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = LeaseFormat::Export)]
    pub(crate) output: LeaseFormat,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) owned: Owned,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The most important fields
    Table,
    /// All fields
    Wide,
    /// JSON
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// The most important fields
    Table,
    /// All fields
    Wide,
    /// JSON
    Json,
    /// Only the names, one per line
    Name,
}

/// The shortest interval of `--watch`.
pub(crate) const MIN_WATCH: Duration = Duration::from_millis(100);
/// The longest one. It can be doubled, and added to a time.
const MAX_WATCH: Duration = Duration::from_secs(366 * 24 * 60 * 60);

// Whether to print repeatedly.
#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Print repeatedly at this interval until interrupted [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = watch_interval, num_args = 0..=1,
          default_missing_value = "1s")]
    pub(crate) watch: Option<Duration>,
}

/// Lets the user omit the time of `--watch`: `--watch NAME` means `--watch=1s NAME`.
pub(crate) fn expand_watch(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.collect();
    let has_watch = matches!(
        args.get(1).and_then(|arg| arg.to_str()),
        Some("show" | "ls")
    );
    for index in 2..args.len() {
        let next = args.get(index + 1).and_then(|next| next.to_str());
        let time = next.is_some_and(|next| duration(next).is_ok());
        if has_watch && args[index] == "--watch" && !time {
            args[index] = "--watch=1s".into();
        }
    }
    args
}

/// Whether a shell will `eval` the output of this command line, which could not be parsed.
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
    /// Show the permits of the semaphore of this name
    #[arg(long)]
    pub(crate) permits: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) watching: WatchArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// List names that match this pattern. `*` matches any text and `?` any character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ListFormat::Table)]
    pub(crate) output: ListFormat,
    /// Omit the header line of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
    #[command(flatten)]
    pub(crate) watching: WatchArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    after_help = "Only leases of commands with --history (or LEASEHOLD_HISTORY=1, or `history = true` in the \
                  configuration file) are recorded. Nodes keep the last 200 entries of a name, one or two for \
                  each lease, for 7 days.\n\n\
                  A lease has `expired` if no end was recorded and its holder does not hold the lock any more: \
                  it ended at the time after `by`, or earlier."
)]
pub(crate) struct History {
    /// The lock's name
    pub(crate) name: OsString,
    /// Show the history of the semaphore of this name
    #[arg(long)]
    pub(crate) permits: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Table)]
    pub(crate) output: ReportFormat,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[cfg(feature = "top")]
#[derive(Args)]
#[command(
    after_help = "Keys: arrows, PgUp, PgDn, Home, End select a lock; Enter shows its details; b breaks it \
                  after confirmation; / filters; s and S sort; p pauses; + and - change the interval; ? shows \
                  all keys; q quits.\n\n\
                  `leasehold ls --watch` prints the locks without a screen."
)]
pub(crate) struct Top {
    /// Show names that match this pattern. `*` matches any text and `?` any character
    pub(crate) pattern: Option<String>,
    /// The pause between two refreshes
    #[arg(short, long, value_name = "TIME", value_parser = watch_interval, default_value = "2s")]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    after_help = "Run this command once for new servers, before the first client connects. All servers must \
                  be reachable. The record applies only to clients with the same --prefix. Do not use --assume-fresh after a restart: the servers may have forgotten \
                  leases that are still in use."
)]
pub(crate) struct Init {
    /// Replace the recorded nodes and values with these: to add nodes, to replace a server that
    /// failed, or to change a value. Clients of the old set are refused and lose their leases.
    /// The nodes vote when all leases of the old set have expired
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
pub(crate) struct Break {
    /// The lock's name
    pub(crate) name: OsString,
    /// Break the lease of this permit of the semaphore of this name. Needs --owner
    #[arg(long, value_name = "NUMBER", requires = "owner")]
    pub(crate) permit: Option<u32>,
    /// Break the lock only if this owner holds it. `show` prints the owner's id. On a terminal,
    /// the default is the current holder, and the command asks for confirmation
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// Do not ask for confirmation. Needs --owner, and is required in a script
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    after_help = "From then on, a `leasehold run --permits` with another number exits with 64. Permits beyond \
                  the new number stay with their holders until they are released."
)]
pub(crate) struct Resize {
    /// The semaphore's name
    pub(crate) name: OsString,
    /// How many permits it has from now on, 1 to 1024
    pub(crate) permits: u32,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 if nothing failed, 1 if there are warnings and --strict is given, 2 if a check \
                  failed, 69 if no majority of the nodes can be reached. What a server does not show is \
                  UNKNOWN, which does not count.\n\n\
                  docs/doctor.md explains each check."
)]
pub(crate) struct Doctor {
    /// Accept what this check finds: it is still shown, and does not count for the exit code. Repeat
    /// the option for more checks
    #[arg(long, value_name = "ID", value_parser = check_ids())]
    pub(crate) accept: Vec<String>,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    pub(crate) strict: bool,
    /// Also show what the other checks have seen, those that passed and those that could not be made
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// The TTL of the leases. A request may take 5 % of it, at least 20 ms and at most 250 ms [default:
    /// 10s, or the restart guard if that is shorter]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Also acquire and release locks for this long, and show how fast that is. The locks have names of
    /// their own, which are removed afterwards [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1,
          default_missing_value = "10s", conflicts_with = "watch")]
    pub(crate) measure: Option<Duration>,
    /// Examine repeatedly at this interval until interrupted, and print what changes [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = watch_interval, num_args = 0..=1,
          default_missing_value = "10s")]
    pub(crate) watch: Option<Duration>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Table)]
    pub(crate) output: ReportFormat,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

/// The ids of the checks, as values of an option.
fn check_ids() -> clap::builder::PossibleValuesParser {
    let checks = leasehold::doctor::Check::ALL.iter();
    clap::builder::PossibleValuesParser::new(checks.map(|check| check.id()))
}

#[derive(Args)]
pub(crate) struct Nodes {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Table)]
    pub(crate) output: ReportFormat,
    /// Omit the header line of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
    #[command(flatten)]
    pub(crate) watching: WatchArgs,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Args)]
#[command(
    override_usage = "leasehold config [OPTIONS] [-- COMMAND [ARGUMENTS]...]",
    after_help = "Checks the whole configuration file, including the profiles that are not used, and exits with \
                  64 if something in it is wrong. Passwords are not shown.\n\n\
                  The settings of one command line:\n\n  \
                  leasehold config -- run deploy --wait 5s -- ./deploy.sh"
)]
pub(crate) struct Config {
    /// Show the settings of this command line of `leasehold`, which is not run
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Table)]
    pub(crate) output: ReportFormat,
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Text
    Table,
    /// JSON
    Json,
}

/// How long a node does not vote after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Off,
    For(Duration),
}

/// Parses a duration or `off`.
pub(crate) fn guard(text: &str) -> Result<Guard, String> {
    match text {
        "off" => Ok(Guard::Off),
        text => duration(text).map(Guard::For),
    }
}

/// Parses the interval of `--watch`. Each look connects to all nodes, so it has a minimum.
fn watch_interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        interval if interval < MIN_WATCH => Err("the interval must be at least 100ms".to_owned()),
        interval if interval > MAX_WATCH => Err("the interval must be at most 366 days".to_owned()),
        interval => Ok(interval),
    }
}

/// Parses a duration such as `30s`, `1h 30m` or `250ms`. A number without a unit is in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
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

    #[test]
    fn intervals_are_limited() {
        assert_eq!(watch_interval("0.1"), Ok(MIN_WATCH));
        assert_eq!(watch_interval("366d"), Ok(MAX_WATCH));
        for text in ["0", "99ms", "x", "31622401", "10000000000000000000"] {
            assert!(watch_interval(text).is_err(), "{text}");
        }
    }
}
