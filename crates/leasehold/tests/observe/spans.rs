//! Spans and log lines.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_testkit::setup::{lease_of, spawn_lock, until};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::in_memory;

type Fields = HashMap<&'static str, String>;

#[derive(Clone, Debug)]
struct Closed {
    name: &'static str,
    parent: Option<&'static str>,
    fields: Fields,
}

/// Keeps spans that were closed, and events.
#[derive(Clone, Default)]
struct Log {
    spans: Arc<Mutex<Vec<Closed>>>,
    events: Arc<Mutex<Vec<(Level, Fields)>>>,
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.0
            .insert(field.name(), text.trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Collect(&mut fields));
        cx.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, cx: Context<'_, S>) {
        let span = cx.span(id).unwrap();
        let mut extensions = span.extensions_mut();
        values.record(&mut Collect(extensions.get_mut::<Fields>().unwrap()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        self.events
            .lock()
            .unwrap()
            .push((*event.metadata().level(), fields));
    }

    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        let span = cx.span(&id).unwrap();
        let fields = span.extensions().get::<Fields>().cloned().unwrap();
        self.spans.lock().unwrap().push(Closed {
            name: span.name(),
            parent: span.parent().map(|parent| parent.name()),
            fields,
        });
    }
}

impl Log {
    fn closed(&self, name: &str) -> Vec<Closed> {
        let spans = self.spans.lock().unwrap();
        spans
            .iter()
            .filter(|span| span.name == name)
            .cloned()
            .collect()
    }

    fn warnings(&self, message: &str) -> Vec<Fields> {
        self.logged(Level::WARN, message)
    }

    fn logged(&self, wanted: Level, message: &str) -> Vec<Fields> {
        let events = self.events.lock().unwrap();
        let matching = events.iter().filter(|(level, fields)| {
            *level == wanted && fields.get("message").is_some_and(|m| m == message)
        });
        matching.map(|(_, fields)| fields.clone()).collect()
    }
}

/// The test's thread logs to this. The runtime of a test has no other thread.
fn logging() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let subscriber = Registry::default().with(log.clone());
    (log, tracing::subscriber::set_default(subscriber))
}

#[tokio::test]
async fn a_pair_is_two_spans_of_the_callers_span() {
    let (log, _guard) = logging();
    let client = in_memory().prefix("p/").build().unwrap();
    let outer = tracing::info_span!("request");
    let locking = tracing::Instrument::instrument(client.mutex("orders/42").lock(), outer.clone());
    let lease = locking.await.unwrap();
    drop(outer);
    let token = lease.token().to_string();
    assert_eq!(log.closed("leasehold.acquire").len(), 1);
    assert_eq!(log.closed("leasehold.hold").len(), 0, "it is held");
    lease.release().await;
    for (name, outcome) in [
        ("leasehold.acquire", "granted"),
        ("leasehold.hold", "released"),
    ] {
        let closed = log.closed(name);
        let [span] = &*closed else {
            panic!("{closed:?}");
        };
        assert_eq!(span.fields["name"], "orders/42");
        assert_eq!(span.fields["token"], token);
        assert_eq!(span.fields["outcome"], outcome);
        assert_eq!(span.parent, Some("request"), "{name}");
    }
}

#[tokio::test]
async fn a_call_that_fails_and_a_lease_that_is_lost_say_so() {
    let (log, _guard) = logging();
    let client = in_memory().build().unwrap();
    let mutex = client.mutex("a");
    let limited = mutex
        .clone()
        .with_options(|o| o.max_hold(Duration::from_millis(200)));
    let lease = limited.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    lease.lost().await;
    until("the span is closed", || {
        log.closed("leasehold.hold").len() == 1
    })
    .await;
    assert_eq!(log.closed("leasehold.hold")[0].fields["outcome"], "expired");
    assert_eq!(log.closed("leasehold.acquire")[1].fields["outcome"], "held");
    assert!(
        !log.closed("leasehold.acquire")[1]
            .fields
            .contains_key("token")
    );
    assert_eq!(log.warnings("lease lost")[0]["name"], "a");
}

