//! Watching over the command: signals are passed on, and it does not outlive its lease.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, Lease, Loss, Moment};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::child::{Change, Child, Ended};
use super::terminal::Terminal;
use crate::args::OnLost;
use crate::exit::Failure;
use crate::signals::{self, Listening, Signals};
use crate::talk::{Event, HolderJson, NodeJson, Reporter, nearest, short};
use crate::words;

/// Timers stop while the machine is suspended, the lease does not: look at the clock often.
const SLICE: Duration = Duration::from_millis(500);
/// How often to look whether the last of a group are gone.
const LAST_LOOK: Duration = Duration::from_millis(5);
/// How long to wait for those that were killed to be gone. Some cannot be waited for: those
/// that nobody reaps, and those of other users.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// When to stop the command.
pub(super) struct Plan {
    pub(super) grace: Duration,
    pub(super) at_most: Option<Duration>,
    pub(super) on_lost: OnLost,
}

/// What a command came to under its lease.
pub(super) struct Supervised {
    pub(super) ended: Ended,
    /// The lease was lost, or the command was stopped because it would have been.
    pub(super) lost: bool,
    /// The command was stopped at its time limit.
    pub(super) timed_out: bool,
}

/// What is listened to besides the signals to this process. Made before the command is started,
/// so that nothing is missed.
pub(super) struct Ears {
    children: Signals,
    terminal: Terminal,
}

impl Ears {
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            children: Signals::of(&[Signal::SIGCHLD])?,
            terminal: Terminal::open(),
        })
    }
}

/// Watches over the command until it has ended.
pub(super) async fn supervise(
    child: &Child,
    lease: &Lease,
    reporter: &Reporter,
    signals: &mut Listening,
    mut ears: Ears,
    plan: Plan,
) -> Result<Supervised, Failure> {
    if Terminal::is_wanted() {
        ears.terminal.lend_to(child.group());
    }
    let mut watch = Watch {
        child,
        lease,
        reporter,
        at_most: plan.at_most.map(|at_most| Moment::now() + at_most),
        plan,
        kill_at: None,
        killed: false,
        loss: None,
        cause: None,
        timed_out: false,
        heard_of_loss: false,
    };
    let ended = loop {
        match watch.child.change()? {
            Some(Change::Ended(ended)) => break ended,
            Some(Change::Stopped(by)) => {
                watch.stopped(by, &mut ears.terminal);
                continue;
            }
            None => {}
        }
        watch.attend();
        let next_look = watch.next_look();
        tokio::select! {
            biased;
            _ = ears.children.next() => {}
            signal = signals.forwarded.next() => watch.forward(signal),
            _ = signals.stops.next() => watch.suspend(&mut ears.terminal),
            () = lease.lost(), if !watch.heard_of_loss => watch.lease_lost(),
            cause = pending(&mut watch.cause) => watch.report_loss(cause),
            () = tokio::time::sleep(next_look) => {}
        }
    };
    ears.terminal.take_back();
    watch.clear_group().await;
    if watch.cause.is_some() {
        let cause = pending(&mut watch.cause).await;
        watch.report_loss(cause);
    }
    Ok(Supervised {
        ended,
        lost: watch.loss.is_some(),
        timed_out: watch.timed_out,
    })
}

/// The command is signalled before anything is printed, always.
struct Watch<'a> {
    child: &'a Child,
    lease: &'a Lease,
    reporter: &'a Reporter,
    plan: Plan,
    at_most: Option<Moment>,
    /// The command was sent SIGTERM, and is sent SIGKILL then.
    kill_at: Option<Moment>,
    killed: bool,
    /// The lease was lost, or the command was stopped because it would have been.
    loss: Option<Loss>,
    /// The nodes are being asked for the cause. The loss is reported when they have answered.
    cause: Option<Cause<'a>>,
    /// The command was stopped at its time limit.
    timed_out: bool,
    /// The command has been dealt with, or the user warned.
    heard_of_loss: bool,
}

