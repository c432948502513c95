//! Watching over the command: signals are passed on, and it does not outlive its lease.

use std::time::Duration;

use leasehold::{Lease, Loss, Moment};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::child::{Change, Child, Ended};
use super::terminal::Terminal;
use crate::args::OnLost;
use crate::exit::Failure;
use crate::signals::Signals;
use crate::talk::{Event, Reporter, short};

/// Timers stop while the machine is suspended, the lease does not: look at the clock often.
const SLICE: Duration = Duration::from_millis(500);
/// How often to look whether the last of a group are gone.
const LAST_LOOK: Duration = Duration::from_millis(5);

/// When to stop the command.
pub(super) struct Plan {
    pub(super) grace: Duration,
    pub(super) at_most: Option<Duration>,
    pub(super) on_lost: OnLost,
}

/// What a command came to under its lease.
pub(super) struct Supervised {
    pub(super) ended: Ended,
    /// Why it had to be stopped, if its lease would not last.
    pub(super) lost: Option<&'static str>,
}

/// Watches over the command until it has ended.
pub(super) async fn supervise(
    child: &mut Child,
    lease: &Lease,
    reporter: &Reporter,
    signals: &mut Signals,
    plan: Plan,
) -> Result<Supervised, Failure> {
    let mut children = Signals::of(&[Signal::SIGCHLD])?;
    let mut stops = Signals::of(&[Signal::SIGTSTP])?;
    let mut terminal = Terminal::open();
    if Terminal::is_wanted() {
        terminal.lend_to(child.group());
    }
    let at_most = plan.at_most.map(|at_most| Moment::now() + at_most);
    let mut watch = Watch {
        child,
        lease,
        reporter,
        plan,
        at_most,
        kill_at: None,
        lost: None,
        heard_of_loss: false,
    };
    let ended = loop {
        match watch.child.change()? {
            Some(Change::Ended(ended)) => break ended,
            Some(Change::Stopped(by)) => {
                watch.stopped(by, &mut terminal);
                continue;
            }
            None => {}
        }
        watch.attend();
        tokio::select! {
            biased;
            _ = children.next() => {}
            signal = signals.next() => watch.forward(signal),
            _ = stops.next() => watch.suspend(&mut terminal),
            () = lease.lost(), if !watch.heard_of_loss => watch.lease_lost(),
            () = tokio::time::sleep(watch.next_look()) => {}
        }
    };
    terminal.take_back();
    watch.clear_group().await;
    Ok(Supervised {
        ended,
        lost: watch.lost,
    })
}

struct Watch<'a> {
    child: &'a Child,
    lease: &'a Lease,
    reporter: &'a Reporter,
    plan: Plan,
    at_most: Option<Moment>,
    /// The command was told to end, and has until then.
    kill_at: Option<Moment>,
    lost: Option<&'static str>,
    /// The command has been dealt with, or the user warned.
    heard_of_loss: bool,
}

impl Watch<'_> {
    /// Does what is due by the clock. No server is asked: what counts is the deadline that is
    /// known here.
    fn attend(&mut self) {
        let now = Moment::now();
        if self.kill_at.is_some_and(|at| at <= now) {
            return self.kill();
        }
        if self.kill_at.is_some() {
            return;
        }
        if self.at_most.is_some_and(|at| at <= now) {
            self.stop(
                "it ran for as long as it may (--at-most-for)",
                now + self.plan.grace,
            );
        } else if self.plan.on_lost == OnLost::Kill
            && self.until_term(now).is_zero()
            && self.lost.is_none()
        {
            let why = "the lease could not be renewed";
            self.lost = Some(why);
            self.stop(why, self.lease.deadline());
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
        let loss = self.lease.loss().unwrap_or(Loss::NotRenewed);
        let why = match loss {
            Loss::TakenAway => "the lock was broken or deleted, or the nodes lost their memory",
            _ => "the lease could not be renewed",
        };
        self.heard_of_loss = true;
        self.reporter.warn(Event::Lost { why }, || {
            format!("error: lost `{}`: {why}", self.reporter.name())
        });
        if self.plan.on_lost == OnLost::Warn {
            self.lost = Some(why);
            return;
        }
        self.lost.get_or_insert(why);
        match loss {
            // Another may hold it already. It is as late as it will be, so the command may
            // end in order.
            Loss::TakenAway if self.kill_at.is_none() => {
                self.stop(why, Moment::now() + self.plan.grace);
            }
            Loss::TakenAway => {}
            // The deadline: after this another may hold the lock.
            _ => self.kill(),
        }
    }

    /// Asks the whole group to end, and sets it a time.
    fn stop(&mut self, why: &str, kill_at: Moment) {
        self.kill_at = Some(kill_at);
        let left = kill_at.saturating_duration_since(Moment::now());
        let signal = "SIGTERM";
        self.reporter.warn(Event::Stopping { why, signal }, || {
            format!(
                "warning: {why}; stopping the command, which has {}",
                short(left)
            )
        });
        self.child.signal(Signal::SIGTERM);
        // What is stopped cannot end.
        self.child.signal(Signal::SIGCONT);
    }

    fn kill(&mut self) {
        // Again and again if need be, but told once.
        if self.kill_at != Some(Moment::from_origin(Duration::ZERO)) {
            let (why, signal) = ("its time is up", "SIGKILL");
            self.reporter.warn(Event::Stopping { why, signal }, || {
                "warning: killing the command and all that it started".into()
            });
        }
        self.kill_at = Some(Moment::from_origin(Duration::ZERO));
        self.child.signal(Signal::SIGKILL);
    }

    fn forward(&self, signal: Signal) {
        let name = signal.as_str();
        self.reporter.tell(Event::Signal { signal: name }, || {
            format!("passing {name} on")
        });
        self.child.signal(signal);
    }

    /// The command was stopped.
    fn stopped(&self, by: Signal, terminal: &mut Terminal) {
        let asks = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        if asks && terminal.lend_to(self.child.group()) {
            self.child.signal(Signal::SIGCONT);
        } else if terminal.is_lent() {
            // By Ctrl-Z: our whole job stops, or the shell would not get its prompt back.
            terminal.take_back();
            stop_until_continued(Pid::from_raw(0));
            self.resume(terminal);
        }
        // Somebody stopped only the command: the lease goes on.
    }

    /// Ctrl-Z while our own group is in the foreground: everybody in it has been told.
    fn suspend(&self, terminal: &mut Terminal) {
        self.child.signal(Signal::SIGTSTP);
        stop_until_continued(nix::unistd::getpid());
        self.resume(terminal);
    }

    fn resume(&self, terminal: &mut Terminal) {
        if Terminal::is_wanted() {
            terminal.lend_to(self.child.group());
        }
        self.child.signal(Signal::SIGCONT);
    }

    /// When the command had to end, so must all that it started, before the lock is free.
    async fn clear_group(&mut self) {
        while let Some(kill_at) = self.kill_at
            && self.child.group_lives()
        {
            if kill_at <= Moment::now() {
                self.kill();
            }
            tokio::time::sleep(LAST_LOOK).await;
        }
    }
}

/// Stops this process (or its group). Returns when it was continued.
fn stop_until_continued(whom: Pid) {
    let _ = kill(whom, Signal::SIGSTOP);
}
