//! The judgements, as tables: a healthy server with one fault each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::{
    Address, ClockSample, Commands, Context, Facts, Failover, FileSystem, Locks, Processes, Record,
    SentinelView, Sentinels, ServerFacts, SetRecord, Slow, StoreFacts, TlsFiles, Unexamined,
};
use super::{Check, Finding, Info, Report, Status, findings};
use crate::node::{Constants, NodeError, Replicas, Shortfall};

/// What a healthy server shows. A test replaces some of the lines.
const INFO: &str = "redis_version:7.0.15\nredis_mode:standalone\nrun_id:a1\nuptime_in_seconds:900\n\
    connected_clients:5\nmaxclients:10000\nused_memory:1000\nused_memory_rss:2000\n\
    total_system_memory:100000\nmaxmemory:0\nmaxmemory_policy:noeviction\n\
    mem_not_counted_for_evict:0\nloading:0\nrdb_last_bgsave_status:ok\naof_enabled:1\n\
    aof_last_bgrewrite_status:ok\naof_last_write_status:ok\naof_pending_bio_fsync:0\n\
    aof_delayed_fsync:0\nrejected_connections:0\nevicted_keys:7\nlatest_fork_usec:300\nrole:master\n\
    connected_slaves:0\nmaster_replid:h1\nused_cpu_sys:1.0\nused_cpu_user:1.0\n\
    cluster_enabled:0\n";

const MS: Duration = Duration::from_millis(1);

/// INFO with other lines. A line without a value is hidden.
fn info(changed: &[&str]) -> Info {
    let mut lines: Vec<&str> = INFO.lines().collect();
    for line in changed {
        let field = line.split(':').next().unwrap_or_default();
        lines.retain(|known| known.split(':').next() != Some(field));
        lines.push(line);
    }
    Info::new(&lines.join("\r\n"))
}

fn sample(at_us: i64, server_us: i64) -> ClockSample {
    ClockSample {
        local_us: at_us,
        wall_us: 1_000_000_000 + at_us,
        server_us: 1_000_000_000 + server_us,
        round_trip: MS,
    }
}

