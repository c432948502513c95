//! Delivers events to observers, so that no observer can harm a lock.
//!
//! Rule: no observer runs on a task that renews leases or talks to a node, nor under a lock of the
//! client. Such tasks [queue](Observers::queue) their events, and a task of their own delivers them.
//! When the runtime ends, that task ends, too. Then [`Shared::deliver_last`] runs observers where a lease
//! is lost, which includes the drop of the task that renewed it: nothing is renewed any more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{self, error::SendError, error::TryRecvError};

use super::class::Classes;
use super::counters::Counter;
use super::{Event, Observer};

/// How many [samples](is_sample) wait for their delivery. Further ones are dropped.
const QUEUE: usize = 1024;

/// How often the task yields, when its runtime ends, to sends that are under way. A send takes much less
/// than a microsecond.
const MAX_YIELDS: u32 = 1000;

/// Whether an event is one measurement of many, so that an observer can miss it. The others change a
/// state: an observer that missed one would be wrong about that state from then on. There are as many of
/// these as leases end and nodes change, so they need no limit.
fn is_sample(event: &Event) -> bool {
    matches!(event, Event::Request(_) | Event::Renewal(_))
}

/// The observers of a client.
pub(super) struct Observers {
    shared: Arc<Shared>,
    pub(super) classes: Classes,
    /// Whether one of them wants requests.
    pub(super) wants_requests: bool,
    /// One queue for all events, which keeps their order.
    queue: mpsc::UnboundedSender<Event>,
    /// Until the task is started.
    queued: Mutex<Option<mpsc::UnboundedReceiver<Event>>>,
    pub(super) dropped: Counter,
}

struct Shared {
    /// With whether each of them wants requests.
    list: Vec<(Arc<dyn Observer>, bool)>,
    panics: Counter,
    /// How many samples are in the queue.
    samples: AtomicUsize,
}

impl Observers {
    /// `None` if there are none.
    pub(super) fn new(list: Vec<Arc<dyn Observer>>) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        let (queue, queued) = mpsc::unbounded_channel();
        let panics = Counter::default();
        let with_wants = |observer: Arc<dyn Observer>| {
            let wants = catch_unwind(AssertUnwindSafe(|| observer.wants_requests()));
            let wants = wants.unwrap_or_else(|_| {
                panics.add();
                false
            });
            (observer, wants)
        };
        let list: Vec<_> = list.into_iter().map(with_wants).collect();
        Some(Self {
            wants_requests: list.iter().any(|(_, wants)| *wants),
            shared: Arc::new(Shared {
                list,
                panics,
                samples: AtomicUsize::new(0),
            }),
            classes: Classes::default(),
            queue,
            queued: Mutex::new(Some(queued)),
            dropped: Counter::default(),
        })
    }

    /// Starts the task that delivers queued events. It ends when the client is gone and all are
    /// delivered.
    pub(super) fn start(&self) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queued) = queued.take() {
            let mut delivery = Delivery {
                queued,
                shared: Arc::clone(&self.shared),
            };
            tokio::spawn(async move {
                while let Some(event) = delivery.queued.recv().await {
                    delivery.shared.take(&event);
                    delivery.shared.deliver(&event);
                }
            });
        }
    }

    /// Delivers an event on this task.
    pub(super) fn deliver(&self, event: &Event) {
        self.shared.deliver(event);
    }

    /// Delivers an event on a task of its own.
    pub(super) fn queue(&self, event: Event) {
        if is_sample(&event) && self.shared.samples.fetch_add(1, Ordering::Relaxed) >= QUEUE {
            self.shared.take(&event);
            return self.dropped.add();
        }
        if let Err(SendError(event)) = self.queue.send(event) {
            self.shared.deliver_last(&event);
        }
    }

    pub(super) fn panics(&self) -> u64 {
        self.shared.panics.get()
    }
}

/// The task that delivers. It may end with its runtime, before it has delivered everything.
struct Delivery {
    queued: mpsc::UnboundedReceiver<Event>,
    shared: Arc<Shared>,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.queued.close();
        // While a send is under way, the queue may be empty, but it is not disconnected.
        let mut yields = 0..MAX_YIELDS;
        loop {
            match self.queued.try_recv() {
                Ok(event) => self.shared.deliver_last(&event),
                Err(TryRecvError::Empty) if yields.next().is_some() => std::thread::yield_now(),
                Err(_) => return,
            }
        }
    }
}

