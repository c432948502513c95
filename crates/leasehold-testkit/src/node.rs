//! A node that a test controls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold::node::{Call, Claim, Node, NodeError, Notifier, Survey, Verb, Watch};
use leasehold::{MemoryNode, Name};

type Submit = dyn Fn(&MemoryNode, Call) + Send + Sync;
type Delay = dyn Fn(Verb) -> Duration + Send + Sync;

/// A node in memory that records its requests, can be unreachable, and can answer late or by a
/// closure. Clones are the same node.
///
/// ```
/// use leasehold::{Client, MemoryNode};
/// use leasehold_testkit::TestNode;
///
/// let node = TestNode::new(&MemoryNode::new("memory"));
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let client = Client::builder().custom_node(node.clone()).build().unwrap();
/// node.set_unreachable(true);
/// assert!(client.mutex("a").try_lock().await.is_err());
/// # });
/// ```
#[derive(Clone)]
pub struct TestNode {
    node: MemoryNode,
    submit: Arc<Submit>,
    notifies: bool,
    delay: Arc<Mutex<Box<Delay>>>,
    unreachable: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<(Verb, u64)>>>,
}

impl TestNode {
    /// A node that behaves like this one at first.
    #[must_use]
    pub fn new(node: &MemoryNode) -> Self {
        Self {
            node: node.clone(),
            submit: Arc::new(|node, call| node.submit(call)),
            notifies: true,
            delay: Arc::new(Mutex::new(Box::new(|_| Duration::ZERO))),
            unreachable: Arc::default(),
            requests: Arc::default(),
        }
    }

    /// Passes each request to a closure instead of the node in memory.
    #[must_use]
    pub fn submit_with(self, submit: impl Fn(&MemoryNode, Call) + Send + Sync + 'static) -> Self {
        let submit = Arc::new(submit);
        Self { submit, ..self }
    }

    /// Makes the node one that cannot notify waiters.
    #[must_use]
    pub fn without_notifications(self) -> Self {
        let notifies = false;
        Self { notifies, ..self }
    }

    /// Delays answers by a time that depends on the verb.
    #[must_use]
    pub fn answering_after(self, delay: impl Fn(Verb) -> Duration + Send + Sync + 'static) -> Self {
        self.set_delay(delay);
        self
    }

    /// Delays answers from now on.
    pub fn set_delay(&self, delay: impl Fn(Verb) -> Duration + Send + Sync + 'static) {
        *locked(&self.delay) = Box::new(delay);
    }

    /// Makes the node unreachable, or reachable again.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.unreachable.store(unreachable, Ordering::SeqCst);
    }

    /// How many requests with such a verb have reached the node.
    pub fn count(&self, counts: impl Fn(Verb) -> bool) -> usize {
        let requests = locked(&self.requests);
        requests.iter().filter(|(verb, _)| counts(*verb)).count()
    }

    /// The verbs and tokens of the requests that have reached the node since the last time.
    #[must_use]
    pub fn take_requests(&self) -> Vec<(Verb, u64)> {
        std::mem::take(&mut *locked(&self.requests))
    }

    /// The node in memory.
    #[must_use]
    pub fn memory(&self) -> &MemoryNode {
        &self.node
    }

    /// Whether the node has a lock of this name.
    ///
    /// # Panics
    /// If the name is invalid.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.node.get(&Name::new(name).expect("a name")).is_some()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no test panics while it holds this")
}

impl Node for TestNode {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn has_semaphores(&self) -> bool {
        self.node.has_semaphores()
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        match self.notifies {
            true => self.node.watch(claim, notifier),
            false => None,
        }
    }

    fn submit(&self, call: Call) {
        if self.unreachable.load(Ordering::SeqCst) {
            return call.answer(Err(NodeError::unreachable("no connection")));
        }
        let (verb, token) = (call.verb(), call.claim().token());
        locked(&self.requests).push((verb, token));
        let delay = locked(&self.delay)(verb);
        let call = match delay {
            Duration::ZERO => call,
            delay => call.relay(move |call, answer| {
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    call.answer(answer);
                });
            }),
        };
        (self.submit)(&self.node, call);
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        match self.unreachable.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(NodeError::unreachable("no connection")) }),
            false => self.node.survey(name),
        }
    }
}
