use expect_test::expect;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;
use crate::top::app::Update;
use crate::top::app::tests::{Lock, app};

const LOCKS: [Lock<'_>; 5] = [
    ("deploy", "web-1", "ci", 60, 9, "111"),
    (
        "backup",
        "db-1.internal.example.com",
        "nightly",
        86_400 * 3,
        5,
        "222",
    ),
    ("import", "web-2", "", 5, 300, "33."),
    ("split", "web-2", "", 4, 300, "45."),
    ("注文\n\u{202e}", "web-3", "", 2, 300, "666"),
];

fn buffer(app: &mut App, width: u16, height: u16) -> Buffer {
    // At the moment of the refresh.
    let now = app.read_at.unwrap_or_else(Instant::now);
    buffer_at(app, width, height, now)
}

fn buffer_at(app: &mut App, width: u16, height: u16, now: Instant) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let theme = Theme { has_colours: true };
    terminal
        .draw(|frame| draw(frame, app, &theme, now))
        .expect("drawn");
    terminal.backend().buffer().clone()
}

/// The lines of the screen, without spaces at their ends and without empty lines.
fn screen(app: &mut App, width: u16, height: u16) -> String {
    text_of(&buffer(app, width, height))
}

fn text_of(buffer: &Buffer) -> String {
    let (width, height) = (buffer.area.width, buffer.area.height);
    let mut text = String::new();
    for y in 0..height {
        let mut line = String::new();
        let mut x = 0;
        while x < width {
            let symbol = buffer[(x, y)].symbol();
            line += symbol;
            x += u16::try_from(symbol.width().max(1)).expect("a width");
        }
        if !line.trim_end().is_empty() {
            text += line.trim_end();
            text.push('\n');
        }
    }
    text
}

