//! On a terminal: the progress line, colours, Ctrl-C, Ctrl-Z and confirmation.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use leasehold_testkit::process;

use crate::{Place, UNTIL_GO, eventually, is_alive, parse_pid, until};

/// A shell on a pseudo-terminal, which `script` creates.
struct Session {
    shell: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Session {
    fn start(place: &Place, extra: &[(&str, &str)]) -> Self {
        let mut session = Self::of(place, extra, "bash --norc --noprofile -i");
        // The terminal echoes the input, so the test waits for a computed result.
        session.type_keys("echo up and $((1 + 1))\n");
        session.see("up and 2");
        session
    }

    /// Runs another program instead of the shell.
    fn of(place: &Place, extra: &[(&str, &str)], program: &str) -> Self {
        let mut command = Command::new("script");
        command
            .args(["-qfec", program, "/dev/null"])
            .current_dir(place.dir.path())
            .env("XDG_STATE_HOME", place.file("state"))
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .env("PS1", "ready> ")
            .env("TERM", "xterm")
            .env_remove("LEASEHOLD_NODES")
            .env_remove("NO_COLOR")
            .envs(extra.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut shell = command.spawn().expect("`script` starts");
        let screen = Arc::new(Mutex::new(String::new()));
        let mut from = shell.stdout.take().expect("a pipe");
        let to = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
                to.lock().expect("no panic").push_str(&text);
            }
        });
        let keys = shell.stdin.take().expect("a pipe");
        Self {
            shell,
            keys,
            screen,
        }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
        self.keys.flush().expect("typed");
    }

    /// Presses a key until a text is on the screen: the shell may not have started the job yet.
    fn press(&mut self, key: &str, text: &str) {
        eventually(text, || {
            self.type_keys(key);
            std::thread::sleep(std::time::Duration::from_millis(500));
            let mut screen = self.screen.lock().expect("no panic");
            let rest_at = screen.find(text)? + text.len();
            *screen = screen.split_off(rest_at);
            Some(())
        });
    }

    /// Waits until a text is on the screen, and discards the output up to it.
    fn see(&self, text: &str) -> String {
        let start = std::time::Instant::now();
        eventually(text, || {
            let mut screen = self.screen.lock().expect("no panic");
            assert!(start.elapsed() < crate::LIMIT, "no {text:?} on {screen:?}");
            let rest_at = screen.find(text)? + text.len();
            let rest = screen.split_off(rest_at);
            Some(std::mem::replace(&mut *screen, rest))
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The progress line shows the waiting time, the place in line, and the holder.
#[test]
fn the_progress_line_shows_the_holder() {
    let place = Place::local();
    let holder = place.holding("a", &["--label", "nightly"], UNTIL_GO);
    let mut session = Session::start(&place, &[]);
    session.type_keys("$L run a -- echo it is mine\n");
    session.see("leasehold: waiting for ");
    session.see(", next in line: held by ");
    session.see(&format!(" pid {} (nightly) for ", holder.pid()));
    place.touch("go");
    session.see("it is mine\r\n");
}

#[test]
fn colours_only_on_a_terminal_without_no_color() {
    let place = Place::local();
    let mut session = Session::start(&place, &[]);
    session.type_keys("$L run a -- no-such-command\n");
    assert!(
        session.see("cannot run").contains("\x1b[1m\x1b[31merror:"),
        "no colour"
    );
    session.type_keys("$L run a -- no-such-command 2>&1 | cat\n");
    session.see("| cat\r\n");
    assert!(!session.see("cannot run").contains("\x1b[31m"));
    drop(session);
    let mut session = Session::start(&place, &[("NO_COLOR", "1")]);
    session.type_keys("$L run a -- no-such-command\n");
    assert!(!session.see("cannot run").contains("\x1b[31m"));
}

#[test]
fn ctrl_c_ends_the_command_or_the_wait() {
    let place = Place::local();
    let mut session = Session::start(&place, &[]);
    place.pipe("go");
    session.type_keys(&format!("$L run a -c '{COMMAND}'; echo code $?\n"));
    let inner = place.await_file("inner");
    session.type_keys("\x03");
    session.see("code 130");
    assert!(!is_alive(&inner));
    assert_eq!(place.run(&["run", "a", "-n", "--", "true"]).code, 0);
    // During the wait.
    let _holder = place.holding("a", &[], "exec sleep 60");
    session.type_keys("$L run a -- true; echo code $?\n");
    session.see("waiting for");
    session.type_keys("\x03");
    session.see("code 130");
}

/// The command can read from the terminal although it is in another process group, also if its output
/// is redirected.
#[test]
fn the_command_can_read_from_the_terminal() {
    let place = Place::local();
    let mut session = Session::start(&place, &[]);
    session.type_keys("$L run a -c 'read x; echo got $x'\n");
    session.type_keys("something\n");
    session.see("got something");
    session.type_keys("$L run a -c 'read x; echo got $x' > out; echo code $?\n");
    session.type_keys("more\n");
    session.see("code 0");
    assert_eq!(place.read("out"), "got more\n");
    // The shell is in the foreground again.
    session.type_keys("echo still here\n");
    session.see("\rstill here");
}

/// Waits without starting a program. A shell that is about to start a program can be neither stopped
/// nor interrupted until the program runs.
const COMMAND: &str = "echo $$ > inner; read x < go; echo finished";

#[test]
fn ctrl_z_and_fg() {
    let place = Place::local();
    let mut session = Session::start(&place, &[]);
    place.pipe("go");
    session.type_keys(&format!("$L run a --ttl 60s -c '{COMMAND}'\n"));
    let inner = place.await_file("inner");
    let state = || process::state(parse_pid(&inner));
    session.type_keys("\x1a");
    session.see("Stopped");
    until("the command is stopped", || state() == Some('T'));
    session.type_keys("echo prompt is back\n");
    session.see("\rprompt is back");
    session.type_keys("fg\n");
    until("the command continues", || {
        matches!(state(), Some('S' | 'R'))
    });
    std::fs::write(place.file("go"), "go\n").expect("the command reads");
    session.see("finished");
    session.type_keys("echo code $?\n");
    session.see("code 0");
}

/// Ctrl-Z during the wait stops the process. It gives up its place in line before that, so that a
/// stopped process neither acquires the lock nor delays other waiters. After `fg` it waits again.
#[test]
fn ctrl_z_while_waiting() {
    let place = Place::local();
    let holder = place.holding("a", &[], UNTIL_GO);
    let mut session = Session::start(&place, &[]);
    session.type_keys("$L run a --ttl 3s -- echo it is mine\n");
    session.see("waiting for ");
    session.type_keys("\x1a");
    session.see("Stopped");
    assert!(place.ok(&["show", "a"]).contains("waiters  0"));
    // Other processes can acquire the lock.
    place.touch("go");
    assert_eq!(holder.end().code, 0);
    std::fs::remove_file(place.file("started.a")).expect("the first started");
    let second = place.holding(
        "a",
        &["--ttl", "600s"],
        "while [ ! -e go.on ]; do sleep 0.01; done",
    );
    session.type_keys("fg\n");
    session.see("waiting for ");
    // A second stop works like the first.
    session.type_keys("\x1a");
    session.see("Stopped");
    std::thread::sleep(std::time::Duration::from_secs(4));
    session.type_keys("fg\n");
    session.see("waiting for ");
    place.touch("go.on");
    assert_eq!(second.end().code, 0);
    session.see("it is mine\r\n");
    session.type_keys("echo code $?\n");
    session.see("code 0");
}

/// Ctrl-Z stops what waits without a place in line, and `fg` continues it.
#[test]
fn ctrl_z_while_waiting_without_a_place_in_line() {
    let place = Place::local();
    let _holder = place.holding("a", &[], "exec sleep 600");
    let mut session = Session::start(&place, &[]);
    for (line, shown) in [
        ("$L elect a --observe", " pid "),
        ("echo is waiting; $L wait a", "\ris waiting"),
        ("$L elect b -v -c 'exit 1'", "a candidate again in 4s"),
    ] {
        session.type_keys(&format!("{line}\n"));
        session.see(shown);
        for _ in 0..2 {
            session.press("\x1a", "Stopped");
            session.type_keys("fg; echo code $?\n");
            session.see("fg; echo code $?\r\n");
            // `fg` prints the line of the job. Before that, Ctrl-C would end the shell's line.
            session.see("$L ");
        }
        // 130, or 1 if the command was running.
        session.press("\x03", "code 1");
    }
}

/// A background job stops when its command needs the terminal, and continues after `fg`.
#[test]
fn a_background_job_that_needs_the_terminal() {
    let place = Place::local();
    let mut session = Session::start(&place, &[]);
    session.type_keys("$L run a --ttl 60s -c 'echo $$ > inner; read x; echo got $x' &\n");
    place.await_file("inner");
    until("the job is stopped", || {
        session.screen.lock().expect("no panic").clear();
        session.type_keys("jobs\n");
        std::thread::sleep(std::time::Duration::from_millis(200));
        session.screen.lock().expect("no panic").contains("Stopped")
    });
    session.type_keys("fg\nsomething\n");
    session.see("got something");
}

/// Ctrl-Z has no effect if no shell could continue the process.
#[test]
fn ctrl_z_without_a_shell_is_ignored() {
    let place = Place::local();
    place.pipe("go");
    let line = format!("exec \"$L\" run a -c '{COMMAND}'");
    let mut session = Session::of(&place, &[], &line);
    place.await_file("inner");
    session.type_keys("\x1a");
    std::thread::sleep(std::time::Duration::from_millis(500));
    std::fs::write(place.file("go"), "go\n").expect("the command reads");
    session.see("finished");
}

#[test]
fn break_asks_for_confirmation() {
    let place = Place::local();
    let holder = place.holding("a", &["--ttl", "4s"], "exec sleep 60");
    let owner = place.owner_id("a");
    let mut session = Session::start(&place, &[]);
    session.type_keys(&format!("$L break a --owner {owner}; echo code $?\n"));
    session.see("Break the lock? [y/N] ");
    session.type_keys("n\n");
    session.see("code 1");
    assert_eq!(place.run(&["run", "a", "-n", "-q", "--", "true"]).code, 75);
    // Without --owner, the current holder is shown.
    session.type_keys("$L break a; echo code $?\n");
    let asked = session.see("Break the lock? [y/N] ");
    for part in [&format!(" pid {} for ", holder.pid()), &owner, "expires in"] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    session.type_keys("y\n");
    session.see("code 0");
    assert_eq!(holder.end().code, 79);
}
