//! Examining a deployment, with the settings of a client.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::builder::{Builder, Opened};
use crate::base::error::Error;
use crate::base::name::Name;
use crate::client::options::{MAX_TTL, MIN_TTL, between};
use crate::doctor::facts::{Context, Facts, Glance};
use crate::doctor::measure::{self, Measurement, Spread};
use crate::doctor::members::{Member, refusals};
use crate::doctor::{NodeFacts, NodeState, Report, findings, too_slow};
use crate::node::{Node, NodeError, NodeSettings};

impl Builder {
    /// Examines the nodes: reachability, permissions, settings, clocks, latency, records and more.
    /// [`Check`](crate::doctor::Check) lists all checks. Takes a second or more, changes no
    /// key of a server, and records nothing there. An embedded store that exists is opened as by any
    /// client: after a reboot, that records the beginning of an epoch, and it creates the tables of an
    /// empty file.
    ///
    /// The [options](Self::options) of the client matter: a request must be answered within a time
    /// that follows from the TTL.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::doctor::Status;
    ///
    /// let report = leasehold::Client::builder().node("redis://10.0.0.1").doctor().await?;
    /// for finding in report.findings.iter().filter(|found| found.status >= Status::Warn) {
    ///     println!("{}: {}; {}", finding.check, finding.seen, finding.remedy);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid URL or option. What is wrong with a node is in the report.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn doctor(self) -> Result<Report, Error> {
        let (settings, nodes, options) = self.opened()?;
        options.validate(settings.constants.restart_guard)?;
        let context = Context {
            labels: nodes.iter().map(Examined::label).collect(),
            ttl: options.ttl,
            node_timeout: options.timeout_of_node(),
            connect_timeout: settings.connect_timeout,
            constants: settings.constants,
            replicas: settings.replicas,
        };
        let facts = for_each(&nodes, &settings, Examined::facts, || {
            Facts::Other(Some(Err(NodeError::Unanswered)))
        });
        let findings = findings(&facts.await, &context);
        Ok(Report {
            nodes: context.labels,
            findings,
        })
    }

    /// Returns the state of each node at a glance: role, version, epoch, when it votes, its clock
    /// and its latency. Changes no more than [`doctor`](Self::doctor).
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let builder = leasehold::Client::builder().node("redis://10.0.0.1");
    /// for state in builder.node_states().await? {
    ///     match state.answer {
    ///         Ok(facts) => println!("{}: {:?}, {:?}", state.node, facts.role, facts.latency),
    ///         Err(error) => println!("{}: {error}", state.node),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid URL or option. The error of a node is in the list.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn node_states(self) -> Result<Vec<NodeState>, Error> {
        let (settings, nodes, options) = self.opened()?;
        let labels: Vec<_> = nodes.iter().map(Examined::label).collect();
        let unanswered = || Err(NodeError::Unanswered);
        let glances = for_each(&nodes, &settings, Examined::glance, unanswered).await;
        let limits = (options.timeout_of_node(), settings.connect_timeout);
        let answers = answers(glances, &labels, limits);
        let state = |(node, answer)| NodeState { node, answer };
        Ok(labels.into_iter().zip(answers).map(state).collect())
    }

    /// Measures how fast locks of this deployment are, with the servers and the network as they
    /// are: one task acquires and releases a lock for half of `duration`, and then 16 tasks do so
    /// with a lock each. `duration` is 10 ms to 24 h.
    ///
    /// The locks have random names that begin with `leasehold-doctor/`. Everything that the nodes
    /// know of them is removed afterwards, the fences included. No [history](Self::history) is recorded.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use std::time::Duration;
    /// let builder = leasehold::Client::builder().node("redis://10.0.0.1");
    /// let measured = builder.measure(Duration::from_secs(10)).await?;
    /// println!("an acquire takes {:?}", measured.alone.acquire.p50);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`build`](Self::build), and those of
    /// [`Mutex::lock`](crate::Mutex::lock): [`Error::NoMajority`] if too few nodes grant locks.
    ///
    /// Cancel safety: if the future is dropped, the locks are released, and the fences of the 16
    /// names stay on the nodes until they expire.
    pub async fn measure(self, duration: Duration) -> Result<Measurement, Error> {
        between("the duration", duration, MIN_TTL, MAX_TTL)?;
        let (client, settings, nodes) = self.build_with_nodes()?;
        let names = measure::names();
        let measured = measure::paces(&client, &names, duration).await;
        client.shutdown(settings.connect_timeout).await;
        let keys: Arc<[Name]> = measure::keys(&client, &names).into();
        let forgotten = for_each(
            &nodes,
            &settings,
            move |node, settings| {
                let keys = Arc::clone(&keys);
                async move { node.forget(settings, keys).await }
            },
            || Err(NodeError::Unanswered),
        );
        for (node, forgotten) in nodes.iter().zip(forgotten.await) {
            if let Err(error) = forgotten {
                let node = node.label();
                tracing::warn!(%node, %error, "names of a measurement could not be removed");
            }
        }
        let (alone, together) = measured?;
        let unanswered = || Err(NodeError::Unanswered);
        let round_trips = for_each(&nodes, &settings, Examined::round_trips, unanswered);
        let labels = nodes.iter().map(Examined::label);
        Ok(Measurement {
            alone,
            together,
            nodes: labels.zip(round_trips.await).collect(),
        })
    }
}