fn healthy() -> ServerFacts {
    let settings = [
        ("timeout", "0"),
        ("maxclients", "10000"),
        ("slowlog-log-slower-than", "10000"),
        ("slowlog-max-len", "128"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    ServerFacts {
        address: Address::Tcp {
            host: "127.0.0.1".into(),
            port: 7000,
        },
        certificate: None,
        user: "default".into(),
        commands: Commands::default(),
        before: info(&[]),
        after: info(&[]),
        interval: Duration::from_secs(1),
        config: BTreeMap::from(settings),
        clock: Ok((sample(0, 0), sample(1_000_000, 1_000_000))),
        latency: vec![MS; 200],
        slow: Ok(None),
        push: Ok(()),
        scripts: Ok(()),
        record: Ok(Record {
            votes_in: Duration::ZERO,
            has_epoch: true,
            foreign: None,
            other_constants: None,
            set: Some(SetRecord {
                id: "s1".into(),
                nodes: 1,
                labels: vec!["n0".into()],
            }),
        }),
        locks: Ok(Locks::default()),
        sentinels: None,
    }
}

fn context(nodes: usize) -> Context {
    Context {
        labels: (0..nodes).map(|number| format!("n{number}")).collect(),
        ttl: Duration::from_secs(10),
        node_timeout: Duration::from_millis(250),
        connect_timeout: Duration::from_secs(2),
        constants: Constants::for_nodes(nodes),
        replicas: None,
    }
}

/// Judges servers.
fn judge(servers: Vec<ServerFacts>) -> Vec<Finding> {
    let context = context(servers.len());
    let facts = servers.into_iter().map(|s| Facts::Server(Ok(Box::new(s))));
    findings(&facts.collect::<Vec<_>>(), &context)
}

fn of(findings: &[Finding], check: Check) -> &Finding {
    let of_it = findings.iter().filter(|finding| finding.check == check);
    of_it
        .max_by_key(|finding| finding.status)
        .expect("a finding")
}

/// What a check finds at one server with a fault. Everything else is as it was.
fn with(check: Check, change: impl FnOnce(&mut ServerFacts)) -> Finding {
    let mut server = healthy();
    change(&mut server);
    of(&judge(vec![server]), check).clone()
}

fn with_info(check: Check, changed: &[&str]) -> Finding {
    with(check, |server| server.after = info(changed))
}

#[test]
fn a_healthy_server_passes_every_check() {
    for found in judge(vec![healthy()]) {
        assert_eq!(found.status, Status::Ok, "{found:?}");
        assert!(found.remedy.is_empty(), "{found:?}");
    }
}

#[test]
fn faults_that_info_shows() {
    use Status::{Fail, Ok, Unknown, Warn};
    for (check, changed, status, says) in [
        (
            Check::Role,
            &["role:slave", "master_host:db", "master_port:7"][..],
            Fail,
            "db:7",
        ),
        (Check::Cluster, &["cluster_enabled:1"], Warn, "Cluster"),
        (Check::Cluster, &["redis_mode:cluster"], Warn, "Cluster"),
        (Check::Cluster, &["redis_mode:sentinel"], Fail, "Sentinel"),
        (
            Check::Cluster,
            &["redis_mode", "server_mode:sentinel"],
            Fail,
            "Sentinel",
        ),
        (
            Check::Replicas,
            &["connected_slaves:1", "slave0:ip=h,lag=0"],
            Warn,
            "guard",
        ),
        (
            Check::Replicas,
            &["connected_slaves:2", "slave1:ip=h,lag=9"],
            Warn,
            "9 s behind",
        ),
        (
            Check::SplitBrain,
            &["connected_slaves:1"],
            Warn,
            "min-replicas-to-write 0",
        ),
        (
            Check::SplitBrain,
            &["connected_slaves:1", "min_slaves_good_slaves:1"],
            Unknown,
            "refuses writes without its replicas, and does not show",
        ),
        (Check::Eviction, &["maxmemory:2097152"], Ok, "2mb"),
        (
            Check::Eviction,
            &["maxmemory:2097152", "maxmemory_policy:volatile-lru"],
            Warn,
            "volatile-lru",
        ),
        (
            Check::Eviction,
            &[
                "maxmemory:1",
                "maxmemory_policy:allkeys-lru",
                "evicted_keys:9",
            ],
            Fail,
            "2 keys",
        ),
        (Check::Memory, &["maxmemory:1200"], Warn, "83 %"),
        (Check::Memory, &["maxmemory:1055"], Warn, "95 %"),
        (Check::Memory, &["maxmemory:1040"], Fail, "96 %"),
        (
            Check::Memory,
            &["maxmemory:1040", "mem_not_counted_for_evict:500"],
            Ok,
            "48 %",
        ),
        (
            Check::Memory,
            &["used_memory_rss:70001"],
            Warn,
            "without a limit",
        ),
        (Check::Persistence, &["aof_enabled:0"], Fail, "restart"),
        (
            Check::Persistence,
            &["rdb_last_bgsave_status:err"],
            Fail,
            "rdb_last",
        ),
        (
            Check::Persistence,
            &["aof_last_write_status:err"],
            Fail,
            "aof_last",
        ),
        (Check::Persistence, &["loading:1"], Warn, "loading"),
        (Check::Fsync, &["latest_fork_usec:250001"], Warn, "fork"),
        (Check::Fsync, &["aof_delayed_fsync:3"], Warn, "3 writes"),
        // One look may see an fsync that is quick.
        (Check::Fsync, &["aof_pending_bio_fsync:1"], Ok, "no stalls"),
        (Check::Clock, &["uptime_in_seconds:-5"], Fail, "set back"),
        (Check::Load, &["used_cpu_user:1.81"], Warn, "81 %"),
        (Check::Load, &["used_cpu_user:1.79"], Ok, "79 %"),
        (
            Check::Clients,
            &["connected_clients:8001"],
            Warn,
            "8001 of 10000",
        ),
        (
            Check::Clients,
            &["rejected_connections:4"],
            Warn,
            "4 were refused",
        ),
        (Check::Version, &["redis_version:6.0.16"], Warn, "6.0.16"),
        (Check::Version, &["redis_version:6.2.0"], Ok, "6.2.0"),
        (Check::Version, &["redis_version:8.4.0"], Ok, "DELEX"),
        (Check::Version, &["valkey_version:9.0.1"], Ok, "DELIFEQ"),
    ] {
        let found = with_info(check, changed);
        assert_eq!(found.status, status, "{changed:?}: {found:?}");
        assert!(found.seen.contains(says), "{changed:?}: {found:?}");
        assert_eq!(found.remedy.is_empty(), status == Ok, "{found:?}");
    }
}

/// What a provider hides is unknown: neither fine nor an alarm.
#[test]
fn what_is_hidden_is_unknown() {
    for (check, field) in [
        (Check::Role, "role"),
        (Check::Replicas, "connected_slaves"),
        (Check::SplitBrain, "connected_slaves"),
        (Check::Eviction, "maxmemory"),
        (Check::Memory, "used_memory"),
        (Check::Memory, "maxmemory"),
        (Check::Memory, "total_system_memory"),
        (Check::Persistence, "aof_enabled"),
        (Check::Fsync, "latest_fork_usec"),
        (Check::Load, "used_cpu_sys"),
        (Check::Clients, "connected_clients"),
        (Check::Version, "redis_version"),
    ] {
        let found = with_info(check, &[field]);
        assert_eq!(found.status, Status::Unknown, "{field}: {found:?}");
        assert!(found.seen.contains(field), "{found:?}");
        // Some services show the name of the field without its value.
        let found = with_info(check, &[&format!("{field}:")]);
        assert_eq!(found.status, Status::Unknown, "{field}: {found:?}");
    }
    let policy = with_info(Check::Eviction, &["maxmemory:1000", "maxmemory_policy:"]);
    assert_eq!(policy.status, Status::Unknown, "{policy:?}");
    let hidden = with(Check::IdleTimeout, |server| server.config.clear());
    assert_eq!(hidden.status, Status::Unknown, "{hidden:?}");
    // A server that shows nothing at all.
    let nothing = with(Check::Cluster, |server| {
        (server.before, server.after) = (Info::default(), Info::default());
    });
    assert_eq!(nothing.status, Status::Unknown, "{nothing:?}");
    let mut server = healthy();
    (server.before, server.after) = (Info::default(), Info::default());
    for found in judge(vec![server.clone(), server]) {
        let not_from_info = matches!(found.check, Check::Quorum | Check::Set);
        assert!(
            found.status <= Status::Unknown || not_from_info,
            "{found:?}"
        );
    }
}

#[test]
fn faults_of_one_server() {
    use Status::{Fail, Ok, Unknown, Warn};
    type Change = fn(&mut ServerFacts);
    const DAY: Duration = Duration::from_secs(86_400);
    fn remote(server: &mut ServerFacts) {
        server.address = Address::Tcp {
            host: "10.0.0.1".into(),
            port: 6379,
        };
    }
    fn expiring(server: &mut ServerFacts, left: Duration) {
        server.address = Address::Tls {
            host: "10.0.0.1".into(),
            port: 6379,
            files: TlsFiles::default(),
        };
        server.certificate = Some(Result::Ok(left));
    }
    fn record(server: &mut ServerFacts) -> &mut Record {
        server.record.as_mut().expect("a record")
    }
    for (number, (check, change, status, says)) in [
        (Check::Tls, remote as Change, Warn, "plain TCP to another"),
        (
            Check::Tls,
            |s| s.address = Address::Socket("/s".into()),
            Ok,
            "socket",
        ),
        (Check::Tls, |s| expiring(s, 31 * DAY), Ok, "31 days"),
        (Check::Tls, |s| expiring(s, 29 * DAY), Warn, "29 days"),
        (Check::Tls, |s| expiring(s, 2 * DAY), Fail, "2 days"),
        (
            Check::Permissions,
            |s| s.commands.denied.push("+set".into()),
            Fail,
            "+set",
        ),
        (
            Check::Restart,
            |s| record(s).votes_in = 1500 * MS,
            Warn,
            "in 2 s",
        ),
        (
            Check::Restart,
            |s| s.record = Err(NodeError::ReadOnly),
            Unknown,
            "records",
        ),
        (
            Check::Constants,
            |s| record(s).other_constants = Some(("b=1 a_c=1".into(), "b=1 a_c=2".into())),
            Fail,
            "on record: a c 1; this client: a c 2",
        ),
        (Check::Latency, |s| s.latency = vec![], Unknown, ""),
        (
            Check::Latency,
            |s| s.latency = vec![130 * MS; 9],
            Warn,
            "p99 130",
        ),
        (
            Check::Latency,
            |s| *s.latency.last_mut().expect("one") = 251 * MS,
            Fail,
            "max 251",
        ),
        (
            Check::SlowCommands,
            |s| s.slow = Err("NOPERM".into()),
            Unknown,
            "NOPERM",
        ),
        (
            Check::SlowCommands,
            |s| {
                s.slow = Result::Ok(Some(Slow {
                    command: "KEYS".into(),
                    took: 251 * MS,
                }));
            },
            Warn,
            "KEYS",
        ),
        (
            Check::SlowCommands,
            |s| {
                drop(
                    s.config
                        .insert("slowlog-log-slower-than".into(), "-1".into()),
                )
            },
            Unknown,
            "the slow log is off",
        ),
        (
            Check::SlowCommands,
            |s| drop(s.config.insert("slowlog-max-len".into(), "0".into())),
            Unknown,
            "the slow log is off",
        ),
        (
            Check::SlowCommands,
            |s| {
                let threshold = "slowlog-log-slower-than".into();
                s.config.insert(threshold, "1000000".into());
            },
            Unknown,
            "longer than 1000000 µs",
        ),
        (
            Check::SlowCommands,
            |s| drop(s.config.remove("slowlog-max-len")),
            Unknown,
            "does not show what it records",
        ),
        (
            Check::IdleTimeout,
            |s| drop(s.config.insert("timeout".into(), "60".into())),
            Warn,
            "60 s",
        ),
        (
            Check::SplitBrain,
            |s| {
                s.after = info(&["connected_slaves:1"]);
                s.config.insert("min-replicas-to-write".into(), "1".into());
                s.config.insert("min-replicas-max-lag".into(), "10".into());
            },
            Warn,
            "max-lag is 10 s",
        ),
        (
            Check::SplitBrain,
            |s| {
                s.after = info(&["connected_slaves:1"]);
                s.config.insert("min-replicas-to-write".into(), "1".into());
                s.config.insert("min-replicas-max-lag".into(), "0".into());
            },
            Warn,
            "accepts writes without them (min-replicas-max-lag 0)",
        ),
        (
            Check::SplitBrain,
            |s| {
                s.config.insert("min-replicas-to-write".into(), "1".into());
                s.config.insert("min-replicas-max-lag".into(), "0".into());
            },
            Status::Ok,
            "no replicas",
        ),
        (
            Check::SplitBrain,
            |s| {
                s.after = info(&["connected_slaves:1", "min_slaves_good_slaves:1"]);
                s.config.insert("min-replicas-max-lag".into(), "3".into());
            },
            Status::Ok,
            "refuses writes without its replicas",
        ),
        (
            Check::SplitBrain,
            |s| drop(s.config.insert("min-replicas-to-write".into(), "1".into())),
            Fail,
            "to-write is 1, and 0 replicas",
        ),
        (
            Check::SplitBrain,
            |s| {
                s.commands.refused = Some(NodeError::Unavailable {
                    why: "NOREPLICAS not enough".into(),
                });
            },
            Fail,
            "NOREPLICAS",
        ),
        (
            Check::Permissions,
            |s| s.commands.unknown.push("SET".into()),
            Fail,
            "does not know: SET",
        ),
        (
            Check::Latency,
            |s| s.latency = vec![401 * MS; 9],
            Fail,
            "at least 5 of them to connect",
        ),
        (
            Check::Push,
            |s| s.push = Err("no RESP3".into()),
            Warn,
            "no RESP3",
        ),
        (
            Check::Scripts,
            |s| s.scripts = Err("NOPERM".into()),
            Fail,
            "NOPERM",
        ),
        (
            Check::Leftovers,
            |s| s.locks = Err("NOPERM".into()),
            Unknown,
            "NOPERM",
        ),
        (
            Check::Leftovers,
            |s| {
                s.locks = Result::Ok(Locks {
                    count: 5,
                    endless: ["a", "b", "c", "d"].map(str::to_owned).into(),
                    long: Vec::new(),
                });
            },
            Warn,
            "a, b, c and 1 more",
        ),
        (
            Check::Leftovers,
            |s| {
                s.locks = Result::Ok(Locks {
                    count: 1,
                    endless: Vec::new(),
                    long: vec![("x".into(), DAY)],
                });
            },
            Warn,
            "x (86400 s left)",
        ),
        (
            Check::Clock,
            |s| s.clock = Err("NOPERM".into()),
            Unknown,
            "NOPERM",
        ),
        // 1 % of a second, 2 ms, and half of the round trips.
        (
            Check::Clock,
            |s| s.clock = Result::Ok((sample(0, 0), sample(1_000_000, 1_012_900))),
            Ok,
            "from the clock",
        ),
        (
            Check::Clock,
            |s| s.clock = Result::Ok((sample(0, 0), sample(1_000_000, 986_900))),
            Warn,
            "-13.1 ms",
        ),
        (
            Check::Clock,
            |s| s.clock = Result::Ok((sample(0, 0), sample(1_000_000, 1_102_000))),
            Fail,
            "+102.0 ms",
        ),
        (
            Check::Clock,
            |s| s.clock = Result::Ok((sample(0, 20_000_000), sample(1_000_000, 21_000_000))),
            Warn,
            "more than the skew",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let found = with(check, change);
        assert_eq!(found.status, status, "case {number}: {found:?}");
        assert!(found.seen.contains(says), "case {number}: {found:?}");
    }
    let pending = || info(&["aof_pending_bio_fsync:1"]);
    let found = with(Check::Fsync, |s| {
        (s.before, s.after) = (pending(), pending())
    });
    assert_eq!(found.status, Warn, "{found:?}");
}

#[test]
fn replicas_that_locks_need() {
    use Shortfall::{Refuse, Warn};
    let online = "slave0:ip=h,state=online,lag=0";
    let two = [
        "connected_slaves:2",
        online,
        "slave1:ip=i,state=online,lag=1",
    ];
    let loading = [
        "connected_slaves:2",
        online,
        "slave1:ip=i,state=send_bulk,lag=0",
    ];
    let late = [
        "connected_slaves:2",
        online,
        "slave1:ip=i,state=online,lag=9",
    ];
    let refused = "1 replica, and `replicas` is 2: the node grants no lock";
    for (changed, wanted, otherwise, status, says) in [
        (
            &two[..],
            2,
            Refuse,
            Status::Ok,
            "2 replicas, 2 of which must have each lock",
        ),
        (
            &two,
            1,
            Warn,
            Status::Ok,
            "2 replicas, 1 of which must have each lock",
        ),
        (
            &two,
            3,
            Refuse,
            Status::Fail,
            "2 replicas, and `replicas` is 3",
        ),
        (&late, 1, Refuse, Status::Warn, "9 s behind"),
        (
            &late,
            2,
            Refuse,
            Status::Fail,
            "1 of which cannot acknowledge",
        ),
        (
            &loading,
            2,
            Refuse,
            Status::Fail,
            "1 of which cannot acknowledge locks now",
        ),
        (
            &loading,
            1,
            Refuse,
            Status::Ok,
            "2 replicas, 1 of which must",
        ),
        (
            &["connected_slaves:1", online],
            2,
            Refuse,
            Status::Fail,
            refused,
        ),
        (
            &["connected_slaves:1", online],
            2,
            Warn,
            Status::Warn,
            "`prefer_replicas` is 2",
        ),
        (
            &["connected_slaves:0"],
            1,
            Refuse,
            Status::Fail,
            "no replicas, and `replicas` is 1",
        ),
        (
            &["connected_slaves"],
            1,
            Refuse,
            Status::Unknown,
            "connected_slaves",
        ),
        // The role is what is wrong.
        (&["role:slave"], 1, Refuse, Status::Ok, "no replicas"),
    ] {
        let mut server = healthy();
        server.after = info(changed);
        let context = Context {
            replicas: Some(Replicas { wanted, otherwise }),
            ..context(1)
        };
        let found = findings(&[Facts::Server(Ok(Box::new(server)))], &context);
        let votes = of(&found, Check::Quorum).status != Status::Fail;
        let is_master = changed != ["role:slave"];
        assert_eq!(votes, is_master && status != Status::Fail, "{changed:?}");
        let found = of(&found, Check::Replicas);
        assert_eq!(found.status, status, "{changed:?}: {found:?}");
        assert!(found.seen.contains(says), "{changed:?}: {found:?}");
    }
}

/// Any client can choose the names of its locks.
#[test]
fn names_in_commands_are_quoted() {
    for (name, command) in [
        ("orders/42", "leasehold show orders/42`"),
        ("x; rm -rf ~", "leasehold show -- 'x; rm -rf ~'`"),
        ("it's $(reboot)", r"leasehold show -- 'it'\''s $(reboot)'`"),
        ("--help", "leasehold show -- --help`"),
    ] {
        let long = vec![(name.to_owned(), Duration::from_secs(86_400))];
        for (endless, long) in [(vec![name.to_owned()], Vec::new()), (Vec::new(), long)] {
            let found = with(Check::Leftovers, |server| {
                server.locks = Ok(Locks {
                    count: 1,
                    endless: endless.clone(),
                    long,
                });
            });
            assert!(found.remedy.contains(command), "{}", found.remedy);
            let breaks = command.replace("show", "break");
            let is_endless = !endless.is_empty();
            assert_eq!(
                found.remedy.contains(&breaks),
                is_endless,
                "{}",
                found.remedy
            );
        }
    }
}

/// A server of three, with an identity of its own.
fn member(number: usize) -> ServerFacts {
    let mut server = healthy();
    server.after = info(&[
        &format!("run_id:r{number}"),
        &format!("master_replid:h{number}"),
    ]);
    server.record.as_mut().expect("a record").set = Some(SetRecord {
        id: "s1".into(),
        nodes: 3,
        labels: vec!["n0".into(), "n1".into(), "n2".into()],
    });
    server
}

#[test]
fn faults_of_several_servers() {
    type Change = fn(&mut [ServerFacts]);
    fn set(server: &mut ServerFacts) -> &mut SetRecord {
        let record = server.record.as_mut().expect("a record");
        record.set.as_mut().expect("a set")
    }
    fn ahead(server: &mut ServerFacts, us: i64) {
        server.clock = Ok((sample(0, us), sample(1_000_000, 1_000_000 + us)));
    }
    use Status::{Fail, Ok as Fine, Unknown, Warn};
    for (number, (check, change, status, says)) in [
        (Check::SameServer, (|_| {}) as Change, Fine, "3 different"),
        (
            Check::SameServer,
            |all| all[2].after = all[0].after.clone(),
            Fail,
            "n0 and n2",
        ),
        (
            Check::SameServer,
            |all| all[1].after = info(&["run_id:"]),
            Unknown,
            "run_id",
        ),
        (Check::Related, |_| {}, Fine, "independent"),
        (
            Check::Related,
            |all| all[1].after = info(&["run_id:r1", "master_replid:h0"]),
            Fail,
            "n0 and n1",
        ),
        (
            Check::Related,
            |all| {
                all[2].after = info(&[
                    "run_id:r2",
                    "master_replid:h2",
                    "role:slave",
                    "master_host:127.0.0.1",
                    "master_port:7000",
                ]);
            },
            Fail,
            "n0 and n2",
        ),
        (
            Check::Related,
            |all| all[1].after = info(&["run_id:r1", "master_replid:"]),
            Unknown,
            "master_replid",
        ),
        (Check::Set, |_| {}, Fine, "3 nodes"),
        (Check::Set, |all| set(&mut all[0]).nodes = 5, Fail, "n0 has"),
        (
            Check::Set,
            |all| {
                set(&mut all[2]).id = "s2".into();
                set(&mut all[2]).labels = vec!["x".into()];
            },
            Fail,
            "n2 has [x]",
        ),
        (
            Check::Set,
            |all| {
                all.iter_mut()
                    .for_each(|one| set(one).labels[0] = "alias".into())
            },
            Warn,
            "alias",
        ),
        (
            Check::Set,
            |all| all[1].record.as_mut().expect("a record").set = None,
            Fine,
            "joins",
        ),
        (
            Check::Set,
            |all| all[1].record = Err(NodeError::ReadOnly),
            Unknown,
            "could not be read",
        ),
        (
            Check::Set,
            |all| all[1].record = Err(NodeError::protocol("the record of its nodes")),
            Fail,
            "the record of its nodes",
        ),
        (Check::Clock, |all| ahead(&mut all[1], 4_900_000), Fine, ""),
        (
            Check::Clock,
            |all| ahead(&mut all[1], 5_100_000),
            Warn,
            "behind n1",
        ),
        (
            Check::Clock,
            |all| ahead(&mut all[1], -10_100_000),
            Fail,
            "n1 is",
        ),
        (Check::Quorum, |_| {}, Fine, "one node may fail"),
        (
            Check::Quorum,
            |all| all[0].after = info(&["role:slave"]),
            Warn,
            "no node may fail now",
        ),
        (
            Check::Quorum,
            |all| all[0].record = Err(NodeError::Unanswered),
            Warn,
            "without n0",
        ),
        (
            Check::Quorum,
            |all| {
                for one in all {
                    one.record.as_mut().expect("a record").votes_in = 1500 * MS;
                }
            },
            Fail,
            "votes in 2 s",
        ),
        // The restart guard covers what a restart forgets.
        (
            Check::Persistence,
            |all| all[0].after = info(&["aof_enabled:0"]),
            Fine,
            "does not vote for 60s",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut servers: Vec<_> = (0..3).map(member).collect();
        change(&mut servers);
        let all = judge(servers);
        let found = of(&all, check);
        assert_eq!(found.status, status, "case {number}: {found:?}");
        let mut of_check = all.iter().filter(|found| found.check == check);
        assert!(
            of_check.any(|found| found.seen.contains(says)),
            "case {number}: {found:?}"
        );
    }
}

/// A server counts for the quorum only if it would grant this client a lock.
#[test]
fn servers_that_refuse_the_client_do_not_vote() {
    type Change = fn(&mut ServerFacts);
    let changes: [Change; 8] = [
        |s| s.record = Err(NodeError::Unanswered),
        |s| s.record.as_mut().expect("a record").other_constants = Some(("a".into(), "b".into())),
        |s| s.scripts = Err("unknown command".into()),
        |s| s.commands.denied.push("+zadd".into()),
        |s| s.commands.unknown.push("SET".into()),
        |s| s.commands.refused = Some(NodeError::OutOfMemory),
        |s| s.latency = vec![251 * MS; 200],
        |s| s.after = info(&["role:slave"]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for (count, status) in [(1, Status::Warn), (2, Status::Fail)] {
            let mut servers: Vec<_> = (0..3).map(member).collect();
            servers[..count].iter_mut().for_each(change);
            let found = judge(servers);
            let found = of(&found, Check::Quorum);
            assert_eq!(found.status, status, "case {number}: {found:?}");
        }
    }
    // One slow answer is an outlier.
    let mut server = healthy();
    server.latency[199] = 251 * MS;
    assert_eq!(of(&judge(vec![server]), Check::Quorum).status, Status::Ok);
}

/// A client that finds the same server twice, or another set, uses no node.
#[test]
fn other_servers_than_those_of_the_client_do_not_vote() {
    let quorum = |change: fn(&mut [ServerFacts])| {
        let mut servers: Vec<_> = (0..3).map(member).collect();
        change(&mut servers);
        of(&judge(servers), Check::Quorum).status
    };
    let set = |all: &mut [ServerFacts], index: usize, labels: &[&str]| {
        let record = all[index].record.as_mut().expect("a record");
        let set = record.set.as_mut().expect("a set");
        set.id = "s2".into();
        set.labels = labels.iter().map(ToString::to_string).collect();
    };
    assert_eq!(quorum(|_| {}), Status::Ok);
    assert_eq!(
        quorum(|all| all[2].after = all[0].after.clone()),
        Status::Fail
    );
    let mut servers: Vec<_> = (0..3).map(member).collect();
    set(&mut servers, 2, &["x", "y", "z"]);
    assert_eq!(of(&judge(servers), Check::Quorum).status, Status::Fail);
    // Another id with the same addresses is the same set.
    let mut servers: Vec<_> = (0..3).map(member).collect();
    set(&mut servers, 2, &["n0", "n1", "n2"]);
    assert_eq!(of(&judge(servers), Check::Quorum).status, Status::Ok);
}

#[test]
fn sentinels_must_be_a_majority_that_agrees() {
    use Status::{Fail, Ok as Fine, Unknown, Warn};
    let that = |master: &str, failover| {
        Ok(SentinelView {
            master: master.into(),
            failover,
            ..SentinelView::default()
        })
    };
    let one_of = |all: usize, id: &str| {
        Ok(SentinelView {
            master: "a".into(),
            others: Some(all - 1),
            id: Some(id.to_owned()),
            ..SentinelView::default()
        })
    };
    let view = |master: &str| that(master, Failover::Possible);
    let silent = || Err("refused".to_owned());
    let alone = || that("a", Failover::Impossible("1 usable Sentinels".into()));
    let mute = || that("a", Failover::Unknown("NOPERM".into()));
    for (answers, status, says) in [
        (vec![view("a"), view("a"), view("a")], Fine, "all 3"),
        (vec![view("a"), view("a"), silent()], Warn, "1 of 3"),
        (vec![view("a"), silent(), silent()], Fail, "2 of 3"),
        (vec![view("a"), view("a"), view("b")], Fail, "a, b"),
        (vec![alone()], Fail, "1 usable"),
        (vec![alone(), view("a"), silent()], Fail, "1 usable"),
        (vec![view("a"), mute(), view("a")], Unknown, "s1: NOPERM"),
        (vec![view("a"), mute(), silent()], Warn, "1 of 3"),
        (vec![one_of(2, "x"), one_of(2, "y")], Fine, "all 2"),
        (vec![one_of(3, "x"), one_of(2, "y")], Warn, "2 of 3"),
        (
            vec![one_of(3, "x"), one_of(3, "y"), one_of(3, "x")],
            Warn,
            "s0 and s2 are the same",
        ),
    ] {
        let answers = (0..).zip(answers);
        let answers = answers.map(|(number, answer): (usize, _)| (format!("s{number}"), answer));
        let found = with(Check::Sentinels, |server| {
            server.sentinels = Some(Sentinels {
                answers: answers.collect(),
            });
        });
        assert_eq!(found.status, status, "{found:?}");
        assert!(found.seen.contains(says), "{found:?}");
    }
}

/// A majority may be waiting only, and nodes that vote later are not to blame.
#[test]
fn the_nodes_that_keep_a_majority_from_voting() {
    let waiting = |server: &mut ServerFacts, s| {
        server.record.as_mut().expect("a record").votes_in = Duration::from_secs(s);
    };
    let mut servers: Vec<_> = (0..3).map(member).collect();
    waiting(&mut servers[0], 9);
    waiting(&mut servers[1], 57);
    servers[2].scripts = Err("ERR unknown".into());
    let found = judge(servers.clone());
    let seen = &of(&found, Check::Quorum).seen;
    assert_eq!(seen, "0 of 3 nodes vote yet; a majority, 2, votes in 57 s");
    servers[1].scripts = Err("ERR unknown".into());
    let found = judge(servers);
    let seen = &of(&found, Check::Quorum).seen;
    assert!(seen.ends_with("missing: n1, n2"), "{seen}");
}

/// A server may claim anything, and is not waited for.
#[test]
fn absurd_numbers_and_control_characters() {
    let many = "connected_slaves:18446744073709551615";
    let found = with_info(Check::Replicas, &[many]);
    assert_eq!(found.status, Status::Warn, "{found:?}");
    // Clocks: of one server within its examination, and of two servers.
    for (from, to) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, i64::MIN)] {
        let clock = |server_us| ClockSample {
            server_us,
            ..sample(0, 0)
        };
        let found = with(Check::Clock, |server| {
            server.clock = Ok((clock(from), clock(to)));
        });
        assert_eq!(found.status, Status::Fail, "{found:?}");
        let standing = |number, at| ServerFacts {
            clock: Ok((clock(at), clock(at))),
            ..member(number)
        };
        let found = judge(vec![standing(0, from), standing(1, to)]);
        let apart = |found: &&Finding| found.check == Check::Clock && found.node.is_none();
        let apart = found.iter().find(apart).expect("a finding");
        assert_eq!(apart.status, Status::Fail, "{apart:?}");
    }
    let found = with(Check::Sentinels, |server| {
        let view = SentinelView {
            others: Some(usize::MAX),
            ..SentinelView::default()
        };
        let answers = vec![("s:26379".to_owned(), Ok(view))];
        server.sentinels = Some(Sentinels { answers });
    });
    assert_eq!(found.status, Status::Warn, "{found:?}");
    let found = with_info(Check::Version, &["redis_version:7\u{1b}]0;x\u{7}"]);
    assert!(!found.seen.contains(char::is_control), "{found:?}");
}

/// Two servers with different sets are a fault, although a third one cannot be read.
#[test]
fn a_record_that_cannot_be_read_hides_no_other_set() {
    let mut servers: Vec<_> = (0..3).map(member).collect();
    servers[0].record = Err(NodeError::Unanswered);
    let record = servers[2].record.as_mut().expect("a record");
    record.set.as_mut().expect("a set").labels[0] = "x".into();
    record.set.as_mut().expect("a set").id = "s2".into();
    let found = judge(servers);
    assert_eq!(of(&found, Check::Set).status, Status::Fail, "{found:?}");
}

/// The node votes all the same: the next handshake begins a new epoch.
#[test]
fn an_epoch_record_of_another_program() {
    let mut servers: Vec<_> = (0..3).map(member).collect();
    let record = servers[1].record.as_mut().expect("a record");
    (record.has_epoch, record.foreign) = (false, Some("leasehold:epoch".into()));
    let found = judge(servers);
    let set = of(&found, Check::Set);
    assert_eq!(set.status, Status::Fail, "{set:?}");
    assert!(set.seen.contains("n1: `leasehold:epoch`"), "{set:?}");
    assert_eq!(of(&found, Check::Quorum).status, Status::Ok, "{found:?}");
}

/// A sentinel has nothing of what the other checks look for.
#[test]
fn a_sentinel_has_no_other_findings() {
    let mut server = healthy();
    server.after = info(&["redis_mode:sentinel"]);
    server.record = Err(NodeError::Unanswered);
    let found = judge(vec![server]);
    let checks: Vec<_> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, [Check::Reach, Check::Cluster, Check::Quorum]);
    assert!(found[1].remedy.contains("redis+sentinel://"), "{found:?}");
}

#[test]
fn remedies_of_servers_that_cannot_be_examined() {
    let busy = NodeError::Unavailable {
        why: "BUSY Redis is busy".into(),
    };
    let full = NodeError::Refused {
        why: "ERR max number of clients reached".into(),
    };
    for (error, says) in [
        (NodeError::unreachable("reset"), "TLS (rediss://)"),
        (NodeError::TimedOut { after: MS }, "uses TLS"),
        (busy.clone(), "SCRIPT KILL"),
        (full, "maxclients"),
    ] {
        let found = findings(&[Facts::Server(Err(error.into()))], &context(1));
        let found = of(&found, Check::Reach);
        assert!(found.remedy.contains(says), "{found:?}");
    }
    let unexamined = Unexamined {
        error: busy,
        address: Some(healthy().address),
    };
    let found = findings(&[Facts::Server(Err(unexamined))], &context(1));
    let remedy = &of(&found, Check::Reach).remedy;
    assert!(
        remedy.contains("`redis-cli -h 127.0.0.1 -p 7000 SCRIPT KILL`"),
        "{remedy}"
    );
}

/// Servers and URLs choose what is part of these commands.
#[test]
fn commands_can_be_copied_into_a_shell() {
    type Change = fn(&mut ServerFacts);
    fn tls(server: &mut ServerFacts, root: bool, client: bool) {
        server.certificate = Some(Result::Ok(MS));
        server.address = Address::Tls {
            host: "h".into(),
            port: 1,
            files: TlsFiles { root, client },
        };
    }
    let denied = |server: &mut ServerFacts| {
        let denied = ["+config|get", "+evalsha", "~leasehold:*"];
        server.commands.denied = denied.map(str::to_owned).into();
    };
    for (change, command) in [
        (
            (|s| s.user = "lim".into()) as Change,
            "`redis-cli -h 127.0.0.1 -p 7000 ACL SETUSER lim '+config|get' +evalsha '~leasehold:*'`;",
        ),
        (
            |s| s.user = "x; $(reboot) it's".into(),
            r"ACL SETUSER 'x; $(reboot) it'\''s' '+config",
        ),
        (
            |s| s.address = Address::Socket("/run/a b".into()),
            "redis-cli -s '/run/a b' ACL",
        ),
        (|s| tls(s, false, false), "redis-cli --tls -h h -p 1 ACL"),
        (
            |s| tls(s, true, true),
            "redis-cli --tls --cacert CA_FILE --cert CERT_FILE --key KEY_FILE -h h -p 1 ACL",
        ),
    ] {
        let found = with(Check::Permissions, |server| {
            denied(server);
            change(server);
        });
        assert!(found.remedy.contains(command), "{}", found.remedy);
    }
    let certificate = with(Check::Tls, |server| tls(server, false, false));
    let command = "CONFIG SET tls-cert-file SERVER_CERT tls-key-file SERVER_KEY`";
    assert!(certificate.remedy.contains(command), "{certificate:?}");
}

#[test]
fn an_even_number_of_nodes_is_a_warning() {
    for (nodes, status) in [
        (1, Status::Ok),
        (2, Status::Warn),
        (3, Status::Ok),
        (4, Status::Warn),
    ] {
        let of_set = |number| {
            let mut server = member(number);
            let set = server.record.as_mut().expect("a record").set.as_mut();
            let set = set.expect("a set");
            (set.nodes, set.labels) = (nodes, context(nodes).labels);
            server
        };
        let found = judge((0..nodes).map(of_set).collect());
        let found = of(&found, Check::Quorum);
        assert_eq!(found.status, status, "{nodes}: {found:?}");
    }
}

#[test]
fn a_server_that_cannot_be_examined_has_one_finding() {
    for (error, check) in [
        (NodeError::unreachable("refused"), Check::Reach),
        (NodeError::TimedOut { after: MS }, Check::Reach),
        (NodeError::WrongPassword, Check::Auth),
        (
            NodeError::Tls {
                why: "expired".into(),
            },
            Check::Tls,
        ),
    ] {
        let facts = [
            Facts::Server(Err(error.clone().into())),
            Facts::Server(Ok(Box::new(member(1)))),
            Facts::Server(Ok(Box::new(member(2)))),
        ];
        let found = findings(&facts, &context(3));
        let mut of_node = found.iter().filter(|f| f.node.as_deref() == Some("n0"));
        let only = of_node.next().expect("a finding");
        assert_eq!((only.check, only.status), (check, Status::Fail), "{only:?}");
        assert!(of_node.next().is_none(), "{found:?}");
        assert_eq!(of(&found, Check::Quorum).status, Status::Warn);
        let report = |findings| Report {
            nodes: context(3).labels,
            findings,
        };
        assert!(report(found).is_reachable());
        let facts = [
            Facts::Server(Err(error.clone().into())),
            Facts::Server(Err(error.into())),
            Facts::Server(Ok(Box::new(member(2)))),
        ];
        assert!(!report(findings(&facts, &context(3))).is_reachable());
    }
}

#[test]
fn faults_of_a_store() {
    use Status::{Fail, Ok as Fine, Unknown, Warn};
    type Change = fn(&mut StoreFacts);
    for (number, (check, change, status)) in [
        (Check::Reach, (|_| {}) as Change, Fine),
        (
            Check::Reach,
            |s| s.opened = Err(NodeError::Unanswered),
            Fail,
        ),
        (
            Check::Quorum,
            |s| s.opened = Err(NodeError::Unanswered),
            Fail,
        ),
        (Check::StoreAccess, |_| {}, Fine),
        (
            Check::StoreAccess,
            |s| s.modes = Some((0o660, 0o2770)),
            Fine,
        ),
        (Check::StoreAccess, |s| s.modes = Some((0o644, 0o700)), Warn),
        (Check::StoreAccess, |s| s.modes = Some((0o600, 0o777)), Warn),
        (
            Check::StoreAccess,
            |s| s.modes = Some((0o600, 0o1777)),
            Fine,
        ),
        (Check::StoreAccess, |s| s.modes = None, Unknown),
        (
            Check::StoreLocation,
            |s| s.file_system = Ok(FileSystem::Network("nfs")),
            Fail,
        ),
        (
            Check::StoreLocation,
            |s| s.file_system = Ok(FileSystem::Memory),
            Warn,
        ),
        (
            Check::StoreLocation,
            |s| s.file_system = Err("no".into()),
            Unknown,
        ),
        (
            Check::StoreSpace,
            |s| s.space = Ok((99 << 20, 1 << 40)),
            Warn,
        ),
        (
            Check::StoreSpace,
            |s| s.space = Ok((4 << 20, 1 << 40)),
            Fail,
        ),
        (Check::StoreSpace, |s| s.space = Err("no".into()), Unknown),
        (Check::StoreProcesses, |_| {}, Fine),
        (
            Check::StoreProcesses,
            |s| {
                s.processes = Ok(Processes {
                    visible: false,
                    elsewhere: 0,
                })
            },
            Warn,
        ),
        (
            Check::StoreProcesses,
            |s| {
                s.processes = Ok(Processes {
                    visible: true,
                    elsewhere: 2,
                })
            },
            Warn,
        ),
        (
            Check::StoreProcesses,
            |s| s.processes = Err("no".into()),
            Unknown,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut store = StoreFacts {
            path: "/var/lib/locks.db".into(),
            opened: Ok(()),
            modes: Some((0o600, 0o700)),
            file_system: Ok(FileSystem::Local),
            space: Ok((1 << 40, 1 << 41)),
            processes: Ok(Processes {
                visible: true,
                elsewhere: 0,
            }),
        };
        change(&mut store);
        let found = findings(&[Facts::Store(Box::new(store))], &context(1));
        let found = of(&found, check);
        assert_eq!(found.status, status, "case {number}: {found:?}");
    }
}

#[test]
fn ids_are_unique() {
    let mut ids = std::collections::BTreeSet::new();
    for check in Check::ALL {
        assert!(ids.insert(check.id()), "{check} is there twice");
        assert_eq!(Check::from_id(check.id()), Some(*check));
    }
    assert_eq!(Check::from_id("nothing"), None);
}
