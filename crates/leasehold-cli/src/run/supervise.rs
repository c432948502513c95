//! Supervises the command: forwards signals, and stops the command before its lease expires.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use leasehold::{Error, Lease, Loss, Moment, Name};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::child::{Change, Child, Ended};
use super::terminal::Terminal;
use crate::args::OnLost;
use crate::exit::Failure;
use crate::held::Held;
use crate::messages;
use crate::report::{Event, HolderJson, NodeJson, Reporter, exact, nearest, unix_ms};
use crate::signals::{self, SignalStreams, Signals};

/// How often to check the clock. Timers stop while the machine is suspended, but the lease does not.
const SLICE: Duration = Duration::from_millis(500);
/// How often to check whether all processes of a group have ended.
const GROUP_CHECK: Duration = Duration::from_millis(5);
/// How long to wait until killed processes have ended. Some never do: processes that are not reaped,
/// and processes of other users.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// When to stop the command.
pub(super) struct StopPlan {
    pub(super) grace: Duration,
    pub(super) at_most: Option<Duration>,
    pub(super) on_lost: OnLost,
}

/// The result of a supervised command.
pub(super) struct Supervised {
    pub(super) ended: Ended,
    /// The lease was lost, or the command was stopped because the lease could not be renewed.
    pub(super) lost: bool,
    /// The command was stopped at its time limit.
    pub(super) timed_out: bool,
    /// A signal that asks this process to end was forwarded.
    pub(super) asked_to_stop: bool,
}

/// Sources of events besides the signals to this process. Created before the command is started, so
/// that no event is missed.
pub(super) struct Inputs {
    children: Signals,
    terminal: Terminal,
}

impl Inputs {
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            children: Signals::of(&[Signal::SIGCHLD])?,
            terminal: Terminal::open(),
        })
    }
}

/// Supervises the command until it has ended.
pub(super) async fn supervise(
    child: &Child,
    held: &Held<'_>,
    reporter: &Reporter,
    signals: &mut SignalStreams,
    mut inputs: Inputs,
    plan: StopPlan,
) -> Result<Supervised, Failure> {
    if Terminal::is_interactive() {
        inputs.terminal.lend_to(child.group());
    }
    let mut supervisor = Supervisor {
        child,
        held: held.clone(),
        watched: held.clone(),
        reporter,
        at_most: plan.at_most.map(|at_most| Moment::now() + at_most),
        plan,
        kill_at: None,
        killed: false,
        loss: None,
        cause: None,
        timed_out: false,
        asked_to_stop: false,
        recorded: None,
    };
    let ended = loop {
        match supervisor.child.change()? {
            Some(Change::Ended(ended)) => break ended,
            Some(Change::Stopped(by)) => {
                supervisor.stopped(by, &mut inputs.terminal);
                continue;
            }
            None => {}
        }
        supervisor.check_deadlines();
        supervisor.record_deadline();
        let next_check = supervisor.next_check();
        tokio::select! {
            biased;
            _ = inputs.children.next() => {}
            signal = signals.forwarded.next() => supervisor.forward(signal),
            _ = signals.stops.next() => supervisor.suspend(&mut inputs.terminal),
            lease = supervisor.watched.lost() => supervisor.lease_lost(lease),
            cause = pending(&mut supervisor.cause) => supervisor.report_loss(cause),
            () = tokio::time::sleep(next_check) => {}
        }
    };
    inputs.terminal.take_back();
    supervisor.clear_group().await;
    if supervisor.cause.is_some() {
        let cause = pending(&mut supervisor.cause).await;
        supervisor.report_loss(cause);
    }
    Ok(Supervised {
        ended,
        lost: supervisor.loss.is_some(),
        timed_out: supervisor.timed_out,
        asked_to_stop: supervisor.asked_to_stop,
    })
}

/// The state of the supervision. Every method signals the command before it prints anything.
struct Supervisor<'a> {
    child: &'a Child,
    held: Held<'a>,
    /// The leases whose loss has not been handled.
    watched: Held<'a>,
    reporter: &'a Reporter,
    plan: StopPlan,
    at_most: Option<Moment>,
    /// SIGTERM has been sent, and SIGKILL is due at this time.
    kill_at: Option<Moment>,
    killed: bool,
    /// A lease was lost, or the command was stopped because the lease could not be renewed.
    loss: Option<Lost>,
    /// A request to the nodes for the cause. The loss is reported when they have answered.
    cause: Option<Cause<'a>>,
    /// The command was stopped at its time limit.
    timed_out: bool,
    /// A signal that asks this process to end was forwarded.
    asked_to_stop: bool,
    /// The deadline in the metrics file.
    recorded: Option<Moment>,
}

