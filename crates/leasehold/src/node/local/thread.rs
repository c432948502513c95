//! The thread of a store. Files block, and runtimes must not.

use std::sync::mpsc::Receiver;

use tokio::sync::oneshot;

use super::engine::Engine;
use crate::name::Name;
use crate::node::{Call, NodeError, Sighting};

/// How many calls share a transaction at most.
const MAX_BATCH: usize = 256;

/// Something to do.
pub(super) enum Job {
    Call(Call),
    Survey(
        Option<Name>,
        oneshot::Sender<Result<Vec<Sighting>, NodeError>>,
    ),
    Flush(oneshot::Sender<()>),
}

/// Works until nobody needs the node any more.
pub(super) fn run(mut engine: Engine, inbox: &Receiver<Job>) {
    // What is wrong with the file is told before anybody asks for a lock.
    let _ = engine.open();
    while let Ok(first) = inbox.recv() {
        let mut calls = Vec::new();
        let more = inbox.try_iter().take(MAX_BATCH - 1);
        for job in std::iter::once(first).chain(more) {
            match job {
                Job::Call(call) => calls.push(call),
                other => {
                    vote(&mut engine, &mut calls);
                    attend(&mut engine, other);
                }
            }
        }
        vote(&mut engine, &mut calls);
        if engine.is_tidying_due() {
            engine.tidy();
        }
    }
}

fn vote(engine: &mut Engine, calls: &mut Vec<Call>) {
    if !calls.is_empty() {
        engine.vote(std::mem::take(calls)).say();
    }
}

fn attend(engine: &mut Engine, job: Job) {
    match job {
        Job::Call(call) => engine.vote(vec![call]).say(),
        Job::Survey(name, reply) => {
            let _ = reply.send(engine.survey(name.as_ref()));
        }
        Job::Flush(done) => {
            engine.flush();
            let _ = done.send(());
        }
    }
}
