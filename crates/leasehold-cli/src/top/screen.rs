//! The terminal: raw mode and the alternate screen, and how both end in every case.

use std::io::{IsTerminal, Stdout, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};

use crate::exit::Failure;

/// Whether the terminal is in the state of a screen, and must be restored.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The screen. The terminal is restored when it is dropped, and before the message of a panic.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(super) fn enter() -> std::io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(restore_before_panics);
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()));
        Ok(Self {
            // What was entered is left if this fails.
            terminal: terminal.inspect_err(|_| leave())?,
        })
    }

    /// Restores the terminal, until [`enter_again`](Self::enter_again).
    pub(super) fn leave(&mut self) {
        leave();
    }

    /// Enters the screen again, after another program may have used the terminal.
    pub(super) fn enter_again(&mut self) -> std::io::Result<()> {
        leave();
        enter()?;
        self.redraw()
    }

    /// Lets the next [`draw`](Self::draw) draw everything. (`Terminal::clear` asks the terminal for the
    /// position of the cursor. The thread that reads keys would get the answer.)
    pub(super) fn redraw(&mut self) -> std::io::Result<()> {
        execute!(stdout(), Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(())
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> std::io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Whether the screen was left, by a panic of another thread.
    pub(super) fn is_gone(&self) -> bool {
        !IS_ENTERED.load(Ordering::SeqCst)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> std::io::Result<()> {
    enable_raw_mode()?;
    IS_ENTERED.store(true, Ordering::SeqCst);
    execute!(
        stdout(),
        EnterAlternateScreen,
        EnableBracketedPaste,
        cursor::Hide
    )
    .inspect_err(|_| leave())
}

/// Restores the terminal, once. If it is gone, there is nothing to restore.
fn leave() {
    if IS_ENTERED.swap(false, Ordering::SeqCst) {
        let _ = execute!(
            stdout(),
            DisableBracketedPaste,
            LeaveAlternateScreen,
            cursor::Show
        );
        let _ = disable_raw_mode();
    }
}

/// The message of a panic must be on the terminal that the user sees.
fn restore_before_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        print(panic);
    }));
}

/// Checks that a screen can be drawn.
pub(super) fn check() -> Result<(), Failure> {
    let instead = "`leasehold ls` prints the locks once, and `leasehold ls --watch` repeatedly";
    if !std::io::stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage(format!(
            "`leasehold top` needs a terminal for its input and output; {instead}"
        )));
    }
    match std::env::var("TERM").as_deref() {
        Ok("dumb") => Err(Failure::usage(format!(
            "this terminal cannot show a screen (TERM=dumb); {instead}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test: `tests/cli/top.rs` runs it on a terminal, to see that a panic restores that.
    #[test]
    #[ignore = "needs a terminal"]
    fn panics_on_a_terminal() {
        let mut screen = Screen::enter().expect("a terminal");
        screen
            .draw(|frame| frame.render_widget("a screen", frame.area()))
            .expect("drawn");
        panic!("this panic is intended");
    }
}
