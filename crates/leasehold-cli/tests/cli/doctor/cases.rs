//! One table: each check, and a deployment that has its fault.

use std::net::TcpStream;

use leasehold_testkit::setup::blocking::until;
use leasehold_testkit::{RedisServer, SentinelService, TempDir, free_port, unix_us};

use super::patient::{Patient, as_if_it_were_old, on_a_faulty_machine, with_certificate};
use super::{open_to_all, skip, works};
use crate::{Place, Running, UNTIL_GO, wrapped};

/// A fault that a check must find.
pub(super) struct Case {
    pub(super) id: &'static str,
    pub(super) status: &'static str,
    /// Part of what was seen.
    pub(super) says: &'static str,
    /// `None` if the fault cannot be had on this machine.
    pub(super) set_up: fn() -> Option<Patient>,
}

/// Makes the table, and a test of each case.
macro_rules! cases {
    ($($test:ident: $id:literal $status:literal $says:literal => $set_up:expr;)*) => {
        pub(super) const ALL: &[Case] = &[$(Case {
            id: $id,
            status: $status,
            says: $says,
            set_up: || $set_up.into(),
        },)*];

        $(#[test]
        fn $test() {
            let is_it = |case: &&Case| {
                (case.id, case.status, case.says) == ($id, $status, $says)
            };
            let case = ALL.iter().find(is_it);
            super::show(case.expect("the case"));
        })*
    };
}

