//! Holders in other pid namespaces, boots and time namespaces: other processes cannot judge
//! whether they are dead, so their locks end with their TTLs.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::setup::LONG;
use leasehold_testkit::{process, unix_us};

use super::puppet::{Puppet, since_boot};
use super::skip;
use super::store::Store;

const TTL_MS: u64 = 3_000;
const TTL: Duration = Duration::from_millis(TTL_MS);

const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Whether this program can be run with this wrapper.
fn may_run(wrapper: &[&str]) -> Result<(), String> {
    let tried = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "none"])
        .output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether new namespaces can be created here. Prints a message if not.
fn may_unshare(what: &str) -> bool {
    let may = may_run(&UNSHARE);
    if let Err(why) = &may {
        skip(what, &format!("no new pid namespace: {why}"));
    }
    may.is_ok()
}

/// Kills a holder that cannot be judged. The lock must last until its TTL has expired.
fn check_waits_for_the_ttl(holder: &mut Puppet, other: &mut Puppet) {
    let before = since_boot();
    let held = holder.request_lease(&format!("lock a {TTL_MS}"));
    other.send_lock("a");
    holder.kill();
    holder.until_gone();
    let got = other.receive_lease();
    assert!(got.token > held.token);
    // The node counts the TTL from after the request, so from after `before`.
    assert!(got.at >= before + TTL, "{got:?} too early");
}

#[test]
fn a_holder_in_another_pid_namespace_is_not_judged_from_outside() {
    if !may_unshare("holders in another pid namespace") {
        return;
    }
    let store = Store::new();
    let (mut inside, mut outside) = (Puppet::through(&UNSHARE), Puppet::of(&store.url()));
    inside.open(&store.url());
    check_waits_for_the_ttl(&mut inside, &mut outside);
}

#[test]
fn a_holder_outside_is_not_judged_from_a_pid_namespace() {
    if !may_unshare("readers in another pid namespace") {
        return;
    }
    let store = Store::new();
    let (mut inside, mut outside) = (Puppet::through(&UNSHARE), Puppet::of(&store.url()));
    inside.open(&store.url());
    check_waits_for_the_ttl(&mut outside, &mut inside);
}

/// Processes in one namespace judge each other, as they do outside.
#[test]
fn a_holder_in_the_same_pid_namespace_is_judged() {
    if !may_unshare("holders in the same pid namespace") {
        return;
    }
    let store = Store::new();
    let init = Puppet::through(&UNSHARE);
    let first = init.child_pid().to_string();
    let enter = ["nsenter", "--target", &first, "--pid", "--mount"];
    let (mut holder, mut other) = (Puppet::through(&enter), Puppet::through(&enter));
    holder.open(&store.url());
    other.open(&store.url());
    let held = holder.lock("a");
    other.send_lock("a");
    store.until_waiters(1);
    let outside = Puppet::of(&store.url()).finds_held("a");
    assert!(outside, "judged from outside");
    process::signal(holder.child_pid(), "KILL");
    assert!(other.receive_lease().token > held.token);
    process::signal(other.child_pid(), "KILL");
}

/// Without a `/proc` of its own namespace a process cannot identify itself: the pids there belong
/// to other processes. It must not record the identity of one of them.
#[test]
fn a_process_with_the_proc_of_another_namespace_is_not_judged() {
    if !may_unshare("a namespace without a /proc of its own") {
        return;
    }
    let store = Store::new();
    let mut inside = Puppet::through(&UNSHARE[..4]);
    inside.open(&store.url());
    inside.lock("a");
    assert_eq!(store.holders("a"), None);
}

/// A `/proc` that hides the processes of other users. A process that cannot see when another one
/// started must not record anything that a process which can see it takes for a different
/// process.
#[test]
fn a_process_hidden_from_its_binder_is_not_judged() {
    let store = Store::new();
    let what = "a /proc that hides processes";
    let nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let mount = r#"mount -t proc -o hidepid=2 proc /proc && exec "$0" "$@""#;
    let hidden = [&["unshare", "--mount", "sh", "-c", mount], &nobody[..]].concat();
    if let Err(why) = may_run(&hidden) {
        return skip(what, &why);
    }
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(store.dir(), everybody).expect("changed");
    let mut holder = Puppet::through(&hidden);
    holder.open(&store.url());
    holder.lock("a");
    let mut seeing = Puppet::of(&store.url());
    assert_eq!(holder.request(&format!("bind a {}", seeing.pid())), "bound");
    assert!(
        seeing.finds_held("a"),
        "the bound process is alive: it sends this request"
    );
}

