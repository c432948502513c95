//! `-h` and `--help` of the program and of every command.

use expect_test::{ExpectFile, expect_file};

use crate::Place;

/// Compares the help of a command. The short form follows the long one where they differ.
fn check(command: &[&str], expected: ExpectFile) {
    let help = |flag: &str| {
        let place = Place::local();
        let args = [command, &[flag]].concat();
        // Help is wrapped at the width of the terminal, if there is one.
        let output = crate::output(place.command(&args).env("COLUMNS", "100"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("help is UTF-8")
    };
    let (long, short) = (help("--help"), help("-h"));
    let mut text = format!(
        "$ leasehold {}\n{long}",
        [command, &["--help"]].concat().join(" ")
    );
    if short != long {
        text += &format!(
            "\n$ leasehold {}\n{short}",
            [command, &["-h"]].concat().join(" ")
        );
    }
    expected.assert_eq(&text);
}

#[test]
fn program() {
    check(&[], expect_file!["help/leasehold.txt"]);
}

#[test]
fn run() {
    check(&["run"], expect_file!["help/run.txt"]);
}

#[test]
fn once() {
    check(&["once"], expect_file!["help/once.txt"]);
}

#[test]
fn elect() {
    check(&["elect"], expect_file!["help/elect.txt"]);
}

#[test]
fn wait() {
    check(&["wait"], expect_file!["help/wait.txt"]);
}

#[test]
fn acquire() {
    check(&["acquire"], expect_file!["help/acquire.txt"]);
}

#[test]
fn extend() {
    check(&["extend"], expect_file!["help/extend.txt"]);
}

#[test]
fn release() {
    check(&["release"], expect_file!["help/release.txt"]);
}

#[test]
fn show() {
    check(&["show"], expect_file!["help/show.txt"]);
    check(&["history"], expect_file!["help/history.txt"]);
}

#[test]
fn ls() {
    check(&["ls"], expect_file!["help/ls.txt"]);
}

#[test]
fn top() {
    check(&["top"], expect_file!["help/top.txt"]);
}

#[test]
fn break_() {
    check(&["break"], expect_file!["help/break.txt"]);
}

#[test]
fn init() {
    check(&["init"], expect_file!["help/init.txt"]);
}

#[test]
fn doctor() {
    check(&["doctor"], expect_file!["help/doctor.txt"]);
}

#[test]
fn nodes() {
    check(&["nodes"], expect_file!["help/nodes.txt"]);
}

#[test]
fn config() {
    check(&["config"], expect_file!["help/config.txt"]);
}

#[test]
fn completions() {
    check(&["completions"], expect_file!["help/completions.txt"]);
}

#[test]
fn man() {
    check(&["man"], expect_file!["help/man.txt"]);
}

#[test]
fn resize() {
    check(&["resize"], expect_file!["help/resize.txt"]);
}