#[test]
fn eighty_columns() {
    expect![[r#"
        leasehold top  5 locks, 0 waiters                          every 2s, data 0s old
        connecting to the nodes...
        NAME                 HOLDER                    HELD↓   LEFT    RENEWS WAIT VOTES
        backup               db-1.in… pid 17 (nightly) 3days   5s      -      -    3/3
        deploy               web-1 pid 17 (ci)         1m      9s      -      -    3/3
        import               web-2 pid 17              5s      5m      -      -    2/3
        split (split)        web-2 pid 17              4s      5m      -      -    1/3
        注文\n\u{202e}       web-3 pid 17              2s      5m      -      -    3/3
        ?:help q:quit s:sort (age) /:filter Enter:details b:break p:pause
    "#]]
    .assert_eq(&screen(&mut app(&LOCKS), 80, 24));
}

#[test]
fn wide() {
    expect![[r#"
        leasehold top  5 locks, 0 waiters                                                                            every 2s, data 0s old
        connecting to the nodes...
        NAME                           HOLDER                                     HELD↓   LEFT    RENEWS WAIT VOTES NODES TOKEN
        backup                         db-1.internal.example.com pid 17 (nightly) 3days   5s      -      -    3/3   +++   1700000000259200
        deploy                         web-1 pid 17 (ci)                          1m      9s      -      -    3/3   +++   1700000000000060
        import                         web-2 pid 17                               5s      5m      -      -    2/3   ++-   1700000000000005
        split (split)                  web-2 pid 17                               4s      5m      -      -    1/3   +x-   1700000000000004
        注文\n\u{202e}                 web-3 pid 17                               2s      5m      -      -    3/3   +++   1700000000000002
        ?:help q:quit s:sort (age) /:filter Enter:details b:break p:pause
    "#]].assert_eq(&screen(&mut app(&LOCKS), 130, 24));
}

#[test]
fn narrow() {
    expect![[r#"
        5 locks            every 2s, data 0s old
        connecting to the nodes...
        NAME           HOLDER            HELD↓
        backup         db-1.in… pid 17 … 3days
        deploy         web-1 pid 17 (ci) 1m
        import         web-2 pid 17      5s
        split (split)  web-2 pid 17      4s
        ?:help q:quit s:sort (age) /:filter Ent…
    "#]]
    .assert_eq(&screen(&mut app(&LOCKS), 40, 8));
    expect![[r#"
        39 x 8 is too small: leasehold top
        needs 40 x 8. q quits.
    "#]]
    .assert_eq(&screen(&mut app(&LOCKS), 39, 8));
    // Any size can be drawn.
    for (width, height) in [(1, 1), (2, 30), (200, 1), (39, 7), (41, 9), (500, 3)] {
        for keys in ["", "d", "b", "?", "/x"] {
            let mut app = app(&LOCKS);
            app.press(keys);
            app.notice = keys.is_empty().then(|| vec!["x".repeat(600)]);
            screen(&mut app, width, height);
        }
    }
}

#[test]
fn dialogs() {
    let mut app = app(&LOCKS);
    app.press("jb");
    let text = screen(&mut app, 80, 24);
    for part in [
        "┌ break deploy ─",
        "`deploy` is held by web-1 pid 17 (ci) for 1m",
        "only tokens protect its data until it stops.",
        "Break the lock? Type y and press Enter (Esc: no): ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    app.press("\x1b?");
    expect![[r#"
        leasehold top  5 locks, 0 waiters                          every 2s, data 0s old
        connecting to the nodes...
        NAME                 HOLDER                    HELD↓   LEFT    RENEWS WAIT VOTES
        backup               db-1.in… pid 17 (nightly) 3days   5s      -      -    3/3
        ┌ keys ───────────────────────────────────────────────────────────────────────┐
        │ Up Down k j  select a lock; also PgUp, PgDn, Home (g), End (G)              │
        │ Enter d      details of the selected lock, as `leasehold show`              │
        │ b            break the selected lock, after confirmation                    │
        │ /            filter: a part of the name or holder, or a pattern with * or ? │
        │ Esc          clear the filter; close what is open                           │
        │ s            sort by age, name, waiters, or time left                       │
        │ S            reverse the order                                              │
        │ p Space      pause, or go on                                                │
        │ r            refresh now                                                    │
        │ + -          a longer or shorter interval                                   │
        │ Ctrl-L       draw the screen again                                          │
        │ Ctrl-Z       stop; `fg` continues                                           │
        │ q Ctrl-C     quit                                                           │
        └─────────────────────────────────────────────────────────────────────────────┘
        ?:help q:quit s:sort (age) /:filter Enter:details b:break p:pause
    "#]]
    .assert_eq(&screen(&mut app, 80, 24));
    app.press("\x1b/no such lock");
    expect![[r#"
        leasehold top  0 of 5 locks, 0 waiters                     every 2s, data 0s old
        connecting to the nodes...
        NAME                 HOLDER                    HELD↓   LEFT    RENEWS WAIT VOTES
        no held lock matches `no such lock`
        /no such lock
    "#]]
    .assert_eq(&screen(&mut app, 80, 24));
}

/// The question and what the user types are visible on every screen that shows anything.
#[test]
fn the_question_is_always_visible() {
    for (width, height) in [(40, 8), (40, 10), (80, 8), (60, 9), (80, 24)] {
        let mut app = app(&LOCKS);
        app.press("jb");
        for _ in 0..40 {
            app.press("-");
        }
        app.press("yes");
        app.update(Update::Locks(Err("no majority: ".repeat(20))));
        let text = screen(&mut app, width, height);
        let words: Vec<_> = text
            .split(['\n', ' ', '│'])
            .filter(|w| !w.is_empty())
            .collect();
        let words = words.join(" ");
        let question = "Break the lock? Type y and press Enter (Esc: no): ---------yes";
        assert!(words.contains(question), "{text}");
        assert!(text.contains("┌ break deploy ─"), "{text}");
    }
    let mut app = app(&LOCKS);
    app.press("jby");
    app.update(Update::Locks(Err("no majority".to_owned())));
    let text = screen(&mut app, 40, 8);
    let owner = &app.selected().expect("a lock").owner;
    expect![[r#"
        5┌ break deploy ─────────────────────┐ld
        c│ no majority                       │
        N│ `deploy` is held by web-1 pid 17  │
        b│ (ci) for 1m; expires in 9s unless │
        d│ renewed (owner 0123456789ab). …   │
        i│ Break the lock? Type y and press  │
        n│ Enter (Esc: no): y                │
        ?└────────────────────── data 0s old ┘t…
    "#]]
    .assert_eq(&text.replace(owner.as_str(), "0123456789ab"));
    let mut app = self::app(&LOCKS);
    app.press("jby");
    let text = screen(&mut app, 40, 10);
    let owner = &app.selected().expect("a lock").owner;
    expect![[r#"
        ┌ break deploy ────────────────────────┐
        │ `deploy` is held by web-1 pid 17     │
        │ (ci) for 1m; expires in 9s unless    │
        │ renewed (owner 0123456789ab).        │
        │ If the holder is still running, only │
        │ tokens protect its data until it     │
        │ stops.                               │
        │ Break the lock? Type y and press     │
        │ Enter (Esc: no): y                   │
        └───────────────────────── data 0s old ┘
    "#]]
    .assert_eq(&text.replace(owner.as_str(), "0123456789ab"));
}

/// The help can be scrolled to its end on a small screen.
#[test]
fn help_is_wrapped_and_scrolls() {
    let mut app = app(&LOCKS);
    app.press("?");
    expect![[r#"
        ┌ keys ────────────────────────────────┐
        │ Up Down k j  select a lock; also     │
        │              PgUp, PgDn, Home (g),   │
        │              End (G)                 │
        │ Enter d      details of the selected │
        │              lock, as `leasehold     │
        │              show`                   │
        │ b            break the selected      │
        │              lock, after             │
        └────────────────────── Up Down:scroll ┘
    "#]]
    .assert_eq(&screen(&mut app, 40, 10));
    app.press("G");
    assert!(screen(&mut app, 40, 10).contains("│ q Ctrl-C     quit"));
    app.press("k");
    assert!(!screen(&mut app, 40, 10).contains("q Ctrl-C"));
    app.press("q");
    assert!(matches!(app.mode, Mode::List));
}

/// Details and dialogs say how old they are, and why. The time left goes on.
#[test]
fn old_details() {
    let mut app = app(&LOCKS);
    app.update(Update::Locks(Err(
        "no majority: 2 of 3 nodes must answer".into()
    )));
    let at = app.read_at.expect("data");
    let after = |app: &mut App, seconds: u64| {
        let now = at + Duration::from_secs(seconds);
        text_of(&buffer_at(app, 80, 24, now))
    };
    // 9 s are left of it.
    app.press("jd");
    let details = after(&mut app, 6);
    for part in [
        "┌ details, data 6s old ─",
        "│ no majority: 2 of 3 nodes must answer ",
        "left     3s ",
        ", 3s left",
    ] {
        assert!(details.contains(part), "{part}: {details}");
    }
    let details = after(&mut app, 60);
    assert!(details.contains("left     expired "), "{details}");
    assert!(details.contains(", expired"), "{details}");
    app.press("b");
    let dialog = after(&mut app, 6);
    for part in [
        " data 6s old ┘",
        "│ no majority: 2 of 3 nodes must answer ",
        "; expires in 3s unless renewed",
    ] {
        assert!(dialog.contains(part), "{part}: {dialog}");
    }
    let dialog = after(&mut app, 60);
    assert!(dialog.contains("; expired unless renewed"), "{dialog}");
}

/// What it means to delete a stored result, or to free a name that is kept.
#[test]
fn what_is_broken_is_named() {
    use leasehold::{Client, MemoryNode};
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let listing = runtime.block_on(async {
        let client = Client::builder().custom_node(MemoryNode::new("a:1"));
        let client = client.build().expect("a client");
        let hour = Duration::from_secs(3600);
        let work = async |_: &leasehold::Lease| Ok::<_, std::io::Error>(b"done".to_vec());
        client
            .once("rates", hour)
            .run(work)
            .await
            .expect("a result");
        let kept = client
            .mutex("report")
            .with_options(|options| options.min_hold(hour));
        kept.lock().await.expect("a lease").release().await;
        client.inspect_all().await.expect("a listing")
    });
    let mut app = app(&[]);
    let now = std::time::SystemTime::now();
    let row = |lock| crate::top::row::Row::new(crate::subject::Subject::of(&lock, ""), lock, now);
    app.update(Update::Locks(Ok(crate::top::app::Locks {
        rows: listing.locks.into_iter().filter_map(row).collect(),
        missing: Vec::new(),
        at: Instant::now(),
        took: Duration::ZERO,
    })));
    for (name, says) in [
        (
            "rates",
            &[
                "Delete the stored result? Type y",
                "The stored result is deleted, and",
            ][..],
        ),
        (
            "report",
            &["Break the lock? Type y", "so breaking it stops nobody"],
        ),
    ] {
        app.press(&format!("/{name}\nb"));
        let text = screen(&mut app, 100, 24);
        assert!(
            !text.contains("still running") && !text.contains("unless renewed"),
            "{text}"
        );
        for part in says {
            assert!(text.contains(part), "{part}: {text}");
        }
        app.press("\x1b\x1b");
    }
}

/// What is wrong is on the screen, beside the old data and their age.
#[test]
fn old_data() {
    let mut app = app(&LOCKS[..1]);
    app.update(Update::Locks(Err(
        "no majority: 2 of 3 nodes must answer".into()
    )));
    app.read_at = app
        .read_at
        .and_then(|at| at.checked_sub(Duration::from_secs(75)));
    let mut terminal = Terminal::new(TestBackend::new(80, 10)).expect("a terminal");
    let theme = Theme { has_colours: false };
    let now = app.read_at.expect("data") + Duration::from_secs(75);
    terminal
        .draw(|frame| draw(frame, &mut app, &theme, now))
        .expect("drawn");
    let text = terminal.backend().to_string();
    assert!(text.contains("every 2s, data 1m 15s old"), "{text}");
    assert!(text.contains("no majority: 2 of 3 nodes"), "{text}");
    assert!(text.contains("deploy"), "{text}");
    // Without colours.
    let buffer = terminal.backend().buffer();
    assert!(
        buffer
            .content
            .iter()
            .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
    );
}

/// The cost of a frame does not grow with the number of locks: only the visible lines are made.
#[test]
fn many_locks() {
    let names: Vec<_> = (0..10_000)
        .map(|number| format!("lock-{number:05}"))
        .collect();
    let locks: Vec<Lock<'_>> = names
        .iter()
        .map(|name| (&**name, "h", "", 1, 9, "111"))
        .collect();
    let mut app = app(&locks);
    app.press("sG");
    let text = screen(&mut app, 80, 24);
    assert!(
        text.contains("leasehold top  10000 locks, 0 waiters"),
        "{text}"
    );
    assert!(
        text.contains("lock-09999") && !text.contains("lock-09900"),
        "{text}"
    );
}

#[test]
fn the_end_of_a_long_filter_is_shown() {
    for (width, end) in [
        (0, ""),
        (1, "c"),
        (2, "c"),
        (3, "\u{6f22}c"),
        (4, "b\u{6f22}c"),
        (9, "/ab\u{6f22}c"),
    ] {
        assert_eq!(last("/ab\u{6f22}c", width), end, "{width}");
    }
}