/// What the nodes answer to this client, which refuses some of them, and whose requests have time limits
/// (of a request, and of a connection).
fn answers(
    glances: Vec<Result<Glance, NodeError>>,
    labels: &[String],
    limits: (Duration, Duration),
) -> Vec<Result<NodeFacts, NodeError>> {
    let members = labels.iter().zip(&glances);
    let members = members.filter_map(|(label, glance)| {
        let glance = glance.as_ref().ok()?;
        // A replica never votes, and is not asked for its records.
        glance.facts.votes_in?;
        Some(Member {
            label,
            run_id: glance.run_id.as_deref(),
            set: glance.set.as_ref(),
        })
    });
    let members: Vec<_> = members.collect();
    let of_member = |(member, error): (&Member<'_>, Option<NodeError>)| {
        error.map(|error| (member.label.to_owned(), error))
    };
    let refused = members.iter().zip(refusals(&members, labels));
    let refused: BTreeMap<_, _> = refused.filter_map(of_member).collect();
    let answer = |(label, glance): (&String, Result<Glance, NodeError>)| {
        let facts = glance?.facts;
        let late = || too_slow(facts.latency?, limits.0, limits.1);
        match refused.get(label).cloned().or_else(late) {
            Some(error) => Err(error),
            None => Ok(facts),
        }
    };
    labels.iter().zip(glances).map(answer).collect()
}

/// A node to be examined.
#[derive(Clone)]
#[cfg_attr(not(all(feature = "redis", feature = "local", unix)), allow(dead_code))]
pub(super) enum Examined {
    Other(Arc<dyn Node>),
    Store(PathBuf),
    #[cfg(feature = "redis")]
    Server(Box<crate::node::redis::Target>),
}

impl Examined {
    pub(super) fn of(opened: &Opened) -> Self {
        match opened {
            Opened::Node(node) => Self::Other(Arc::clone(node)),
            #[cfg(all(feature = "local", unix))]
            Opened::Local(path) => Self::Store(path.clone()),
            #[cfg(feature = "redis")]
            Opened::Redis(target) => Self::Server(target.clone()),
        }
    }

    fn label(&self) -> String {
        match self {
            Self::Other(node) => node.label().to_owned(),
            Self::Store(path) => format!("local:{}", path.display()),
            #[cfg(feature = "redis")]
            Self::Server(target) => target.label().to_owned(),
        }
    }

    async fn facts(self, settings: NodeSettings) -> Facts {
        match self {
            Self::Other(node) => Facts::Other(node.status()),
            Self::Store(path) => store::facts(path, settings).await,
            #[cfg(feature = "redis")]
            Self::Server(target) => Facts::Server(
                crate::node::redis::examine::examine(&target, &settings)
                    .await
                    .map(Box::new),
            ),
        }
    }

    async fn glance(self, settings: NodeSettings) -> Result<Glance, NodeError> {
        match self {
            Self::Other(node) => match node.status() {
                Some(Err(error)) => Err(error),
                // It has no records that could keep it from voting.
                _ => Ok(Glance {
                    facts: NodeFacts {
                        votes_in: Some(Duration::ZERO),
                        ..NodeFacts::default()
                    },
                    ..Glance::default()
                }),
            },
            Self::Store(path) => {
                let facts = store::glance(path, settings).await?;
                Ok(Glance {
                    facts,
                    ..Glance::default()
                })
            }
            #[cfg(feature = "redis")]
            Self::Server(target) => crate::node::redis::examine::glance(&target, &settings).await,
        }
    }