cases! {
    a_dead_server: "reach" "fail" "not connected" => {
        Patient::local().nodes(format!("redis://127.0.0.1:{}", free_port()))
    };
    a_silent_server: "reach" "fail" "no answer within" => {
        let mut server = RedisServer::start();
        server.stop();
        Patient::new(vec![server])
    };
    a_missing_password: "auth" "fail" "password" => {
        one(&["--requirepass", "secret"])
    };
    a_missing_command: "permissions" "fail" "+setrange, +zadd" => as_user("+@all -setrange -zadd");
    a_missing_key_pattern: "permissions" "fail" "~leasehold:*" => as_user("+@all resetkeys ~orders/*");
    a_certificate_of_two_days: "tls" "fail" "the certificate is valid for" => with_certificate("2");
    a_certificate_of_ten_days: "tls" "warn" "the certificate is valid for" => with_certificate("10");
    a_replica: "role" "fail" "a replica of 127.0.0.1:" => {
        let (master, replica) = pair();
        let url = replica.url();
        Patient::new(vec![master, replica]).nodes(url)
    };
    a_server_under_two_names: "same-server" "fail" "the same server" => {
        let server = RedisServer::start();
        let socket = server.dir().join("redis.sock");
        let nodes = format!("{},redis+unix://{}", server.url(), socket.display());
        Patient::new(vec![server]).nodes(nodes)
    };
    a_master_and_its_replica: "related" "fail" "a master and its replica" => {
        let (master, replica) = pair();
        Patient::new(vec![master, replica])
    };
    a_member_of_a_cluster: "cluster" "fail" "Redis Cluster" => one(&["--cluster-enabled", "yes"]);
    a_cluster_of_one_server: "cluster" "fail" "CROSSSLOT" => cluster();
    a_cluster_and_a_prefix_with_a_hash_tag: "cluster" "warn" "all names with this prefix" => {
        cluster().args(&["--prefix", "{locks}:"])
    };
    a_silent_sentinel: "sentinels" "warn" "1 of 3 sentinels do not answer" => {
        let mut service = SentinelService::start(1);
        service.sentinels[2].kill();
        Patient::local().nodes(service.url()).holding(service)
    };
    sentinels_that_are_too_few: "sentinels" "fail" "no failover is possible" => {
        // Those that the URL names answer.
        let mut service = SentinelService::start(1);
        let url = service.url();
        let (sentinels, name) = url.rsplit_once('/').expect("a service");
        let (first, _) = sentinels.split_once(',').expect("several");
        let nodes = format!("{first}/{name}");
        service.sentinels[1].kill();
        service.sentinels[2].kill();
        Patient::local().nodes(nodes).holding(service)
    };
    a_full_house: "reach" "fail" "max number of clients" => {
        let server = RedisServer::start_with(&["--maxclients", "2"]);
        let open = || TcpStream::connect(("127.0.0.1", server.port())).expect("connected");
        let open = [open(), open(), open()];
        Patient::new(vec![server]).holding(open)
    };
    a_master_with_a_replica: "replicas" "warn" "1 replica, and no restart guard" => followed();
    a_master_that_writes_alone: "split-brain" "warn" "min-replicas-to-write 0" => followed();
    a_policy_that_evicts: "eviction" "warn" "volatile-ttl" => {
        one(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"])
    };
    a_server_that_evicts: "eviction" "fail" "were evicted" => {
        one(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-random"])
            .while_it(|server| server.send(FILL))
    };
    a_full_server: "memory" "fail" "of maxmemory 4mb" => {
        let patient = one(&["--maxmemory", "4mb"]);
        patient.while_it(|server| server.send(FILL))
    };
    a_server_without_persistence: "persistence" "fail" "no AOF and no restart guard" => one(&[]);
    a_server_that_cannot_save: "persistence" "fail" "rdb_last_bgsave_status" => {
        let server = RedisServer::start();
        // A file cannot replace a directory.
        std::fs::create_dir(server.dir().join("dump.rdb")).expect("a directory");
        server.run("SET x y");
        server.run("BGSAVE");
        let failed = || server.info("persistence", "rdb_last_bgsave_status") == "err";
        until("the save fails", failed);
        Patient::new(vec![server])
    };
    a_slow_disk: "fsync" "warn" "an fsync has been pending" => {
        let (server, machine) = on_a_faulty_machine();
        server.run("CONFIG SET appendonly yes");
        let rewritten = || server.info("persistence", "aof_rewrite_in_progress") == "0"
            && server.info("persistence", "aof_rewrite_scheduled") == "0";
        until("the file is written", rewritten);
        std::fs::write(machine.path().join("slow-disk"), "").expect("written");
        Patient::new(vec![server]).holding(machine).while_it(|server| server.send("SET x y"))
    };
    new_servers: "restart" "warn" "the node votes in" => {
        Patient::new(RedisServer::start_many(3)).args(&["--restart-guard", "10m"])
    };
    a_clock_that_has_stopped: "clock" "fail" "jumped or has stopped" => {
        let (server, clock) = RedisServer::start_frozen(unix_us(), &[]);
        Patient::new(vec![server]).holding(clock)
    };
    clocks_that_differ: "clock" "fail" " behind 127.0.0.1:" => {
        // Both are stopped, which is not what this is about: they are also an hour apart.
        let (one, clock) = RedisServer::start_frozen(unix_us(), &[]);
        let (other, wrong) = RedisServer::start_frozen(unix_us() + 3_600_000_000, &[]);
        Patient::new(vec![one, other]).holding((clock, wrong))
    };
    a_server_that_stalls: "latency" "fail" "a request may take 10ms" => {
        one(&["--enable-debug-command", "yes"])
            .args(&["--ttl", "10ms"])
            .while_it(|server| server.send("DEBUG SLEEP 0.05"))
    };
    a_slow_command: "slow-commands" "warn" "DEBUG took" => {
        let server = RedisServer::start_with(&["--enable-debug-command", "yes"]);
        server.run("DEBUG SLEEP 0.3");
        Patient::new(vec![server])
    };
    a_busy_server: "load" "warn" "% of a processor" => {
        let (server, machine) = on_a_faulty_machine();
        std::fs::write(machine.path().join("busy"), "").expect("written");
        Patient::new(vec![server]).holding(machine)
    };
    a_server_with_few_connections_left: "clients" "warn" "of 16 connections" => {
        let server = RedisServer::start_with(&["--maxclients", "16"]);
        let open = || TcpStream::connect(("127.0.0.1", server.port())).expect("connected");
        let open: Vec<_> = (0..12).map(|_| open()).collect();
        until("they are connected", || server.info("clients", "connected_clients") == "13");
        Patient::new(vec![server]).holding(open)
    };
    a_server_that_closes_connections: "idle-timeout" "warn" "idle for 300 s" => {
        one(&["--timeout", "300"])
    };
    a_user_without_channels: "push" "warn" "PUBLISH is refused" => as_user("+@all -publish");
    a_user_without_scripts: "scripts" "fail" "the server refuses scripts" => as_user("+@all -eval");
    an_old_server: "version" "warn" "redis 5." => {
        let server = RedisServer::start();
        let old = as_if_it_were_old(&server);
        Patient::new(vec![server]).nodes(old)
    };
    other_constants: "constants" "fail" "restart guard 60s; this client: restart guard 30s" => {
        let patient = Patient::new(RedisServer::start_many(3)).args(&["--restart-guard", "30s"]);
        patient.place.ok(&["init"]);
        patient
    };
    another_set: "set" "fail" "on record, and this client's nodes are" => {
        let servers = RedisServer::start_many(3);
        Place::redis(&servers).ok(&["init"]);
        let one = servers[0].url();
        Patient::new(servers).nodes(one)
    };
    a_record_that_was_overwritten: "set" "fail" "`leasehold:epoch` contains text that is not a record" => {
        let patient = one(&[]);
        patient.place.ok(&["run", "x", "--", "true"]);
        patient.server(0).run("SET leasehold:epoch junk");
        patient
    };
    a_lock_without_a_ttl: "leftovers" "warn" "locks without a TTL: orders/7" => {
        let server = RedisServer::start();
        let patient = Patient::new(vec![server]);
        patient.place.ok(&["run", "orders/7", "--", "true"]);
        patient.place.ok(&["run", "orders/8", "--", "true"]);
        patient.server(0).run("SET orders/7 another-program");
        patient
    };
    a_lock_that_outlives_the_guard: "leftovers" "warn" "outlive the restart guard" => {
        let patient = Patient::new(RedisServer::start_many(3));
        patient.place.ok(&["init"]);
        patient.place.ok(&["run", "x", "--", "true"]);
        patient.server(0).run("SET x another-program PX 9000000");
        patient
    };
    a_store_for_everybody: "store-access" "warn" "every user may" => {
        let patient = Patient::local();
        patient.place.ok(&["run", "x", "--", "true"]);
        open_to_all(&patient.place.file("state/leasehold/locks.db"));
        patient
    };
    a_store_in_memory: "store-location" "warn" "in memory" => {
        let dir = TempDir::new();
        small_disk("a store in memory", dir, "64m")
    };
    a_store_without_space: "store-space" "fail" "free" => {
        let dir = TempDir::new();
        small_disk("a store without space", dir, "1m")
    };
    a_store_with_holders_elsewhere: "store-processes" "warn" "another container" => {
        const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        if works(UNSHARE[0], &[&UNSHARE[1..], &["true"]].concat()) {
            let patient = Patient::local();
            let line = format!("echo > started; {UNTIL_GO}");
            let inner = patient.place.command(&["run", "x", "--ttl", "1m", "-c", &line]);
            let holder = Running::start(&mut wrapped(UNSHARE[0], &UNSHARE[1..], &inner));
            patient.place.await_file("started");
            Some(patient.holding(Ended(holder)))
        } else {
            skip("holders elsewhere", "pid namespaces are not permitted here");
            None
        }
    };
    two_nodes: "quorum" "warn" "2 nodes; no node may fail" => Patient::new(RedisServer::start_many(2));
    a_majority_that_is_dead: "quorum" "fail" "1 of 3 nodes vote" => {
        let server = RedisServer::start();
        let nodes = format!("{},redis://127.0.0.1:1,redis://127.0.0.1:2", server.url());
        Patient::new(vec![server]).nodes(nodes).args(&["--restart-guard", "off"])
    };
}

/// A script that writes 2 MB.
const FILL: &str = "EVAL \"for i = 1, 200 do redis.call('SET', 'k' .. math.random(1, 100000), \
                    string.rep('x', 10000)) end\" 0";

/// Kills its process when it is dropped.
struct Ended(#[allow(dead_code)] Running);

/// One server with these arguments.
fn one(args: &[&str]) -> Patient {
    Patient::new(vec![RedisServer::start_with(args)])
}

/// A member of a cluster that has all slots.
pub(super) fn cluster() -> Patient {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.run("CLUSTER ADDSLOTSRANGE 0 16383");
    let works = || server.run("CLUSTER INFO").contains("cluster_state:ok");
    until("the cluster works", works);
    Patient::new(vec![server])
}

/// A server, and a user of it with these permissions.
pub(super) fn as_user(permissions: &str) -> Patient {
    let server = RedisServer::start();
    server.run(&format!("ACL SETUSER u on >pw ~* &* {permissions}"));
    let url = server.url().replace("redis://", "redis://u:pw@");
    Patient::new(vec![server]).nodes(url)
}

/// A master and its replica.
pub(super) fn pair() -> (RedisServer, RedisServer) {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    until("the replica follows", || {
        let online = master
            .info("replication", "slave0")
            .contains("state=online");
        online && replica.info("replication", "master_link_status") == "up"
    });
    (master, replica)
}

/// A master with a replica, as the only node.
fn followed() -> Patient {
    let (master, replica) = pair();
    let url = master.url();
    Patient::new(vec![master, replica]).nodes(url)
}

/// A store on a small disk in memory, which only the tool sees.
fn small_disk(what: &str, dir: TempDir, size: &str) -> Option<Patient> {
    let place = dir.path().display().to_string();
    let mount = format!(r#"mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@""#);
    let under = ["unshare", "--mount", "sh", "-c", &mount, &place];
    if !works(under[0], &[&under[1..], &["true"]].concat()) {
        skip(what, "mounting is not permitted here");
        return None;
    }
    let mut patient = Patient::local()
        .nodes(format!("local:{place}/locks.db"))
        .holding(dir);
    patient.under = under.map(str::to_owned).into();
    Some(patient)
}
