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
    /// Why it had to be stopped, if its lease would not last.
    pub(super) lost: Option<&'static str>,
}

/// What is listened to. Made before the command is started, so that nothing is missed.
pub(super) struct Ears {
    children: Signals,
    stops: Signals,
    terminal: Terminal,
}

impl Ears {
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            children: Signals::of(&[Signal::SIGCHLD])?,
            stops: Signals::of(&[Signal::SIGTSTP])?,
            terminal: Terminal::open(),
        })
    }
}

/// Watches over the command until it has ended.
pub(super) async fn supervise(
    child: &Child,
    lease: &Lease,
    reporter: &Reporter,
    signals: &mut Signals,
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
        lost: None,
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
        tokio::select! {
            biased;
            _ = ears.children.next() => {}
            signal = signals.next() => watch.forward(signal),
            _ = ears.stops.next() => watch.suspend(&mut ears.terminal),
            () = lease.lost(), if !watch.heard_of_loss => watch.lease_lost(),
            () = tokio::time::sleep(watch.next_look()) => {}
        }
    };
    ears.terminal.take_back();
    watch.clear_group().await;
    Ok(Supervised {
        ended,
        lost: watch.lost,
    })
}

/// The command is signalled first and spoken of afterwards, always.
struct Watch<'a> {
    child: &'a Child,
    lease: &'a Lease,
    reporter: &'a Reporter,
    plan: Plan,
    at_most: Option<Moment>,
    /// The command was told to end, and has until then.
    kill_at: Option<Moment>,
    killed: bool,
    /// Why the lease will not last, or has not.
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
            self.kill();
        } else if self.kill_at.is_some() {
            // It has been told.
        } else if self.at_most.is_some_and(|at| at <= now) {
            let why = "it ran for as long as it may (--at-most-for)";
            self.stop(why, now + self.plan.grace);
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
        self.heard_of_loss = true;
        let loss = self.lease.loss().unwrap_or(Loss::NotRenewed);
        let why = match loss {
            Loss::TakenAway => "the lock was broken or deleted, or the nodes lost their memory",
            _ => "the lease could not be renewed",
        };
        self.lost.get_or_insert(why);
        match (self.plan.on_lost, loss) {
            (OnLost::Warn, _) => {}
            // Another may hold it already. It is as late as it will be, so the command may
            // end in order.
            (_, Loss::TakenAway) if self.kill_at.is_none() => {
                self.stop(why, Moment::now() + self.plan.grace);
            }
            (_, Loss::TakenAway) => {}
            // The deadline: after this another may hold the lock.
            _ => self.kill(),
        }
        self.reporter.warn(Event::Lost { why }, || {
            format!("error: lost `{}`: {why}", self.reporter.name())
        });
    }

    /// Asks the whole group to end, and sets it a time.
    fn stop(&mut self, why: &str, kill_at: Moment) {
        self.child.signal(Signal::SIGTERM);
        // What is stopped cannot end.
        self.child.signal(Signal::SIGCONT);
        self.kill_at = Some(kill_at);
        let left = kill_at.saturating_duration_since(Moment::now());
        let signal = "SIGTERM";
        self.reporter.warn(Event::Stopping { why, signal }, || {
            let left = short(left);
            format!("warning: {why}; stopping the command, which has {left}")
        });
    }

    fn kill(&mut self) {
        self.child.signal(Signal::SIGKILL);
        self.kill_at = Some(Moment::now());
        // Again if need be, but told once.
        if !std::mem::replace(&mut self.killed, true) {
            let (why, signal) = ("its time is up", "SIGKILL");
            self.reporter.warn(Event::Stopping { why, signal }, || {
                "warning: killing the command and all that it started".into()
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
        let nobody_to_continue_us = is_orphaned();
        if !nobody_to_continue_us {
            let _ = kill(whom, Signal::SIGSTOP);
        }
        // It may have been a long time. The command does nothing before that is known.
        if Moment::now() >= self.lease.deadline() && self.plan.on_lost == OnLost::Kill {
            self.lost.get_or_insert("the lease could not be renewed");
            return self.kill();
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

/// Whether nobody is there who could continue our process group if it stopped: no shell with
/// job control, whose group is another one of the same session.
fn is_orphaned() -> bool {
    use nix::unistd::{getpgid, getpgrp, getppid, getsid};
    const GENERATIONS: usize = 64;
    let session = getsid(None);
    let mut ancestor = getppid();
    for _ in 0..GENERATIONS {
        if ancestor.as_raw() <= 0 || getsid(Some(ancestor)) != session {
            return true;
        }
        if getpgid(Some(ancestor)) != Ok(getpgrp()) {
            return false;
        }
        ancestor = match parent_of(ancestor) {
            Some(parent) => parent,
            None => return true,
        };
    }
    true
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let parent = fields.split(' ').nth(1)?.parse().ok()?;
    Some(Pid::from_raw(parent))
}
