use redis::Value;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn service(url: &str) -> Result<Service, String> {
    Service::parse(url, SECOND)
}

#[test]
fn urls() {
    let label = |url: &str| service(url).map(|service| service.label());
    for (url, expected) in [
        ("redis+sentinel://a/x", "x@a:26379"),
        (
            "redis+sentinel://b:1,a,[::1]/x.y-z_0",
            "x.y-z_0@[::1]:26379,a:26379,b:1",
        ),
        ("valkey+sentinel://u:p@a,b,a/x/3", "x@a:26379,b:26379/3"),
        (
            "redis+sentinel://:p%40%2C@a/x/?sentinel_pass=q%26",
            "x@a:26379",
        ),
    ] {
        assert_eq!(label(url).as_deref(), Ok(expected), "{url}");
    }
    for (url, says) in [
        ("redis+sentinel://a", "the name of the service is missing"),
        ("redis+sentinel://a/", "the name of the service is missing"),
        (
            "redis+sentinel://a,,b/x",
            "the address of a sentinel is missing",
        ),
        (
            "redis+sentinel:///x",
            "the address of a sentinel is missing",
        ),
        ("redis+sentinel://a:port/x", "the address or the password"),
        (
            "redis+sentinel://a/x/y",
            "the database after the service is not a number",
        ),
        (
            "redis+sentinel://a/x y",
            "the name of the service may contain only",
        ),
        (
            "redis+sentinel://a/x?pass=secret",
            "a parameter after the `?` that is not known",
        ),
        (
            "redis+sentinel://a/x?sentinel_user=u",
            "sentinel_user needs sentinel_pass",
        ),
        (
            "redis+sentinel://a/x?sentinel_tls=secret",
            "sentinel_tls must be yes or no",
        ),
    ] {
        let error = label(url).expect_err(url);
        assert!(error.contains(says), "{url}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

/// The master's login is in front of the host, the sentinels' is in the parameters.
#[test]
fn logins_are_kept_apart() {
    let url = "redis+sentinel://me:a%40b@s1,s2/x/2?sentinel_user=watch&sentinel_pass=c%26d";
    let service = service(url).expect("a URL");
    let master = service.master.redis_settings();
    assert_eq!(
        (master.username(), master.password()),
        (Some("me"), Some("a@b"))
    );
    assert_eq!(master.db(), 2);
    for sentinel in &service.sentinels {
        let settings = sentinel.redis_settings();
        assert_eq!(
            (settings.username(), settings.password()),
            (Some("watch"), Some("c&d"))
        );
        assert_eq!(settings.db(), 0);
    }
}

#[cfg(feature = "tls")]
#[test]
fn the_sentinels_use_tls_like_the_master_unless_the_url_says_otherwise() {
    for (url, master, sentinels) in [
        ("redis+sentinel://a/x", false, false),
        ("rediss+sentinel://a/x", true, true),
        ("rediss+sentinel://a/x?sentinel_tls=no", true, false),
        ("redis+sentinel://a/x?sentinel_tls=yes", false, true),
    ] {
        let service = service(url).expect(url);
        let is_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        assert_eq!(
            (service.tls, is_tls(&service.sentinels[0])),
            (master, sentinels),
            "{url}"
        );
    }
}

fn answer(address: Option<(&str, &str)>, fields: &[(&str, &str)]) -> Answer {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let fields = fields
        .iter()
        .flat_map(|(name, value)| [text(name), text(value)]);
    let address = address.map_or(Value::Nil, |(host, port)| {
        Value::Array(vec![text(host), text(port)])
    });
    read(&[Value::Array(fields.collect()), address])
}

fn opinion(address: (&str, &str), fields: &[(&str, &str)]) -> Opinion {
    match answer(Some(address), fields) {
        Answer::Knows(opinion) => opinion,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_master_that_is_down_is_not_used() {
    for (flags, down) in [
        ("master", false),
        ("master,disconnected", false),
        ("s_down,master", true),
        ("s_down,o_down,master,failover_in_progress", true),
    ] {
        let fields = [("ip", "10.0.0.1"), ("port", "6379"), ("flags", flags)];
        assert_eq!(opinion(("10.0.0.1", "6379"), &fields).down, down, "{flags}");
        // The replica that is being promoted is not down.
        assert!(!opinion(("10.0.0.2", "6379"), &fields).down, "{flags}");
    }
}

#[test]
fn a_majority_of_all_sentinels_must_name_the_master() {
    let of = |host, epoch, flags| {
        let fields = [
            ("ip", host),
            ("port", "1"),
            ("config-epoch", epoch),
            ("flags", flags),
        ];
        opinion((host, "1"), &fields)
    };
    let (old, new) = (of("a", "1", "master"), of("b", "2", "master"));
    let (cut_off, unsure) = (of("a", "1", "s_down,master"), of("b", "2", "s_down,master"));
    let foreign = of("c", "50", "master");
    let agreed = |of: &[&Opinion], sentinels| agreed(of, sentinels).cloned();
    for (opinions, sentinels, expected) in [
        (&[&new][..], 1, Some(&new)),
        // Of all sentinels, not of those that answer.
        (&[&new], 2, None),
        (&[&new], 3, None),
        (&[&new, &new], 3, Some(&new)),
        (&[&new, &unsure], 3, Some(&new)),
        (&[&unsure, &unsure, &new], 3, Some(&new)),
        (&[&cut_off, &cut_off], 3, Some(&cut_off)),
        // A sentinel that has missed a failover is outvoted. One that knows of a newer one is not.
        (&[&new, &old, &new], 3, Some(&new)),
        (&[&old, &new, &old], 3, None),
        // Neither is one of another deployment, whose service has the same name.
        (&[&new, &new, &foreign], 3, None),
        (&[&foreign], 3, None),
        (&[&old, &new, &foreign], 3, None),
        (&[], 3, None),
    ] {
        assert_eq!(
            agreed(opinions, sentinels).as_ref(),
            expected,
            "{opinions:?} of {sentinels}"
        );
    }
    // A failover begins: one sentinel names the promoted replica, with the configuration of before.
    assert_eq!(
        agreed(&[&of("a", "1", "master"), &of("b", "1", "master"), &old], 3),
        None
    );
}

#[test]
fn answers_that_name_no_master() {
    assert_eq!(answer(None, &[]), Answer::Unknown);
    assert!(matches!(answer(Some(("a", "x")), &[]), Answer::Failed(_)));
    assert!(matches!(read(&[Value::Nil]), Answer::Failed(_)));
    // Without permission for SENTINEL MASTER, the address alone is enough.
    assert_eq!(opinion(("a", "1"), &[]).epoch, 0);
}

/// A network partition may leave a client with the one sentinel that has lost its configuration.
#[test]
fn a_minority_that_refuses_is_not_the_last_word() {
    let unreachable = || Answer::Failed(NodeError::unreachable("refused"));
    let silent = || Answer::Failed(NodeError::TimedOut { after: SECOND });
    let password = || Answer::Failed(NodeError::WrongPassword);
    let other = || {
        let why = "not a sentinel".into();
        Answer::Failed(NodeError::Refused { why })
    };
    let knows = || answer(Some(("10.0.0.1", "6379")), &[]);
    for (answers, is_permanent, says) in [
        (vec![silent(), unreachable()], false, "b: not connected"),
        (vec![Answer::Unknown], true, "do not know a service"),
        (
            vec![Answer::Unknown, silent(), silent()],
            false,
            "a: it does not know",
        ),
        (
            vec![unreachable(), Answer::Unknown],
            false,
            "b: it does not know",
        ),
        (
            vec![Answer::Unknown, Answer::Unknown, silent()],
            true,
            "sentinels (a, b)",
        ),
        (
            vec![Answer::Unknown, other(), other()],
            true,
            "sentinels (a)",
        ),
        (
            vec![password(), silent(), unreachable()],
            false,
            "a: authentication",
        ),
        (
            vec![password(), password(), silent()],
            true,
            "sentinel_user",
        ),
        (vec![password(), other()], true, "sentinel_user"),
        (vec![other(), other()], false, "not a sentinel"),
        (
            vec![knows(), silent(), silent()],
            false,
            "no majority of the sentinels agrees",
        ),
        (
            vec![knows(), Answer::Unknown, silent()],
            false,
            "a: it is 10.0.0.1:6379",
        ),
        (
            vec![knows(), Answer::Unknown, Answer::Unknown],
            true,
            "sentinels (b, c)",
        ),
    ] {
        let answers: Vec<_> = ["a", "b", "c"]
            .map(str::to_owned)
            .into_iter()
            .zip(answers)
            .collect();
        let error = service("redis+sentinel://a/x").unwrap().not_found(&answers);
        assert_eq!(error.is_permanent(), is_permanent, "{answers:?}: {error}");
        assert!(error.to_string().contains(says), "{answers:?}: {error}");
    }
}
