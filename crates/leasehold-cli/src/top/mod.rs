//! `top`: a live screen of the locks and the nodes.
//!
//! Three threads, so that neither a slow server nor a slow terminal stops the others: the main thread
//! reads locks and nodes ([`source`]) and receives signals, one thread reads keys, and one draws.

mod app;
mod columns;
mod renewal;
mod row;
mod screen;
mod source;
mod text;
mod view;

use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind};
use tokio::sync::{mpsc, oneshot, watch};

use app::{App, Effect, Target, Update};
use row::Filter;
use screen::Screen;
use source::{Pace, Source};
use view::Theme;

use crate::args::Top;
use crate::block_on;
use crate::exit::{Failure, INTERNAL, Outcome, by_signal};
use crate::signals::{SignalStreams, stop};

/// How often the screen is drawn at least, because the age of the data grows.
const TICK: Duration = Duration::from_secs(1);

/// How many updates may wait for the thread that draws. Further ones are dropped: the terminal is not read
/// (a connection that hangs, for example), and each may list thousands of locks.
const MAX_UPDATES: usize = 4;
/// After a signal, how long to wait for the thread that draws. It cannot end while the terminal is not
/// read.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// What the thread that draws waits for.
enum Event {
    Input(Input),
    /// The terminal cannot be read any more.
    NoInput(std::io::Error),
    Update(Update),
    /// This process is to end.
    End(Signal),
    /// Ctrl-Z in another process of the group, or `kill -TSTP`.
    Stop,
    /// This process was stopped and is continued.
    Continued,
}

pub(crate) fn top(args: &Top) -> Outcome {
    screen::check()?;
    block_on(run(args))
}

async fn run(args: &Top) -> Outcome {
    let deployment = args.nodes.resolve()?;
    let client = deployment.inspecting()?.build()?;
    let mut signals = SignalStreams::start()?;
    let pace = Pace {
        interval: args.interval,
        is_paused: false,
        asked: 0,
    };
    let (set_pace, pace) = watch::channel(pace);
    let (breaks, to_break) = mpsc::unbounded_channel();
    let (events, incoming) = channel();
    let app = App::new(
        args.interval,
        Filter::new(args.pattern.clone().unwrap_or_default()),
    );
    let screen = Screen::enter()?;
    let keys = events.clone();
    std::thread::Builder::new().spawn(move || read_keys(&keys))?;
    let (ended, end) = oneshot::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let drawing = Drawing {
        screen,
        waiting: Arc::clone(&waiting),
        app,
        theme: Theme::of_environment(),
        set_pace,
        breaks,
        is_suspended: false,
    };
    std::thread::Builder::new().spawn(move || {
        // If the main thread has ended, nobody waits for this.
        let _ = ended.send(drawing.run(&incoming));
    })?;
    let source = Source {
        deployment: &deployment,
        prefix: &args.nodes.prefix,
        client,
        pace,
    };
    let send = |event| {
        // The thread that draws has ended, and so does this one.
        let _ = events.send(event);
    };
    let update = |update| {
        // What became of a lock to break is told in any case.
        let is_dropped = waiting.load(Ordering::Relaxed) >= MAX_UPDATES;
        if !is_dropped || matches!(update, Update::Broken(_)) {
            waiting.fetch_add(1, Ordering::Relaxed);
            send(Event::Update(update));
        }
    };
    let reading = source.run(to_break, update);
    let watching = async {
        loop {
            tokio::select! {
                signal = signals.forwarded.next() => {
                    send(Event::End(signal));
                    tokio::time::sleep(LEAVES_WITHIN).await;
                    return signal;
                }
                _ = signals.stops.next() => send(Event::Stop),
                _ = signals.continues.next() => send(Event::Continued),
            }
        }
    };
    tokio::select! {
        outcome = end => outcome.unwrap_or_else(|_| Err(panicked())),
        signal = watching => Ok(ExitCode::from(by_signal(signal as i32))),
        // The thread that draws has ended, and `end` says how.
        outcome = async { reading.await; pending().await } => outcome,
    }
}

