use leasehold::{Client, MemoryNode};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::report::unix_ms;
use crate::subject::Subject;

/// A lock on some of three nodes: name, host, label, age and time left in seconds, and a digit for the
/// owner on each node (`.`: free).
pub(in crate::top) type Lock<'a> = (&'a str, &'a str, &'a str, u64, u64, &'a str);

/// What three nodes in memory report.
pub(in crate::top) fn rows(locks: &[Lock<'_>]) -> Vec<Row> {
    let nodes = ["a:1", "b:2", "c:3"].map(MemoryNode::new);
    let now = std::time::SystemTime::now();
    for (name, host, label, age, _, owners) in locks {
        let name = Name::new(name).expect("a name");
        let token = unix_ms(now) * 1000 - age * 1_000_000 - 500_000;
        for (node, owner) in nodes.iter().zip(owners.chars()) {
            if owner != '.' {
                let secret = owner.to_string().repeat(40);
                let value = format!("{secret}:{token}:17@{host}:{label}");
                // Long enough for any machine.
                node.set(&name, value.as_bytes(), Some(Duration::from_secs(3600)));
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let listing = runtime.block_on(async {
        let client = nodes
            .into_iter()
            .fold(Client::builder(), |builder, node| builder.custom_node(node));
        let client = client.without_restart_guard().build().expect("a client");
        client.inspect_all().await.expect("a listing")
    });
    let mut rows: Vec<_> = listing
        .locks
        .into_iter()
        .filter_map(|lock| Row::new(Subject::of(&lock, ""), lock, now))
        .collect();
    // The exact times, which do not depend on the speed of the machine.
    for row in &mut rows {
        let mut locks = locks.iter();
        let lock = locks.find(|lock| lock.0.as_bytes() == row.subject.name.as_bytes());
        let (_, _, _, age, left, _) = lock.expect("it was set");
        row.age = Some(Duration::from_secs(*age));
        row.left = Some(Duration::from_secs(*left));
        for seen in row
            .inspection
            .nodes
            .iter_mut()
            .filter_map(|(_, seen)| seen.as_mut().ok())
        {
            seen.iter_mut().for_each(|seen| seen.remaining = row.left);
        }
        row.token = Some(1_700_000_000_000_000 + age);
    }
    rows
}

/// A screen with these locks.
pub(in crate::top) fn app(locks: &[Lock<'_>]) -> App {
    let mut app = App::new(Duration::from_secs(2), Filter::default());
    app.page = 10;
    app.update(Update::Locks(Ok(seen(locks))));
    app
}

fn seen(locks: &[Lock<'_>]) -> Locks {
    Locks {
        rows: rows(locks),
        missing: Vec::new(),
        at: Instant::now(),
        took: Duration::ZERO,
    }
}

const THREE: [Lock<'_>; 3] = [
    ("deploy", "web-1", "ci", 60, 9, "111"),
    ("backup", "db-1", "", 3600, 5, "222"),
    ("report", "web-2", "", 5, 300, "33."),
];

impl App {
    pub(in crate::top) fn press(&mut self, keys: &str) -> Effect {
        let mut effect = Effect::Nothing;
        for c in keys.chars() {
            effect = self.code(match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                c => KeyCode::Char(c),
            });
        }
        effect
    }

    fn code(&mut self, code: KeyCode) -> Effect {
        self.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn control(&mut self, c: char) -> Effect {
        self.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL))
    }

    fn names(&self) -> Vec<String> {
        let shown = self.shown.iter();
        shown.map(|&index| self.rows[index].name().0).collect()
    }

    fn name(&self) -> String {
        self.selected().map_or(String::new(), |row| row.name().0)
    }
}

#[test]
fn s_cycles_through_the_orders() {
    let mut app = app(&THREE);
    assert_eq!(app.names(), ["backup", "deploy", "report"]);
    app.press("S");
    assert_eq!(app.names(), ["report", "deploy", "backup"]);
    app.press("s");
    assert_eq!((app.order, app.is_reversed), (Order::Name, false));
    app.press("s");
    assert_eq!(app.order, Order::Waiters);
    for (row, waiters) in app.rows.iter_mut().zip([Some(1), None, Some(4)]) {
        row.waiters = waiters;
    }
    // The rows are in the order of their names: backup, deploy, report.
    app.press("SS");
    assert_eq!(app.names(), ["report", "backup", "deploy"]);
    app.press("s");
    assert_eq!(app.order, Order::Left);
    assert_eq!(app.names(), ["backup", "deploy", "report"]);
    app.rows[0].left = None;
    app.press("SS");
    assert_eq!(app.names(), ["deploy", "report", "backup"]);
    app.press("s");
    assert_eq!(app.order, Order::Age);
    app.rows[0].age = None;
    app.press("SS");
    assert_eq!(app.names(), ["deploy", "report", "backup"]);
}

/// A refresh moves lines, and the selected lock stays selected.
#[test]
fn the_selected_lock_stays_selected() {
    let mut app = app(&THREE);
    app.press("j");
    assert_eq!(app.name(), "deploy");
    let mut more = THREE.to_vec();
    more.push(("archive", "db-1", "", 9000, 5, "444"));
    app.update(Update::Locks(Ok(seen(&more))));
    assert_eq!((app.name(), app.cursor), ("deploy".to_owned(), 2));
    app.press("s");
    assert_eq!((app.name(), app.cursor), ("deploy".to_owned(), 2));
    // Without it, the line stays.
    more.remove(0);
    app.update(Update::Locks(Ok(seen(&more))));
    assert_eq!((app.name(), app.cursor), ("report".to_owned(), 2));
    app.update(Update::Locks(Ok(seen(&[]))));
    assert_eq!((app.name(), app.cursor), (String::new(), 0));
    assert_eq!(app.press("b\nj"), Effect::Nothing);
}

#[test]
fn the_table_scrolls() {
    let names: Vec<_> = (0..50).map(|number| format!("lock-{number:02}")).collect();
    let locks: Vec<Lock<'_>> = names
        .iter()
        .map(|name| (&**name, "h", "", 1, 9, "111"))
        .collect();
    let mut app = app(&locks);
    app.press("s");
    app.press("g");
    app.scroll(10);
    app.code(KeyCode::PageDown);
    assert_eq!((app.cursor, app.top), (10, 1));
    app.press("G");
    assert_eq!((app.cursor, app.top), (49, 40));
    app.press("k");
    assert_eq!((app.cursor, app.top), (48, 40));
    // A larger screen shows no empty lines, and a smaller one shows the selected line.
    app.scroll(20);
    assert_eq!(app.top, 30);
    app.scroll(5);
    assert_eq!(app.top, 44);
    app.press("g");
    assert_eq!((app.cursor, app.top), (0, 0));
    app.control('f');
    assert_eq!(app.cursor, 5);
    app.control('b');
    assert_eq!(app.cursor, 0);
}

#[test]
fn the_filter_is_a_part_or_a_pattern() {
    let mut app = app(&THREE);
    for (text, expected) in [
        ("ep", &["deploy", "report"][..]),
        // Part of the holder.
        ("web-2", &["report"]),
        ("(ci)", &["deploy"]),
        // A pattern is about the whole name.
        ("*ep*", &["deploy", "report"]),
        ("ep*", &[]),
        ("rep?rt", &["report"]),
        ("web*", &[]),
    ] {
        app.press(&format!("/{text}\n"));
        assert_eq!(app.names(), expected, "{text}");
        // A command again, and no part of the filter.
        assert_eq!(app.press("q"), Effect::Quit);
        app.press("\x1b");
        assert_eq!(app.names().len(), 3, "Esc clears");
    }
    app.press("/dep");
    app.code(KeyCode::Backspace);
    app.paste("p\nq");
    assert_eq!(app.filter.text(), "depq");
    app.control('u');
    assert_eq!(app.filter.text(), "");
    app.press("x\x1b");
    assert_eq!((app.filter.text(), app.names().len()), ("", 3));
}

#[test]
fn a_large_text_that_is_pasted_is_cut_off() {
    let mut app = app(&THREE);
    app.press("/");
    for _ in 0..3 {
        app.paste(&"\u{e9}".repeat(100_000));
        assert_eq!(app.filter.text().chars().count(), 1024);
    }
}

#[test]
fn pasted_text_is_no_command() {
    let mut app = app(&THREE);
    app.paste("by\nq");
    assert!(matches!(app.mode, Mode::List));
    app.press("b");
    app.paste("y\n");
    let Mode::Confirm(confirm) = &app.mode else {
        panic!("{:?}", app.mode);
    };
    assert_eq!(confirm.input, "");
}

#[test]
fn a_lock_is_broken_only_after_confirmation() {
    let mut app = app(&THREE);
    let owner = app.rows[0].owner.clone();
    assert_eq!(app.press("b"), Effect::Nothing);
    // Another process acquires it in the meantime: the user has confirmed the holder that was shown.
    let mut later = THREE;
    later[1].5 = "999";
    app.update(Update::Locks(Ok(seen(&later))));
    let target = Target {
        name: Name::new("backup").unwrap(),
        permit: None,
        owner,
    };
    assert_eq!(app.press("y\n"), Effect::Break(target.clone()));
    assert!(app.is_busy);
    app.update(Update::Broken(Ok(vec!["broke it".to_owned()])));
    assert!(!app.is_busy);
    assert_eq!(app.notice, Some(vec!["broke it".to_owned()]));
    // The key closes the notice, and does nothing else.
    assert_eq!(app.press("q"), Effect::Nothing);
    assert_eq!(app.notice, None);
    for (keys, is_confirmed) in [
        ("b\n", false),
        ("bn\n", false),
        ("byy\n", false),
        ("bbackup\n", true),
        ("bdeploy\n", false),
        ("byes\n", true),
        ("by\x1b", false),
        ("by\x1b\n", false),
    ] {
        app.mode = Mode::List;
        app.notice = None;
        app.cursor = 0;
        let effect = app.press(keys);
        assert_eq!(matches!(effect, Effect::Break(_)), is_confirmed, "{keys:?}");
    }
}

/// The dialog shows its holder as it was seen last.
#[test]
fn a_dialog_follows_its_holder() {
    let mut app = app(&THREE);
    app.press("jb");
    let at = |app: &App| match &app.mode {
        Mode::Confirm(confirm) => confirm.at,
        mode => panic!("{mode:?}"),
    };
    app.update(Update::Locks(Ok(Locks {
        rows: app.rows.clone(),
        ..seen(&[])
    })));
    assert_eq!(Some(at(&app)), app.read_at);
    let mut later = THREE;
    later[0].5 = "999";
    app.update(Update::Locks(Ok(seen(&later))));
    assert!(Some(at(&app)) < app.read_at);
}

/// On a screen that shows nothing, nobody can see what a key does.
#[test]
fn only_quitting_works_on_a_screen_that_is_too_small() {
    for (width, height) in [(39, 8), (40, 7)] {
        for keys in ["", "b", "d", "?", "/"] {
            let mut app = app(&THREE);
            app.press(keys);
            app.resize(width, height);
            assert!(!matches!(app.mode, Mode::Confirm(_)), "closed");
            assert_eq!(app.press("by\n"), Effect::Nothing);
            assert_eq!(app.press("\x1bprs+"), Effect::Nothing);
            app.paste("x");
            assert_eq!(app.filter.text(), "");
            assert_eq!(app.control('l'), Effect::Nothing);
            assert_eq!(app.control('z'), Effect::Suspend);
            assert_eq!(app.control('c'), Effect::Quit);
            assert_eq!(app.press("q"), Effect::Quit);
            assert_eq!((app.order, app.is_paused), (Order::Age, false));
            app.resize(40, 8);
            assert!(!matches!(app.mode, Mode::Confirm(_)), "still closed");
        }
    }
}

#[test]
fn one_of_several_readers_is_chosen() {
    let nodes = [MemoryNode::new("a:1")];
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let listing = runtime.block_on(async {
        let [node] = nodes;
        let client = Client::builder()
            .custom_node(node)
            .build()
            .expect("a client");
        let lock = client.rw_lock("catalog");
        let _readers = (lock.read().await, lock.read().await);
        client.inspect_all().await.expect("a listing")
    });
    let now = std::time::SystemTime::now();
    let row = |lock| Row::new(Subject::of(&lock, ""), lock, now);
    let mut app = App::new(Duration::from_secs(2), Filter::default());
    app.update(Update::Locks(Ok(Locks {
        rows: listing.locks.into_iter().filter_map(row).collect(),
        ..seen(&[])
    })));
    assert_eq!(
        app.selected().map(|row| row.name().1),
        Some(" (2 readers)".into())
    );
    let Effect::Break(first) = app.press("by\n") else {
        panic!("it is confirmed");
    };
    app.press("b");
    app.code(KeyCode::Tab);
    let Effect::Break(second) = app.press("y\n") else {
        panic!("it is confirmed");
    };
    assert_ne!(first.owner, second.owner);
    app.press("b");
    app.code(KeyCode::Up);
    app.code(KeyCode::Down);
    assert_eq!(app.press("y\n"), Effect::Break(first));
}

#[test]
fn details_follow_the_lock() {
    let mut app = app(&THREE);
    app.press("jd");
    let is_held = |app: &App| match &app.mode {
        Mode::Details(details) => {
            assert_eq!(details.row.name().0, "deploy");
            details.is_held
        }
        mode => panic!("{mode:?}"),
    };
    assert!(is_held(&app));
    app.update(Update::Locks(Ok(seen(&THREE[1..]))));
    assert!(!is_held(&app));
    app.update(Update::Locks(Ok(seen(&THREE))));
    assert!(is_held(&app));
    assert_eq!(app.press("q"), Effect::Nothing, "back to the list");
    assert_eq!(app.press("q"), Effect::Quit);
}

#[test]
fn the_pace_is_changed_in_steps() {
    let mut app = app(&THREE);
    assert_eq!(app.press("+"), Effect::Pace);
    assert_eq!(app.interval, Duration::from_secs(5));
    app.press("---");
    assert_eq!(app.interval, Duration::from_millis(500));
    app.press("----");
    assert_eq!(app.interval, crate::args::MIN_WATCH);
    assert_eq!(app.press("-"), Effect::Nothing);
    // From an interval between two steps.
    app.interval = Duration::from_secs(3);
    app.press("+");
    assert_eq!(app.interval, Duration::from_secs(5));
    assert_eq!(app.press("p"), Effect::Pace);
    assert!(app.is_paused);
    app.press(" ");
    assert!(!app.is_paused);
    assert_eq!(app.press("r"), Effect::Refresh);
}

#[test]
fn control_keys_work_everywhere() {
    let mut app = app(&THREE);
    for keys in ["", "/", "d", "b", "?"] {
        app.mode = Mode::List;
        app.press(keys);
        assert_eq!(app.control('c'), Effect::Quit, "{keys}");
        assert_eq!(app.control('z'), Effect::Suspend, "{keys}");
        assert_eq!(app.control('l'), Effect::Redraw, "{keys}");
    }
}

#[test]
fn a_failure_keeps_the_old_data() {
    let mut app = app(&THREE);
    app.update(Update::Locks(Err("no majority\nnext: \x1b[2J".to_owned())));
    assert_eq!(app.names().len(), 3);
    assert_eq!(app.problems(), ["no majority", "next: \\u{1b}[2J"]);
    app.update(Update::Locks(Ok(Locks {
        missing: vec![("c:3".to_owned(), "timed out".to_owned())],
        ..seen(&THREE)
    })));
    assert_eq!(app.problems(), ["c:3 did not list its locks (timed out)"]);
}

/// The nodes that are shown are old, whether or not the locks can be read.
#[test]
fn a_failure_to_read_the_nodes_stays_until_they_are_read() {
    let mut app = app(&THREE);
    app.update(Update::Nodes(Err("no nodes".to_owned())));
    app.update(Update::Locks(Ok(seen(&THREE))));
    assert_eq!(app.problems(), ["no nodes"]);
    app.update(Update::Locks(Err("no majority".to_owned())));
    assert_eq!(app.problems(), ["no majority", "no nodes"]);
    app.update(Update::Nodes(Ok(Vec::new())));
    assert_eq!(app.problems(), ["no majority"]);
}

#[test]
fn marks_say_which_node_has_the_lock() {
    let rows = rows(&[("a", "h", "", 1, 9, "112"), ("b", "h", "", 1, 9, ".11")]);
    let votes: Vec<_> = rows.iter().map(|row| (row.votes(), row.marks())).collect();
    let expected = [("2/3", "++x"), ("2/3", "-++")];
    assert_eq!(
        votes,
        expected.map(|(one, two)| (one.to_owned(), two.to_owned()))
    );
}
