//! What a link sends together, and what it sends again over the next connection.

use std::collections::VecDeque;
use std::future::{poll_fn, ready};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use super::testing::{Answers, Receiver, TOKEN};
use super::*;
use crate::base::holder::new_owner;
use crate::base::name::Name;
use crate::node::{Claim, VERIFY_AFTER, Verb, Vote};

/// A server that hangs up on every connection but the last when it receives a request. Each
/// connection has its floor.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    floors: VecDeque<u64>,
    /// The jobs of each write.
    writes: Vec<String>,
    /// A release finds nothing: an earlier one has taken effect.
    released: bool,
    /// It never replies.
    silent: bool,
    /// How often the link looked for replies of a silent server.
    looks: usize,
    /// It may not vote: see `Transport::is_admitted`.
    is_excluded: bool,
}

impl Transport for Server {
    type Connection = ();
    type Replies = ();

    fn label(&self) -> &str {
        "test"
    }

    async fn connect(&self) -> Result<((), Handshake), NodeError> {
        self.renew(&mut ()).await.map(|handshake| ((), handshake))
    }

    async fn renew(&self, (): &mut ()) -> Result<Handshake, NodeError> {
        let floor = self.0.lock().unwrap().floors.pop_front();
        Ok(Handshake {
            verified: Moment::now(),
            floor: floor.expect("no more connections than there are floors"),
            now_us: TOKEN,
            clock_offset_us: 0,
            skew_us: 0,
            native: None,
            quarantine: None,
        })
    }

    fn is_admitted(&self, (): &mut ()) -> bool {
        !std::mem::take(&mut self.0.lock().unwrap().is_excluded)
    }

    fn send(&self, (): &mut (), units: &[Unit], _: u64, _: Option<Moment>) -> Sent<()> {
        let mut state = self.0.lock().unwrap();
        let jobs = units.iter().flat_map(Unit::jobs);
        let names = jobs.map(|job| match (job.call.verb(), job.is_plain_delete) {
            (Verb::Release { .. }, true) => "plain delete".to_owned(),
            (Verb::Release { .. }, false) => "release".to_owned(),
            (verb, _) => format!("{verb:?}"),
        });
        state.writes.push(names.collect::<Vec<_>>().join(", "));
        if state.silent {
            let server = self.clone();
            return Box::pin(poll_fn(move |_| {
                server.0.lock().unwrap().looks += 1;
                Poll::Pending
            }));
        }
        let why = "hung up".to_owned();
        Box::pin(ready(match state.floors.is_empty() {
            true => Ok(()),
            false => Err(NodeError::Disconnected { why }),
        }))
    }

    fn check(&self, (): &(), _: &[Unit], (): &mut (), _: Option<Moment>) -> Result<(), NodeError> {
        Ok(())
    }

    fn read(&self, (): &(), units: Vec<Unit>, (): (), after: &mut Aftermath) {
        for job in units.into_iter().flat_map(Unit::into_jobs) {
            let held = !self.0.lock().unwrap().released;
            let vote = match job.call.verb() {
                Verb::Release { .. } => Vote::Released { held },
                _ => Vote::Granted,
            };
            after.take(job, Reply::Answer(Ok(vote)));
        }
    }
}

/// Submits one call to a server with these floors. Returns what was sent in each write, and the
/// answer.
async fn submit(
    floors: [u64; 2],
    verb: Verb,
    claim: impl FnOnce(Claim) -> Claim,
) -> (Vec<String>, Result<Vote, NodeError>) {
    submit_to(Server::default(), floors, verb, claim).await
}