/// The hook of the panic has printed it.
fn panicked() -> Failure {
    Failure::new(INTERNAL, "the screen ended because of the panic above")
}

/// Passes on what the user types, and changes of the terminal's size.
fn read_keys(events: &Sender<Event>) {
    loop {
        let (event, is_last) = match event::read() {
            Ok(input) => (Event::Input(input), false),
            Err(error) => (Event::NoInput(error), true),
        };
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// The thread that draws.
struct Drawing {
    screen: Screen,
    /// How many updates have been sent and not been taken.
    waiting: Arc<AtomicUsize>,
    app: App,
    theme: Theme,
    set_pace: watch::Sender<Pace>,
    breaks: mpsc::UnboundedSender<Target>,
    /// The screen was left, until this process is continued.
    is_suspended: bool,
}

impl Drawing {
    fn run(mut self, events: &Receiver<Event>) -> Outcome {
        loop {
            if !self.is_suspended {
                if self.screen.is_gone() {
                    return Err(panicked());
                }
                let (app, theme) = (&mut self.app, &self.theme);
                self.screen
                    .draw(|frame| view::draw(frame, app, theme, Instant::now()))?;
            }
            let first = match events.recv_timeout(TICK) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
            };
            // All that has arrived: what is typed fast is drawn once.
            for event in first.into_iter().chain(events.try_iter()) {
                if let Some(code) = self.take(event)? {
                    return Ok(code);
                }
            }
        }
    }

    /// Returns the exit code if the screen ends.
    fn take(&mut self, event: Event) -> Result<Option<ExitCode>, Failure> {
        let effect = match event {
            Event::Input(Input::Key(key)) if key.kind != KeyEventKind::Release => self.app.key(key),
            Event::Input(Input::Paste(text)) => {
                self.app.paste(&text);
                Effect::Nothing
            }
            // Keys may follow before the next drawing.
            Event::Input(Input::Resize(width, height)) => {
                self.app.resize(width, height);
                Effect::Nothing
            }
            Event::Input(_) => Effect::Nothing,
            Event::NoInput(error) => return Err(error.into()),
            Event::Update(update) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                let is_broken = matches!(update, Update::Broken(_));
                self.app.update(update);
                match is_broken {
                    true => Effect::Refresh,
                    false => Effect::Nothing,
                }
            }
            Event::End(signal) => return Ok(Some(ExitCode::from(by_signal(signal as i32)))),
            Event::Stop => Effect::Suspend,
            Event::Continued => {
                self.is_suspended = false;
                self.screen.enter_again()?;
                Effect::Nothing
            }
        };
        match effect {
            Effect::Nothing => {}
            Effect::Quit => return Ok(Some(ExitCode::SUCCESS)),
            Effect::Suspend => self.suspend()?,
            Effect::Redraw => self.screen.redraw()?,
            Effect::Pace => self.send_pace(0),
            Effect::Refresh => self.send_pace(1),
            // If the main thread has ended, so does this process.
            Effect::Break(target) => _ = self.breaks.send(target),
        }
        Ok(None)
    }

    fn send_pace(&self, asked: u64) {
        let (interval, is_paused) = (self.app.interval, self.app.is_paused);
        self.set_pace.send_modify(|pace| {
            *pace = Pace {
                interval,
                is_paused,
                asked: pace.asked + asked,
            };
        });
    }

    /// Stops the process group, as Ctrl-Z does outside of a screen. This thread may run on for a moment,
    /// so the screen is entered again when SIGCONT has arrived, and not before.
    fn suspend(&mut self) -> Result<(), Failure> {
        self.screen.leave();
        self.is_suspended = stop(Pid::from_raw(0));
        if !self.is_suspended {
            self.screen.enter_again()?;
        }
        Ok(())
    }
}