/// A loss, and of which lock, if that is known.
pub(super) struct Lost {
    pub(super) name: Option<Name>,
    pub(super) why: Loss,
}

impl Lost {
    pub(super) fn of(lease: &Lease, why: Loss) -> Self {
        Self {
            name: Some(lease.name().clone()),
            why,
        }
    }
}

impl<'a> Supervisor<'a> {
    /// Sends the signals that are due. No server is asked: only the local deadline counts.
    fn check_deadlines(&mut self) {
        let now = Moment::now();
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill();
        } else if self.kill_at.is_some() {
            // SIGTERM has been sent.
        } else if self.at_most.is_some_and(|at| at <= now) {
            self.timed_out = true;
            self.stop("time limit reached", now + self.plan.grace);
        } else if self.plan.on_lost == OnLost::Kill
            && self.until_term(now).is_zero()
            && self.loss.is_none()
        {
            self.stop(&why(Loss::NotRenewed), self.held.deadline());
            self.note_loss(self.held.first_to_end(), Loss::NotRenewed);
        }
    }

    /// Writes a new deadline to the metrics file. Of several leases, it is that of the one that ends
    /// first, which no renewal knows.
    fn record_deadline(&mut self) {
        let deadline = self.held.deadline();
        if let Some(metrics) = self.reporter.metrics()
            && self.recorded != Some(deadline)
        {
            self.recorded = Some(deadline);
            let left = deadline.saturating_duration_since(Moment::now());
            metrics.renewed_until(unix_ms(SystemTime::now() + left));
        }
    }

    /// How long until SIGTERM is due, unless a renewal succeeds before.
    fn until_term(&self, now: Moment) -> Duration {
        let left = self.held.deadline().saturating_duration_since(now);
        left.saturating_sub(self.plan.grace)
    }

    fn next_check(&self) -> Duration {
        let now = Moment::now();
        let until = |at: Moment| at.saturating_duration_since(now);
        let next = match self.kill_at {
            Some(at) => until(at),
            None => self
                .at_most
                .map_or(Duration::MAX, until)
                .min(self.until_term(now)),
        };
        // With `--on-lost warn`, the deadline may have passed and nothing is due.
        if next.is_zero() {
            SLICE
        } else {
            next.min(SLICE)
        }
    }

    /// A lease is lost, or will be lost in a moment. The others are still watched: the command must
    /// not outlive any of them.
    fn lease_lost(&mut self, lease: &'a Lease) {
        self.watched.remove(lease);
        let loss = lease.loss().unwrap_or(Loss::NotRenewed);
        match (self.plan.on_lost, loss) {
            (OnLost::Warn, _) => {}
            // Another process may hold the lock already. Even SIGKILL would come too late, so the
            // command gets its grace period.
            (_, Loss::TakenAway | Loss::Broken) if self.kill_at.is_none() => {
                self.stop(&why(loss), Moment::now() + self.plan.grace);
            }
            (_, Loss::TakenAway | Loss::Broken) => {}
            // The deadline. After it, another process may hold the lock.
            _ => self.kill(),
        }
        self.note_loss(Some(lease), loss);
    }

    /// Records a loss and asks the nodes for the cause: one more renewal either fails for the same
    /// reason as the earlier ones, or shows what happened to the lease. What is done to the command
    /// does not depend on the answer.
    fn note_loss(&mut self, lease: Option<&'a Lease>, why: Loss) {
        if let Some(lease) = lease
            && self.loss.is_none()
        {
            self.loss = Some(Lost::of(lease, why));
            self.cause = Some(Box::pin(lease.extend()));
        }
    }

    fn report_loss(&mut self, cause: Result<(), Error>) {
        self.cause = None;
        if let Some(lost) = &self.loss {
            report_loss(self.reporter, lost, cause.err().as_ref());
        }
    }

    /// Sends SIGTERM to the process group and sets the time for SIGKILL.
    fn stop(&mut self, why: &str, kill_at: Moment) {
        self.child.signal(Signal::SIGTERM);
        // A stopped process does not handle SIGTERM.
        self.child.signal(Signal::SIGCONT);
        self.kill_at = Some(kill_at);
        let left = kill_at.saturating_duration_since(Moment::now());
        let signal = "SIGTERM";
        self.reporter.warn(Event::Stopping { why, signal }, || {
            let limit = self.plan.at_most.filter(|_| self.timed_out);
            let limit = limit.map(|limit| format!(" (--at-most-for {})", exact(limit)));
            let (limit, left) = (limit.unwrap_or_default(), nearest(left));
            format!("warning: {why}{limit}: sent SIGTERM, SIGKILL in {left}")
        });
    }

    fn kill(&mut self) {
        self.child.signal(Signal::SIGKILL);
        self.kill_at = Some(Moment::now());
        // SIGKILL may be sent several times but is reported once.
        if !std::mem::replace(&mut self.killed, true) {
            let (why, signal) = ("the deadline has passed", "SIGKILL");
            self.reporter.warn(Event::Stopping { why, signal }, || {
                "warning: sent SIGKILL to the command and its process group".into()
            });
        }
    }

    fn forward(&mut self, signal: Signal) {
        self.child.signal(signal);
        if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
            self.asked_to_stop = true;
            // A stopped process does not handle the signal.
            self.child.signal(Signal::SIGCONT);
        }
        let name = signal.as_str();
        self.reporter.step(Event::Signal { signal: name }, || {
            format!("forwarded {name} to the command")
        });
    }

    /// The command was stopped.
    fn stopped(&mut self, by: Signal, terminal: &mut Terminal) {
        let needs_terminal = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        if needs_terminal && terminal.lend_to(self.child.group()) {
            self.child.signal(Signal::SIGCONT);
        } else if needs_terminal || terminal.is_lent() {
            // The cause is Ctrl-Z, or the command needs the terminal while we are in the background.
            // Our whole job must stop, or the shell would not notice.
            terminal.take_back();
            self.stop_with(Pid::from_raw(0), needs_terminal, terminal);
        }
        // Otherwise only the command was stopped, and the lease is still renewed.
    }

    /// Ctrl-Z while our own group is in the foreground: the terminal has signalled the whole group.
    fn suspend(&mut self, terminal: &mut Terminal) {
        self.child.signal(Signal::SIGTSTP);
        self.stop_with(nix::unistd::getpid(), false, terminal);
    }

    /// Stops this process or its group, and returns when it has been continued.
    fn stop_with(&mut self, target: Pid, needs_terminal: bool, terminal: &mut Terminal) {
        let was_stopped = signals::stop(target);
        // The stop may have been long. The deadline is checked before the command continues.
        if Moment::now() >= self.held.deadline() && self.plan.on_lost == OnLost::Kill {
            self.kill();
            return self.note_loss(self.held.first_to_end(), Loss::NotRenewed);
        }
        if Terminal::is_interactive() {
            terminal.lend_to(self.child.group());
        }
        if was_stopped || !needs_terminal {
            self.child.signal(Signal::SIGCONT);
        }
    }

    /// If the command was stopped, waits until its whole process group has ended, and kills it if
    /// necessary. The lock is released only after that.
    async fn clear_group(&mut self) {
        while let Some(kill_at) = self.kill_at
            && self.child.group_lives()
        {
            let now = Moment::now();
            if self.killed && now >= kill_at + KILL_TIMEOUT {
                return;
            }
            if !self.killed && now >= kill_at {
                self.kill();
            }
            tokio::time::sleep(GROUP_CHECK).await;
        }
    }
}