/// A call that waits long warns once, and names what it waits for.
#[tokio::test]
async fn a_slow_acquire_warns_once_with_the_holder() {
    let (log, _guard) = logging();
    let node = leasehold::MemoryNode::new("memory");
    let client = |label: &str| {
        leasehold::Client::builder()
            .custom_node(node.clone())
            .options(leasehold::Options::default().label(label))
            .warn_slow_acquire(Duration::from_millis(50))
            .build()
            .unwrap()
    };
    let (holder, waiter) = (client("the-holder"), client(""));
    let held = holder.mutex("a").lock().await.unwrap();
    let first = spawn_lock(waiter.mutex("a"));
    let second = spawn_lock(waiter.mutex("a"));
    const SLOW: &str = "still waiting for a lock";
    until("both have warned", || log.warnings(SLOW).len() == 2).await;
    // Long enough for more refusals.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let warnings = log.warnings(SLOW);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let says = |text: &str| warnings.iter().any(|fields| fields["why"].contains(text));
    assert!(
        says("the-holder") && says("another task of this process"),
        "{warnings:?}"
    );
    assert!(warnings.iter().all(|fields| fields["name"] == "a"));
    held.release().await;
    lease_of(first).await.release().await;
    lease_of(second).await.release().await;
}

/// Standing by is what the candidates of an election are meant to do.
#[tokio::test]
async fn a_candidate_that_stands_by_does_not_warn() {
    let (log, _guard) = logging();
    let builder = in_memory().warn_slow_acquire(Duration::from_millis(50));
    let client = builder.build().unwrap();
    let election = client.election("scheduler");
    let leader = election.campaign("web-1").await.unwrap();
    let standby = tokio::spawn(election.campaign("web-2"));
    until("it stands by", || client.stats().waiters == 1).await;
    let held = client.mutex("a").lock().await.unwrap();
    let waiter = spawn_lock(client.mutex("a"));
    let warned = || log.warnings("still waiting for a lock");
    until("the other call has warned", || !warned().is_empty()).await;
    // Long enough for more refusals.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let names: Vec<_> = warned()
        .iter()
        .map(|fields| fields["name"].clone())
        .collect();
    assert_eq!(names, ["a"]);
    held.release().await;
    leader.release().await;
    lease_of(waiter).await.release().await;
    lease_of(standby).await.release().await;
}

/// A call behind another task of its client needs no timer, so any executor can run it.
#[test]
fn a_call_waits_for_another_task_outside_of_a_runtime() {
    let (_log, _guard) = logging();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (client, _held) = runtime.block_on(async {
        let client = in_memory().build().unwrap();
        let held = client.mutex("a").lock().await.unwrap();
        (client, held)
    });
    let mut waiting = Box::pin(client.mutex("a").lock());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    assert_eq!(client.stats().waiters, 1);
}

/// A server that stops and returns is one warning and one line at INFO, however many attempts to
/// connect fail meanwhile.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_node_that_goes_and_comes_is_logged_once_per_change() {
    use leasehold_testkit::RedisServer;
    use leasehold_testkit::setup::{LONG, fresh};

    const DOWN: &str = "node is down";
    const UP: &str = "node is up";
    let (log, _guard) = logging();
    let mut servers = RedisServer::start_many(1);
    let port = servers[0].port().to_string();
    let client = fresh(&servers).build().unwrap();
    client.ready(LONG).await.unwrap();
    until("it is up", || log.logged(Level::INFO, UP).len() == 1).await;
    assert!(log.warnings(DOWN).is_empty());
    servers[0].kill();
    // Links notice what happens to a server when they use it.
    let busy = {
        let client = client.clone();
        tokio::spawn(async move {
            loop {
                let _ = client.mutex("busy").try_lock().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    until("it is down", || !log.warnings(DOWN).is_empty()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    servers[0].restart();
    until("it is up again", || log.logged(Level::INFO, UP).len() == 2).await;
    busy.abort();
    let down = log.warnings(DOWN);
    assert_eq!(down.len(), 1, "{down:?}");
    assert!(down[0]["node"].contains(&port), "{down:?}");
    assert!(log.logged(Level::INFO, UP)[1]["node"].contains(&port));
}