/// The same, to this server.
async fn submit_to(
    server: Server,
    floors: [u64; 2],
    verb: Verb,
    claim: impl FnOnce(Claim) -> Claim,
) -> (Vec<String>, Result<Vote, NodeError>) {
    server.0.lock().unwrap().floors = floors.into();
    let link = Link::start(
        server.clone(),
        Clock::default(),
        VERIFY_AFTER,
        1,
        NodeWatch::default(),
    );
    link.connect();
    while link.status() != Some(Ok(())) {
        tokio::task::yield_now().await;
    }
    let ttl = Duration::from_secs(10);
    let new = Claim::new(Name::new("a").unwrap(), new_owner(TOKEN, ""), TOKEN, ttl);
    let (sender, answers): (_, Answers) = mpsc::channel();
    let tally = Arc::new(Receiver(sender));
    link.submit(Call::new(verb, Arc::new(claim(new)), ttl, tally, 0));
    let answer = loop {
        match answers.try_recv() {
            Ok(answer) => break answer,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let writes = server.0.lock().unwrap().writes.clone();
    (writes, answer)
}

/// Rule: a plain delete depends on the order of one connection. Over the next one, the release
/// raises the fence.
#[tokio::test]
async fn a_release_that_is_sent_again_raises_the_fence() {
    let release = Verb::Release { keep: None };
    let (writes, answer) = submit([0, 0], release, Claim::made_now).await;
    assert_eq!(writes, ["plain delete", "release"]);
    assert_eq!(answer, Ok(Vote::Released { held: true }));
}

/// The first copy of a release may have taken effect. That the second finds nothing does not say that
/// the lease was lost.
#[tokio::test]
async fn a_release_that_was_sent_twice_does_not_say_that_the_lease_was_lost() {
    let server = Server::default();
    server.0.lock().unwrap().released = true;
    let release = Verb::Release { keep: None };
    let (writes, answer) = submit_to(server, [0, 0], release, Claim::made_now).await;
    assert_eq!(writes, ["plain delete", "release"]);
    assert!(
        matches!(answer, Err(NodeError::Disconnected { .. })),
        "{answer:?}"
    );
}

/// The claim is a lease, or may be one: its holder relies on the lock that the server may still
/// have. Found by the simulator.
#[tokio::test]
async fn a_lease_is_not_released_because_the_server_forgot_a_request() {
    let waited = |claim: Claim| {
        claim.wait();
        claim
    };
    let (extend, _) = submit([0, TOKEN], Verb::Extend, |claim| claim).await;
    let (wait, _) = submit([0, TOKEN], Verb::Wait, waited).await;
    let (acquire, answer) = submit([0, TOKEN], Verb::Acquire, waited).await;
    assert_eq!(
        (&*extend, &*wait),
        (&["Extend".into()][..], &["Wait".into()][..])
    );
    assert_eq!(acquire, ["Acquire"]);
    assert!(matches!(answer, Err(NodeError::Disconnected { .. })));
    // If the server has not forgotten it, the same is sent again.
    let (extend, answer) = submit([0, TOKEN - 1], Verb::Extend, |claim| claim).await;
    assert_eq!(extend, ["Extend", "Extend"]);
    assert_eq!(answer, Ok(Vote::Granted));
}

/// No lease depends on a first ACQUIRE that was not answered, and the second answer does not tell
/// whether it left a lock.
#[tokio::test]
async fn a_first_acquire_that_the_server_may_have_forgotten_is_undone() {
    let (writes, _) = submit([0, TOKEN], Verb::Acquire, Claim::made_now).await;
    assert_eq!(writes, ["Acquire", "release, Acquire"]);
}

/// A connection to a server that never replies.
struct Silent {
    server: Server,
    link: Link,
    answers: Vec<Answers>,
}

impl Silent {
    async fn connect<const N: usize>(floors: [u64; N]) -> Self {
        let server = Server::default();
        let state = State {
            floors: floors.into(),
            silent: true,
            ..State::default()
        };
        *server.0.lock().unwrap() = state;
        let link = Link::start(
            server.clone(),
            Clock::default(),
            VERIFY_AFTER,
            1,
            NodeWatch::default(),
        );
        link.connect();
        while link.status() != Some(Ok(())) {
            turn().await;
        }
        Self {
            server,
            link,
            answers: Vec::new(),
        }
    }

    fn submit(&mut self, verb: Verb) {
        let ttl = Duration::from_secs(10);
        let claim = Claim::new(Name::new("a").unwrap(), new_owner(TOKEN, ""), TOKEN, ttl);
        let (sender, answers) = mpsc::channel();
        let tally = Arc::new(Receiver(sender));
        self.link
            .submit(Call::new(verb, Arc::new(claim), ttl, tally, 0));
        self.answers.push(answers);
    }

    fn writes(&self) -> Vec<String> {
        self.server.0.lock().unwrap().writes.clone()
    }
}

/// Lets every other task that is ready run once.
async fn turn() {
    let mut waited = false;
    poll_fn(|cx| match std::mem::replace(&mut waited, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

#[tokio::test]
async fn while_the_server_is_busy_calls_of_other_tasks_are_sent_together() {
    let task = tokio::spawn(async {
        let mut silent = Silent::connect([0]).await;
        silent.submit(Verb::Wait);
        turn().await;
        assert_eq!(silent.writes(), ["Wait"], "at once");
        silent.submit(Verb::Wait);
        turn().await;
        silent.submit(Verb::Wait);
        turn().await;
        assert_eq!(silent.writes(), ["Wait", "Wait, Wait"]);
    });
    task.await.unwrap();
}

#[tokio::test]
async fn a_link_that_can_send_nothing_more_does_not_spin() {
    let task = tokio::spawn(async {
        let mut silent = Silent::connect([0]).await;
        for sent in 1..=serving::MAX_IN_FLIGHT {
            silent.submit(Verb::Wait);
            while silent.writes().len() < sent {
                turn().await;
            }
        }
        silent.submit(Verb::Wait);
        turn().await;
        let looks = silent.server.0.lock().unwrap().looks;
        for _ in 0..100 {
            turn().await;
        }
        assert_eq!(silent.writes().len(), serving::MAX_IN_FLIGHT);
        assert_eq!(silent.server.0.lock().unwrap().looks, looks);
    });
    task.await.unwrap();
}

/// An acquire must not overtake a release that was sent before it: the lock would still be held.
#[tokio::test]
async fn what_was_sent_is_sent_again_before_later_calls() {
    let task = tokio::spawn(async {
        let mut server = Silent::connect([0, 0]).await;
        server.submit(Verb::Release { keep: None });
        while server.writes().is_empty() {
            turn().await;
        }
        {
            let mut state = server.server.0.lock().unwrap();
            (state.silent, state.is_excluded) = (false, true);
        }
        server.submit(Verb::Acquire);
        while server.writes().len() < 2 {
            turn().await;
        }
        assert_eq!(server.writes()[1], "release, Acquire");
    });
    task.await.unwrap();
}