/// Reports a lost lease, with the errors of the nodes.
pub(super) fn report_loss(reporter: &Reporter, lost: &Lost, cause: Option<&Error>) {
    let name = lost.name.as_ref().map(ToString::to_string);
    let why = why(lost.why);
    let nodes = cause.map(Error::nodes).unwrap_or_default();
    let nodes = match lost.why {
        Loss::NotRenewed => NodeJson::failing(nodes),
        // The others have answered what happened. A node that is slower says nothing about it.
        _ => NodeJson::failed(nodes),
    };
    let holder = cause.and_then(Error::holder);
    let event = Event::Lost {
        lock: name.as_deref().filter(|_| reporter.has_several()),
        why: &why,
        holder: holder.map(HolderJson::from),
        nodes: &nodes,
    };
    reporter.warn(event, || {
        let holder = holder.map(|holder| format!("; {}", messages::held_by(holder)));
        let (holder, list) = (holder.unwrap_or_default(), NodeJson::list(&nodes));
        let name = name.as_ref().map(|name| format!("`{name}`"));
        let name = name.unwrap_or_else(|| reporter.names());
        format!("error: lost {name}: {why}{holder}{list}")
    });
}

fn why(loss: Loss) -> String {
    match loss {
        // This is also true before the deadline.
        Loss::NotRenewed => "the lease could not be renewed".to_owned(),
        loss => loss.to_string(),
    }
}

/// A renewal whose error shows the cause of a loss.
type Cause<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Resolves when the cause is known. Never resolves if none was requested.
async fn pending(cause: &mut Option<Cause<'_>>) -> Result<(), Error> {
    match cause {
        Some(cause) => cause.await,
        None => std::future::pending().await,
    }
}