impl Shared {
    /// Counts an event that leaves the queue, or does not enter it.
    fn take(&self, event: &Event) {
        if is_sample(event) {
            self.samples.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Delivers an event, on this task, whose own task has ended with its runtime: the end of a lease is
    /// the last that observers hear. Leases are lost outside of all locks of the client. Requests are
    /// not always reported so, and mean nothing by now.
    fn deliver_last(&self, event: &Event) {
        if matches!(event, Event::Ended(_)) {
            self.deliver(event);
        }
    }

    fn deliver(&self, event: &Event) {
        let is_request = matches!(event, Event::Request(_));
        for (observer, wants_requests) in &self.list {
            if is_request && !wants_requests {
                continue;
            }
            // The panic hook has reported the panic.
            if catch_unwind(AssertUnwindSafe(|| observer.event(event))).is_err() {
                self.panics.add();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_testkit::setup::until;

    use super::*;
    use crate::base::name::Name;
    use crate::node::Verb;
    use crate::observe::{End, Ended, Request};

    /// The tokens of leases that ended, and how many requests there were.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<(Vec<u64>, usize)>>);

    impl Observer for Seen {
        fn event(&self, event: &Event) {
            let (ended, requests) = &mut *self.0.lock().unwrap();
            match event {
                Event::Ended(lease) => ended.push(lease.token),
                _ => *requests += 1,
            }
        }

        fn wants_requests(&self) -> bool {
            true
        }
    }

    fn ended(token: u64) -> Event {
        Event::Ended(Ended {
            name: Name::new("a").unwrap(),
            class: "a".into(),
            token,
            end: End::Lost,
            loss: None,
            held: Duration::ZERO,
        })
    }

    fn request() -> Event {
        Event::Request(Request {
            index: 0,
            node: "a".into(),
            verb: Verb::Extend,
            took: Duration::ZERO,
            error: None,
        })
    }

    fn observers() -> (Seen, Observers) {
        let seen = Seen::default();
        let observers = Observers::new(vec![Arc::new(seen.clone())]);
        (seen, observers.expect("there is one"))
    }

    #[tokio::test]
    async fn only_samples_are_dropped() {
        let (seen, observers) = observers();
        let most = QUEUE as u64;
        for token in 0..2 * most {
            observers.queue(request());
            observers.queue(ended(token));
        }
        assert_eq!(observers.dropped.get(), most);
        observers.start();
        let all = || seen.0.lock().unwrap().0.len() == 2 * QUEUE;
        until("all ends are delivered", all).await;
        assert!(seen.0.lock().unwrap().0.is_sorted());
        assert_eq!(seen.0.lock().unwrap().1, QUEUE);
        // There is room again.
        observers.queue(request());
        let one_more = || seen.0.lock().unwrap().1 > QUEUE;
        until("the request is delivered", one_more).await;
        assert_eq!(observers.dropped.get(), most);
    }

    /// Requests are reported under locks of the client, where no observer may run.
    #[test]
    fn after_the_runtime_has_ended_only_ends_of_leases_are_delivered() {
        let (seen, observers) = observers();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async { observers.start() });
        // In the queue when the runtime ends, and after it has ended.
        for token in 0..2 {
            observers.queue(request());
            observers.queue(ended(token));
        }
        assert_eq!(*seen.0.lock().unwrap(), (vec![], 0));
        drop(runtime);
        assert_eq!(*seen.0.lock().unwrap(), (vec![0, 1], 0));
        observers.queue(request());
        observers.queue(ended(2));
        assert_eq!(*seen.0.lock().unwrap(), (vec![0, 1, 2], 0));
    }

    /// Losses that another thread reports while the runtime ends.
    #[test]
    fn no_end_is_lost_while_the_runtime_ends() {
        const ENDS: u64 = 100;
        for round in 0..1000 {
            let (seen, observers) = observers();
            let mut delivery = Delivery {
                queued: observers.queued.lock().unwrap().take().unwrap(),
                shared: Arc::clone(&observers.shared),
            };
            let ends: Vec<_> = (0..ENDS).map(ended).collect();
            let mut received = 0;
            std::thread::scope(|scope| {
                scope.spawn(|| ends.into_iter().for_each(|end| observers.queue(end)));
                // Until the queue is empty, and most likely a send is under way.
                loop {
                    match delivery.queued.try_recv() {
                        Ok(_) => received += 1,
                        Err(_) if received > 0 => break,
                        Err(_) => std::hint::spin_loop(),
                    }
                }
                drop(delivery);
            });
            let delivered = seen.0.lock().unwrap().0.len();
            assert_eq!(received + delivered, ENDS as usize, "round {round}");
        }
    }
}