    async fn round_trips(self, settings: NodeSettings) -> Result<Spread, NodeError> {
        match self {
            Self::Other(_) => Ok(Spread::default()),
            Self::Store(path) => store::round_trips(path, settings).await.map(Spread::of),
            #[cfg(feature = "redis")]
            Self::Server(target) => {
                let count = measure::ROUND_TRIPS;
                crate::node::redis::examine::round_trips(&target, &settings, count)
                    .await
                    .map(Spread::of)
            }
        }
    }

    async fn forget(self, settings: NodeSettings, names: Arc<[Name]>) -> Result<(), NodeError> {
        match self {
            // It forgets them by itself.
            Self::Other(_) => Ok(()),
            Self::Store(path) => store::forget(path, settings, names).await,
            #[cfg(feature = "redis")]
            Self::Server(target) => {
                crate::node::redis::examine::forget(&target, &settings, &names).await
            }
        }
    }
}

/// Does something with all nodes at once. The results are in the order of the nodes.
async fn for_each<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    nodes: &[Examined],
    settings: &NodeSettings,
    work: impl Fn(Examined, NodeSettings) -> F,
    failed: impl Fn() -> T,
) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for (index, node) in nodes.iter().enumerate() {
        let work = work(node.clone(), settings.clone());
        tasks.spawn(async move { (index, work.await) });
    }
    let mut results: Vec<Option<T>> = nodes.iter().map(|_| None).collect();
    while let Some(done) = tasks.join_next().await {
        // A task that panicked counts as failed.
        if let Ok((index, result)) = done {
            results[index] = Some(result);
        }
    }
    let results = results.into_iter();
    results
        .map(|result| result.unwrap_or_else(&failed))
        .collect()
}

/// The embedded store, whose file operations block.
#[cfg(all(feature = "local", unix))]
mod store {
    use super::{Arc, Duration, Facts, Name, NodeError, NodeFacts, NodeSettings, PathBuf, measure};
    use crate::node::local::examine;

    async fn blocking<T: Send + 'static>(
        work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, NodeError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or(Err(NodeError::Unanswered))
    }

    pub(super) async fn facts(path: PathBuf, settings: NodeSettings) -> Facts {
        let facts = blocking(move || Ok(examine::examine(&path, &settings)));
        match facts.await {
            Ok(facts) => Facts::Store(Box::new(facts)),
            Err(error) => Facts::Other(Some(Err(error))),
        }
    }

    pub(super) async fn glance(
        path: PathBuf,
        settings: NodeSettings,
    ) -> Result<NodeFacts, NodeError> {
        blocking(move || examine::glance(&path, &settings)).await
    }

    pub(super) async fn round_trips(
        path: PathBuf,
        settings: NodeSettings,
    ) -> Result<Vec<Duration>, NodeError> {
        blocking(move || examine::round_trips(&path, &settings, measure::ROUND_TRIPS)).await
    }

    pub(super) async fn forget(
        path: PathBuf,
        settings: NodeSettings,
        names: Arc<[Name]>,
    ) -> Result<(), NodeError> {
        blocking(move || examine::forget(&path, &settings, &names)).await
    }
}

/// Without the feature, no URL names a store.
#[cfg(not(all(feature = "local", unix)))]
mod store {
    use super::{Arc, Duration, Facts, Name, NodeError, NodeFacts, NodeSettings, PathBuf};

    pub(super) async fn facts(_: PathBuf, _: NodeSettings) -> Facts {
        Facts::Other(None)
    }

    pub(super) async fn glance(_: PathBuf, _: NodeSettings) -> Result<NodeFacts, NodeError> {
        Err(NodeError::Unanswered)
    }

    pub(super) async fn round_trips(
        _: PathBuf,
        _: NodeSettings,
    ) -> Result<Vec<Duration>, NodeError> {
        Err(NodeError::Unanswered)
    }

    pub(super) async fn forget(
        _: PathBuf,
        _: NodeSettings,
        _: Arc<[Name]>,
    ) -> Result<(), NodeError> {
        Err(NodeError::Unanswered)
    }
}
