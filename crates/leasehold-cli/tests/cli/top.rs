//! `top` on a real terminal, which `tmux` creates.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_testkit::{RedisServer, process};

use crate::{Place, UNTIL_GO, eventually, until};

/// A shell in a terminal of its own. Killed when dropped.
struct Tmux {
    socket: String,
}

impl Tmux {
    /// Starts a shell with 80 x 24 characters, in the directory and with the nodes of a place.
    fn start(place: &Place) -> Self {
        Self::start_with(place, &[])
    }

    fn start_with(place: &Place, extra: &[(&str, &str)]) -> Self {
        // Each terminal has a tmux server of its own: one that was told to end still answers on
        // its socket for a moment, and exits in the middle of what the next terminal asks.
        static TERMINALS: AtomicU32 = AtomicU32::new(0);
        let socket = format!("tmux-{}", TERMINALS.fetch_add(1, Ordering::Relaxed));
        let tmux = Self {
            socket: place.file(&socket).display().to_string(),
        };
        let inner = place.command(&[]);
        let mut command = tmux.command(&["-f", "/dev/null", "new-session", "-d"]);
        command.args([
            "-x",
            "80",
            "-y",
            "24",
            "exec env PS1='ready> ' bash --norc --noprofile -i",
        ]);
        for (key, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command
            .current_dir(place.dir.path())
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .envs(extra.iter().copied());
        assert!(command.status().expect("tmux starts").success());
        tmux.see("ready>");
        tmux
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-S", &self.socket]).args(args);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses keys, by their names: `Enter`, `C-c`, `Down`, or the characters themselves.
    fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Types a line into the shell.
    fn type_line(&self, line: &str) {
        self.run(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Waits until the screen contains a text, and returns the screen.
    fn see(&self, text: &str) -> String {
        self.see_that(text, |screen| screen.contains(text))
    }

    fn see_that(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let start = std::time::Instant::now();
        eventually(what, || {
            let screen = self.screen();
            let late = start.elapsed() > crate::LIMIT / 3;
            assert!(
                !late || is_so(&screen),
                "{what}: not on the screen:\n{screen}"
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_so(&screen).then_some(screen)
        })
    }

    /// The settings of the terminal, which `stty` writes to a file.
    fn settings(&self, place: &Place, file: &str) -> String {
        self.type_line(&format!("stty -a > {file}.new; mv {file}.new {file}"));
        place.await_file(file)
    }

    /// What tmux knows of the terminal: `#{alternate_on}`.
    fn state(&self, format: &str) -> String {
        self.run(&["display-message", "-p", format])
            .trim()
            .to_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

/// The line of the screen that contains a text.
fn line<'a>(screen: &'a str, text: &str) -> &'a str {
    let mut lines = screen.lines();
    let found = lines.find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("no {text:?}:\n{screen}"))
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn without_a_terminal() {
    let place = Place::local();
    let ran = place.run(&["top"]);
    assert_eq!((ran.code, &*ran.out), (64, ""));
    assert!(ran.err.contains("needs a terminal") && ran.err.contains("`leasehold ls`"));
    let tmux = Tmux::start(&place);
    for line in ["$L top | cat", "$L top < /dev/null", "TERM=dumb $L top"] {
        tmux.type_line(&format!("clear; {line}; echo code ${{PIPESTATUS[0]}}"));
        tmux.see("code 64");
    }
    assert_eq!(place.run(&["top", "-i", "1ms"]).code, 64);
}

/// Locks of all kinds in the embedded store; sorting, filtering, details, help, and the end.
#[test]
fn the_embedded_store() {
    let place = Place::local();
    let nightly = place.holding("backup", &["--label", "nightly"], UNTIL_GO);
    let _waiter = place.spawn(&["run", "backup", "--", "true"]);
    place.until_waiters("backup", 1);
    let _permit = place.holding("exports", &["--permits", "3"], UNTIL_GO);
    let _reader = place.holding("catalog", &["--shared"], UNTIL_GO);
    place.ok(&["once", "report", "--for", "1h", "--", "echo", "done"]);
    place.ok(&["run", "k\x1b[31m", "--at-least-for", "1h", "--", "true"]);
    let tmux = Tmux::start(&place);
    let before = tmux.settings(&place, "before");
    tmux.type_line("$L top; echo code $?");
    let screen = tmux.see("leasehold top  5 locks, 1 waiter ");
    assert_eq!(tmux.state("#{alternate_on}"), "1");
    let node = words(line(&tmux.see(" votes "), "local:")).join(" ");
    assert!(node.contains("votes store sqlite"), "{node}");
    let holder = format!("pid {} (nightly)", nightly.pid());
    assert!(line(&screen, "backup ").contains(&holder), "{screen}");
    assert_eq!(words(line(&screen, "backup ")).last(), Some(&"1/1"));
    for name in ["exports (permit ", "catalog (1 reader)", "report (result)"] {
        line(&screen, name);
    }
    line(&screen, "k\\u{1b}[31m (kept)");
    // The holder renews its lease every 3.3 s.
    tmux.see_that("a renewal", |screen| {
        words(line(screen, "backup ")).contains(&"yes")
    });
    // By name, and reversed.
    tmux.press(&["s"]);
    tmux.see("s:sort (name)");
    tmux.press(&["S"]);
    let screen = tmux.see("s:sort (name, reversed)");
    let at = |name: &str| screen.find(name).expect("a name");
    assert!(at("report (") < at("backup "), "{screen}");
    // The filter is applied while it is typed.
    tmux.press(&["/", "c", "a", "t"]);
    tmux.see("leasehold top  1 of 5 locks");
    tmux.press(&["Enter"]);
    tmux.see("filter: cat (Esc clears)");
    tmux.press(&["Escape"]);
    tmux.see("leasehold top  5 locks");
    tmux.press(&["/", "b", "*", "p", "Enter"]);
    tmux.see("leasehold top  1 of 5 locks");
    // All that `show` prints.
    tmux.press(&["Enter"]);
    let details = tmux.see("waiters  1");
    for row in place.ok(&["show", "backup"]).lines() {
        let key = words(row)[0];
        assert!(details.contains(&format!(" {key} ")), "{key}: {details}");
    }
    assert!(details.contains(&place.owner_id("backup")), "{details}");
    tmux.press(&["q"]);
    tmux.see("leasehold top  1 of 5 locks");
    tmux.press(&["?"]);
    tmux.see("q Ctrl-C");
    tmux.press(&["x"]);
    tmux.see_that("no help", |screen| !screen.contains("q Ctrl-C"));
    tmux.press(&["p"]);
    tmux.see("paused, data ");
    tmux.press(&["p", "+"]);
    tmux.see("every 5s, data ");
    tmux.press(&["q"]);
    tmux.see("code 0");
    assert_eq!(tmux.state("#{alternate_on} #{cursor_flag}"), "0 1");
    assert_eq!(tmux.settings(&place, "after"), before);
}

/// Three servers, of which one is killed and another is stopped.
#[test]
fn three_servers() {
    let mut servers = RedisServer::start_many(3);
    let place = Place::redis(&servers);
    place.ok(&["init"]);
    // A name that all nodes have: on a slow machine, an acquire may return with two.
    let name = eventually("three votes", || {
        let name = format!("deploy-{}", servers[0].calls("evalsha"));
        place.ok(&["run", &name, "--at-least-for", "1h", "--", "true"]);
        let shown: serde_json::Value =
            serde_json::from_str(&place.ok(&["show", &name, "-o", "json"])).expect("JSON");
        (shown["votes"] == 3).then_some(name)
    });
    let tmux = Tmux::start(&place);
    tmux.type_line(&format!("$L top {name} -i 250ms; echo code $?"));
    let address = |server: &RedisServer| server.url().replace("redis://", "");
    let is = |server: &RedisServer, state: &str, screen: &str| {
        let node = screen
            .lines()
            .find(|line| line.starts_with(&address(server)));
        node.is_some_and(|node| words(node).get(1) == Some(&state))
    };
    let votes = |screen: &str| {
        let lock = screen
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        lock.and_then(|lock| words(lock).last().map(|&votes| votes.to_owned()))
    };
    tmux.see_that("all vote", |screen| {
        servers.iter().all(|server| is(server, "votes", screen))
            && votes(screen).as_deref() == Some("3/3")
    });
    servers[2].kill();
    let screen = tmux.see_that("one is down", |screen| {
        is(&servers[2], "down", screen) && votes(screen).as_deref() == Some("2/3")
    });
    assert!(
        line(&screen, &address(&servers[2])).contains("refused"),
        "{screen}"
    );
    // With a majority away, the old data stay, and the screen answers.
    servers[1].stop();
    let screen = tmux.see("no majority: 2 of 3 nodes must answer");
    assert!(screen.contains(&format!("\n{name} ")), "{screen}");
    tmux.see_that("the age", |screen| {
        let title = line(screen, "leasehold top");
        let age = title
            .split("data ")
            .nth(1)
            .and_then(|age| age.split('s').next());
        age.and_then(|age| age.parse::<u32>().ok())
            .is_some_and(|age| age >= 3)
    });
    tmux.press(&["Enter"]);
    tmux.see_that("old details", |screen| {
        screen.contains(" details, data ") && screen.contains("no majority: 2 of 3 nodes must")
    });
    tmux.press(&["q", "?"]);
    tmux.see("q Ctrl-C");
    tmux.press(&["x"]);
    servers[1].resume();
    tmux.see_that("a majority", |screen| {
        !screen.contains("no majority") && votes(screen).as_deref() == Some("2/3")
    });
    tmux.press(&["C-c"]);
    tmux.see("code 0");
}

/// A lock is broken after confirmation, and not without it.
#[test]
fn break_by_key() {
    let server = [RedisServer::start()];
    let place = Place::redis(&server);
    let holder = place.holding("deploy", &["--ttl", "6s", "--label", "ci"], UNTIL_GO);
    let owner = place.owner_id("deploy");
    let tmux = Tmux::start(&place);
    tmux.type_line("$L top; echo code $?");
    tmux.see("\ndeploy ");
    tmux.press(&["b"]);
    let question = tmux.see("Type y and press Enter");
    let pid = format!("pid {} (ci)", holder.pid());
    assert!(
        question.contains(&pid) && question.contains(&owner),
        "{question}"
    );
    tmux.press(&["n", "Enter"]);
    tmux.see("Not confirmed; nothing was changed.");
    assert_eq!(place.owner_id("deploy"), owner);
    tmux.press(&["x"]);
    tmux.see_that("no notice", |screen| !screen.contains("Not confirmed"));
    // Neither on a screen that shows nothing, nor after it has become large enough again.
    tmux.press(&["b"]);
    tmux.see("Type y and press Enter");
    tmux.run(&["resize-window", "-x", "39", "-y", "7"]);
    tmux.see("39 x 7 is too small");
    tmux.press(&["b", "y", "Enter"]);
    tmux.run(&["resize-window", "-x", "40", "-y", "8"]);
    tmux.see("\ndeploy ");
    assert_eq!(place.owner_id("deploy"), owner);
    tmux.press(&["b", "y"]);
    tmux.see_that("the question and the answer", |screen| {
        screen.contains("Type y and press ") && screen.contains("Enter (Esc: no): y ")
    });
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.press(&["Enter"]);
    tmux.see("broke the lock `deploy` of ");
    assert_eq!(holder.end().code, 79);
    tmux.press(&["x"]);
    tmux.see("no locks are held");
    tmux.press(&["q"]);
    tmux.see("code 0");
}

/// A refresh changes nothing on a server.
#[test]
fn nothing_is_written() {
    let server = [RedisServer::start()];
    let place = Place::redis(&server);
    place.ok(&["acquire", "deploy", "--ttl", "1h"]);
    let writes = || server[0].info("persistence", "rdb_changes_since_last_save");
    let before = writes();
    let scans = server[0].calls("scan");
    let tmux = Tmux::start(&place);
    tmux.type_line("$L top -i 100ms; echo code $?");
    tmux.see("\ndeploy ");
    until("refreshes", || server[0].calls("scan") >= scans + 20);
    assert_eq!(writes(), before);
    tmux.press(&["q"]);
    tmux.see("code 0");
}

/// The size of the terminal changes, down to one that is too small.
#[test]
fn resize() {
    let place = Place::local();
    for number in 0..40 {
        let name = format!("job-{number:02}");
        place.ok(&["run", &name, "--at-least-for", "1h", "--", "true"]);
    }
    let tmux = Tmux::start(&place);
    tmux.type_line("$L top -i 250ms; echo code $?");
    tmux.see("leasehold top  40 locks");
    tmux.press(&["s", "End"]);
    let screen = tmux.see("job-39 (kept)");
    assert!(
        !screen.contains("job-10 ") && !screen.contains("TOKEN"),
        "{screen}"
    );
    tmux.run(&["resize-window", "-x", "130", "-y", "50"]);
    tmux.see_that("a larger screen", |screen| {
        screen.contains("TOKEN") && screen.contains("job-00 ") && screen.contains("job-39 ")
    });
    tmux.run(&["resize-window", "-x", "30", "-y", "10"]);
    tmux.see("too small");
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.see_that("the selected line", |screen| {
        screen.contains("job-39 ") && !screen.contains("job-10 ")
    });
    tmux.press(&["q"]);
    tmux.see("code 0");
}

/// The terminal is as it was after Ctrl-Z, after a signal, and after a panic; `fg` draws again.
#[test]
fn the_terminal_is_restored() {
    let place = Place::local();
    place.ok(&["run", "deploy", "--at-least-for", "1h", "--", "true"]);
    let tmux = Tmux::start(&place);
    let before = tmux.settings(&place, "before");
    let is_restored = |file: &str| {
        until("the shell's screen", || {
            tmux.state("#{alternate_on}") == "0"
        });
        assert_eq!(tmux.settings(&place, file), before, "{file}");
        assert_eq!(tmux.state("#{cursor_flag}"), "1", "{file}");
    };
    tmux.type_line("clear; $L top; echo code $?");
    tmux.see("deploy (kept)");
    tmux.press(&["C-z"]);
    tmux.see("Stopped");
    is_restored("stopped");
    tmux.type_line("jobs -p > pid.new; mv pid.new pid");
    let pid = crate::parse_pid(&place.await_file("pid"));
    tmux.type_line("fg");
    tmux.see("deploy (kept)");
    until("the screen", || tmux.state("#{alternate_on}") == "1");
    // From outside, as another program would stop it.
    process::signal(pid, "TSTP");
    tmux.see("Stopped");
    is_restored("stopped-again");
    tmux.type_line("clear; fg; echo code $?");
    tmux.see("deploy (kept)");
    process::signal(pid, "TERM");
    tmux.see("code 143");
    is_restored("terminated");
    // A panic, in the program that contains the unit tests.
    if let Some(tests) = unit_tests() {
        let name = "top::screen::tests::panics_on_a_terminal";
        let tests = tests.display();
        tmux.type_line(&format!(
            "clear; {tests} --ignored --exact --nocapture {name}"
        ));
        tmux.see("this panic is intended");
        tmux.see("test result: FAILED");
        is_restored("panicked");
    }
}

/// The newest program with the unit tests of the tool, if they have been built.
fn unit_tests() -> Option<std::path::PathBuf> {
    let own = std::env::current_exe().ok()?;
    let files = std::fs::read_dir(own.parent()?).ok()?.flatten();
    let programs = files.filter(|file| {
        let name = file.file_name().to_string_lossy().into_owned();
        let hash = name.strip_prefix("leasehold-").unwrap_or_default();
        !hash.is_empty() && hash.chars().all(|c| c.is_ascii_hexdigit())
    });
    let has_test = |path: &std::path::PathBuf| {
        let output = Command::new(path).args(["--list", "--ignored"]).output();
        let list = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&list).contains("panics_on_a_terminal: test")
    };
    let mut programs: Vec<_> = programs.collect();
    programs.sort_by_key(|file| file.metadata().and_then(|data| data.modified()).ok());
    let mut paths = programs.into_iter().rev().map(|file| file.path());
    paths.find(has_test)
}

#[test]
fn no_color() {
    let place = Place::local();
    place.ok(&["run", "deploy", "--at-least-for", "1h", "--", "true"]);
    for (extra, has_colours) in [(&[][..], true), (&[("NO_COLOR", "1")][..], false)] {
        let tmux = Tmux::start_with(&place, extra);
        tmux.type_line("$L top");
        tmux.see(" votes ");
        let screen = tmux.run(&["capture-pane", "-p", "-e"]);
        assert_eq!(
            screen.contains(";2mvotes") || screen.contains("[32mvotes"),
            has_colours,
            "{screen:?}"
        );
        let has_any = |start: &str| {
            screen
                .split(start)
                .skip(1)
                .any(|rest| !rest.starts_with("9m"))
        };
        assert_eq!(has_any("\x1b[3"), has_colours, "{screen:?}");
    }
}

/// The file is locked by a process that does not go on: the screen says so, and ends at once.
#[test]
fn a_store_that_hangs() {
    let place = Place::local();
    place.ok(&["run", "deploy", "--at-least-for", "1h", "--", "true"]);
    let tmux = Tmux::start(&place);
    tmux.type_line("$L top -i 250ms; echo code $?");
    tmux.see("deploy (kept)");
    let store = rusqlite::Connection::open(place.file("state/leasehold/locks.db"));
    let store = store.expect("the store");
    store.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    tmux.press(&["?"]);
    tmux.see("q Ctrl-C");
    tmux.press(&["x", "q"]);
    tmux.see("code 0");
    store.execute_batch("ROLLBACK").expect("unlocked");
}

/// When the terminal goes away, so does the process.
#[test]
fn the_terminal_goes_away() {
    let place = Place::local();
    let tmux = Tmux::start(&place);
    tmux.type_line("echo $$ > pid.new; mv pid.new pid; exec $L top");
    let pid = place.await_file("pid");
    tmux.see("no locks are held");
    drop(tmux);
    until("it has ended", || !crate::is_alive(&pid));
}