impl Watch<'_> {
    /// Does what is due by the clock. No server is asked: what counts is the deadline that is
    /// known here.
    fn attend(&mut self) {
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
            self.stop(&why(Loss::NotRenewed), self.lease.deadline());
            self.note_loss(Loss::NotRenewed);
        }
    }

    /// How long until the command must be told, if no renewal comes before.
    fn until_term(&self, now: Moment) -> Duration {
        let left = self.lease.deadline().saturating_duration_since(now);
        left.saturating_sub(self.plan.grace)
    }

    fn next_look(&self) -> Duration {
        let now = Moment::now();
        let until = |at: Moment| at.saturating_duration_since(now);
        let next = match self.kill_at {
            Some(at) => until(at),
            None => self
                .at_most
                .map_or(Duration::MAX, until)
                .min(self.until_term(now)),
        };
        // With `warn` the deadline may pass: nothing is due then.
        if next.is_zero() {
            SLICE
        } else {
            next.min(SLICE)
        }
    }

    /// The lease is lost, or will be in a moment.
    fn lease_lost(&mut self) {
        self.heard_of_loss = true;
        let loss = self.lease.loss().unwrap_or(Loss::NotRenewed);
        match (self.plan.on_lost, loss) {
            (OnLost::Warn, _) => {}
            // Another process may hold the lock already. Killing the command at once would not
            // be early enough either, so it gets its grace.
            (_, Loss::TakenAway | Loss::Broken) if self.kill_at.is_none() => {
                self.stop(&why(loss), Moment::now() + self.plan.grace);
            }
            (_, Loss::TakenAway | Loss::Broken) => {}
            // The deadline: after this another process may hold the lock.
            _ => self.kill(),
        }
        self.note_loss(loss);
    }

    /// The lease is lost, or the command is being stopped because it will be. Asks for the cause:
    /// one more renewal fails as the last ones did, or says what became of the lease. Nothing
    /// that is done to the command depends on that.
    fn note_loss(&mut self, loss: Loss) {
        if self.loss.is_none() {
            self.loss = Some(loss);
            self.cause = Some(Box::pin(self.lease.extend()));
        }
    }

    fn report_loss(&mut self, cause: Result<(), Error>) {
        self.cause = None;
        let loss = self.loss.unwrap_or(Loss::NotRenewed);
        report_loss(self.reporter, loss, cause.err().as_ref());
    }

    /// Sends SIGTERM to the whole group, and sets the time for SIGKILL.
    fn stop(&mut self, why: &str, kill_at: Moment) {
        self.child.signal(Signal::SIGTERM);
        // A stopped process cannot end.
        self.child.signal(Signal::SIGCONT);
        self.kill_at = Some(kill_at);
        let left = kill_at.saturating_duration_since(Moment::now());
        let signal = "SIGTERM";
        self.reporter.warn(Event::Stopping { why, signal }, || {
            let limit = self.plan.at_most.filter(|_| self.timed_out);
            let limit = limit.map(|limit| format!(" (--at-most-for {})", short(limit)));
            let (limit, left) = (limit.unwrap_or_default(), nearest(left));
            format!("warning: {why}{limit}: sent SIGTERM, SIGKILL in {left}")
        });
    }

    fn kill(&mut self) {
        self.child.signal(Signal::SIGKILL);
        self.kill_at = Some(Moment::now());
        // Again if need be, but reported once.
        if !std::mem::replace(&mut self.killed, true) {
            let (why, signal) = ("its time is up", "SIGKILL");
            self.reporter.warn(Event::Stopping { why, signal }, || {
                "warning: sent SIGKILL to the command and its process group".into()
            });
        }
    }

    fn forward(&self, signal: Signal) {
        self.child.signal(signal);
        if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
            // What is stopped cannot end.
            self.child.signal(Signal::SIGCONT);
        }
        let name = signal.as_str();
        self.reporter.tell(Event::Signal { signal: name }, || {
            format!("passed {name} on")
        });
    }

    /// The command was stopped.
    fn stopped(&mut self, by: Signal, terminal: &mut Terminal) {
        let asks = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        if asks && terminal.lend_to(self.child.group()) {
            self.child.signal(Signal::SIGCONT);
        } else if asks || terminal.is_lent() {
            // By Ctrl-Z, or because it needs the terminal and we are in the background: our
            // whole job stops, or the shell would not know.
            terminal.take_back();
            self.stop_with(Pid::from_raw(0), asks, terminal);
        }
        // Else somebody stopped only the command: the lease goes on.
    }

    /// Ctrl-Z while our own group is in the foreground: everybody in it has been told.
    fn suspend(&mut self, terminal: &mut Terminal) {
        self.child.signal(Signal::SIGTSTP);
        self.stop_with(nix::unistd::getpid(), false, terminal);
    }

    /// Stops this process, or its group, and goes on when it was continued.
    fn stop_with(&mut self, whom: Pid, asks: bool, terminal: &mut Terminal) {
        let nobody_to_continue_us = !signals::stop(whom);
        // It may have been a long time. The command does nothing before that is known.
        if Moment::now() >= self.lease.deadline() && self.plan.on_lost == OnLost::Kill {
            self.kill();
            return self.note_loss(Loss::NotRenewed);
        }
        if Terminal::is_wanted() {
            terminal.lend_to(self.child.group());
        }
        if !(asks && nobody_to_continue_us) {
            self.child.signal(Signal::SIGCONT);
        }
    }

    /// When the command had to end, so must all that it started, before the lock is free.
    async fn clear_group(&mut self) {
        while let Some(kill_at) = self.kill_at
            && self.child.group_lives()
        {
            let now = Moment::now();
            if self.killed && now >= kill_at + LAST_GRACE {
                return;
            }
            if !self.killed && now >= kill_at {
                self.kill();
            }
            tokio::time::sleep(LAST_LOOK).await;
        }
    }
}

/// Reports a lost lease, with what the nodes say about it.
pub(super) fn report_loss(reporter: &Reporter, loss: Loss, cause: Option<&Error>) {
    let nodes = NodeJson::failing(cause.map(Error::nodes).unwrap_or_default());
    let holder = cause.and_then(Error::holder);
    let event = Event::Lost {
        why: &why(loss),
        holder: holder.map(HolderJson::from),
        nodes: &nodes,
    };
    reporter.warn(event, || {
        let holder = holder.map(|holder| format!("; held by {}", words::holder(holder)));
        let (holder, list) = (holder.unwrap_or_default(), NodeJson::list(&nodes));
        format!(
            "error: lost `{}`: {}{holder}{list}",
            reporter.name(),
            why(loss)
        )
    });
}

fn why(loss: Loss) -> String {
    match loss {
        // True before the deadline, too.
        Loss::NotRenewed => "the lease could not be renewed".to_owned(),
        loss => loss.to_string(),
    }
}

/// A renewal, for its error.
type Cause<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Resolves when there is a cause and it is known.
async fn pending(cause: &mut Option<Cause<'_>>) -> Result<(), Error> {
    match cause {
        Some(cause) => cause.await,
        None => std::future::pending().await,
    }
}