/// Rows as another container or another boot would write them. These pids are dead here.
#[test]
fn foreign_rows_are_not_judged() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.lock("a");
    let own = store.holders("a").expect("holders");
    let (realm, _) = own.split_once(' ').expect("a realm");
    let (boot, namespace) = realm.split_once('/').expect("a boot and a namespace");
    let rewrite = |holders: &str| {
        let set = "UPDATE names SET holders = ? WHERE name = 'a' OR name = x'61'";
        assert_eq!(store.sql().execute(set, [holders]), Ok(1));
    };
    for foreign in [
        format!("00000000-0000-0000-0000-000000000000/{namespace} 4000000:1"),
        format!("{boot}/pid:[1] 4000000:1"),
        format!("{boot} 4000000:1"),
        "nonsense".to_owned(),
        String::new(),
        format!("{realm} 4000000"),
        format!("{realm} x:y"),
    ] {
        rewrite(&foreign);
        assert!(other.finds_held("a"), "{foreign}");
    }
    // The realm made the difference.
    rewrite(&format!("{realm} 4000000:1"));
    assert!(!other.finds_held("a"));
}

/// A row of another boot counts by the wall clock.
#[test]
fn rows_of_another_boot_end_with_their_ttl() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.lock("a");
    let rewrite = |expires: Duration| {
        let set = "UPDATE names SET clock = 'another/time:[1]', holders = 'another/pid:[1] 9:9',
                   expires_boot_ns = 1, expires_unix_us = ?";
        let expires = i64::try_from(expires.as_micros()).expect("a date");
        assert_eq!(store.sql().execute(set, [expires]), Ok(1));
    };
    let since_1970 = || Duration::from_micros(unix_us());
    rewrite(since_1970() + LONG * 10);
    assert!(other.finds_held("a"));
    let expires = since_1970() + Duration::from_millis(1_500);
    rewrite(expires);
    other.lock("a");
    assert!(since_1970() >= expires, "too early");
}

/// A program that sees another boot id than all others, in the same pid namespace.
fn elsewhere(store: &Store) -> String {
    let boot = store.dir().join("boot");
    std::fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").expect("written");
    let boot = boot.display();
    format!(r#"mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$0" "$@""#)
}

/// A real reader in another boot. The holder's process is dead in every boot, but its pid means
/// nothing in the other one. Of the two expiry times of a lock, the one by the wall clock counts
/// there.
#[test]
fn a_reader_in_another_boot_uses_the_wall_clock() {
    let store = Store::new();
    let mount = elsewhere(&store);
    let wrapper = ["unshare", "--mount", "sh", "-c", &mount];
    if let Err(why) = may_run(&wrapper) {
        return skip("readers in another boot", &why);
    }
    let (mut holder, mut here) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let mut there = Puppet::through(&wrapper);
    there.open(&store.url());
    holder.lock("over-here");
    holder.lock("over-there");
    let rewrite = |name: &str, boot_ns: i64, unix_us: i64| {
        let set = "UPDATE names SET expires_boot_ns = ?, expires_unix_us = ?
                   WHERE name = CAST(? AS BLOB)";
        let changed = store
            .sql()
            .execute(set, rusqlite::params![boot_ns, unix_us, name]);
        assert_eq!(changed, Ok(1));
    };
    rewrite("over-here", 1, i64::MAX);
    rewrite("over-there", i64::MAX, 1);
    assert!(there.finds_held("over-here"));
    assert!(here.finds_held("over-there"));
    // The boot made the difference.
    assert!(!there.finds_held("over-there"));
    assert!(!here.finds_held("over-here"));
    check_waits_for_the_ttl(&mut holder, &mut there);
}
