//! The messages between a process and a node.

use std::time::Duration;

use leasehold::Name;
use leasehold::node::link::{self, Job, Unit};
use leasehold::node::{Claim, Seat, Verb};

use crate::store::Epoch;
use crate::subscriptions::Channel;

/// A request about a claim.
pub struct Ask {
    /// The verb.
    pub verb: Verb,
    /// The claim.
    pub claim: Claim,
    /// Whether it shares the script with others, and is executed only if it is the common case.
    pub shares: bool,
    /// Whether it is a release that does not raise the fence.
    pub is_plain_delete: bool,
    /// Whether a plain command has set the lock although there may be a line.
    pub overtook: bool,
    /// Whether the connection knows that the node's clock allows the token.
    pub is_within_cap: bool,
    /// The node's epoch, as the connection knows it.
    pub epoch: Epoch,
    /// The channel that reaches the waiter, if any.
    pub channel: Option<Channel>,
}

impl Ask {
    /// The request for a job. The nodes see another owner value; see
    /// [`Waiters::alias`](crate::waiters::Waiters::alias).
    pub fn new(job: &Job, owner: &[u8], cap: u64, epoch: Epoch, channel: Option<Channel>) -> Self {
        let claim = job.call.claim();
        Self {
            verb: job.call.verb(),
            claim: Claim::new(claim.name().clone(), owner, claim.token(), claim.ttl())
                .with_result_of(claim)
                .on_one_node(claim.is_on_one_node()),
            shares: false,
            is_plain_delete: job.is_plain_delete,
            overtook: job.overtook,
            is_within_cap: claim.token() <= cap,
            epoch,
            channel,
        }
    }
}

impl Ask {
    /// The same, for a claim that replaces another.
    pub fn replacing(self, owner: &[u8]) -> Self {
        Self {
            claim: self.claim.replacing(owner),
            ..self
        }
    }

    /// The same, for a claim of a semaphore.
    pub fn in_seat(self, seat: Seat) -> Self {
        Self {
            claim: self.claim.in_seat(seat),
            ..self
        }
    }
}

/// A request to a server. Each is executed atomically.
pub enum Request {
    /// The handshake.
    Hello,
    /// A script.
    Script(Vec<Ask>),
    /// Sets a lock without a token, if the name is free.
    Set(Box<Ask>),
    /// Deletes a lock if it is the claim's.
    Delete(Box<Ask>),
    /// Asks whether there is a line.
    Look(Name),
    /// Asks for the server's identity.
    Probe,
    /// Subscribes this connection to the channel.
    Subscribe(Channel),
    /// Asks whether the server is there.
    Ping,
    /// The other end has closed the connection.
    Bye,
}

/// A reply of a server.
pub enum Reply {
    /// To the handshake.
    Hello {
        /// The server's epoch: since when it has remembered everything.
        epoch: Epoch,
        /// Identifies the server's memory.
        memory: u64,
        /// Its uptime in whole seconds, or the age of its epoch if it was promoted in this run.
        up: Duration,
        /// Its clock.
        now_us: u64,
        /// The epoch begins with this handshake.
        new: bool,
    },
    /// To a script, for each claim.
    Script(Vec<link::Reply>),
    /// To a plain command, or to a look for a line.
    Bool(bool),
    /// The server is a replica.
    ReadOnly,
    /// To a probe: the memory and the epoch.
    Identity {
        /// Identifies the server's memory.
        memory: u64,
        /// The server's epoch.
        epoch: Option<Epoch>,
    },
    /// To a subscription.
    Subscribed,
    /// To a ping.
    Pong,
}

/// How often the link used each way to send a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentCounts {
    /// Calls that shared a script with others.
    pub shared: u64,
    /// Locks without a token, set by a plain command.
    pub plain: u64,
    /// Releases by the server's own compare-and-delete.
    pub native: u64,
    /// Releases that need not raise the fence only because of the order of their connection.
    pub in_order: u64,
    /// Calls that were sent again after their connection broke.
    pub again: u64,
}

impl SentCounts {
    /// Counts units that are sent.
    pub fn count(&mut self, units: &[Unit]) {
        for unit in units {
            match unit {
                Unit::One(_) => {}
                Unit::Plain(_) => self.plain += 1,
                Unit::Native(..) => self.native += 1,
                unit => self.shared += unit.jobs().len() as u64,
            }
            for job in unit.jobs() {
                let call = &job.call;
                let is_safe_anyway = call.nothing_in_flight() || !call.claim().is_fenced();
                self.in_order += u64::from(job.is_plain_delete && !is_safe_anyway);
                self.again += u64::from(job.in_doubt);
            }
        }
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.shared += other.shared;
        self.plain += other.plain;
        self.native += other.native;
        self.in_order += other.in_order;
        self.again += other.again;
    }
}
