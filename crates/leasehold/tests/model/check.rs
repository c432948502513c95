//! Runs a model and checks the result.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

/// Set to `1` to run the large models, too.
const LARGE: &str = "LEASEHOLD_LARGE_MODELS";

/// A model that the checker can explore, and whose paths can be printed.
pub trait Checkable:
    Model<
        State: Hash + Send + Sync + Clone + PartialEq + Debug + 'static,
        Action: Clone + PartialEq + Debug,
    > + Send
    + Sync
    + 'static
{
}

impl<M> Checkable for M
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + PartialEq + Debug + 'static,
    M::Action: Clone + PartialEq + Debug,
{
}

/// Explores every state: no property is violated, and everything that must happen *sometimes* did
/// happen, so the model is not safe merely because nothing happens in it.
pub fn holds<M: Checkable>(model: M) {
    explore(model, 1);
}

/// Like [`holds`], for models that take minutes and gigabytes. They run on all cores, and only on
/// request.
pub fn holds_at_large<M: Checkable>(model: M) {
    if std::env::var(LARGE).is_ok_and(|value| value == "1") {
        explore(
            model,
            std::thread::available_parallelism().map_or(1, Into::into),
        );
    } else {
        eprintln!("not run: a large model; set {LARGE}=1 to run it");
    }
}

fn explore<M: Checkable>(model: M, threads: usize) {
    let started = Instant::now();
    let checker = model.checker().threads(threads).spawn_bfs().join();
    eprintln!(
        "{} states, {} steps, {} deep, in {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed()
    );
    let mut found = checker.discoveries();
    for property in checker.model().properties() {
        let path = found.remove(property.name);
        match property.expectation {
            Expectation::Sometimes => {
                assert!(path.is_some(), "vacuous: never {:?}", property.name);
            }
            Expectation::Always | Expectation::Eventually => {
                if let Some(path) = path {
                    let (length, steps) = counterexample(checker.model(), property.name, path);
                    panic!("violated in {length} steps: {:?}\n{steps}", property.name);
                }
            }
        }
    }
}

/// Explores, breadth first, until `property` is violated, which must happen.
pub fn breaks<M: Checkable>(property: &'static str, model: M) {
    let started = Instant::now();
    let enough = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(enough).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("the property still holds without the rule: {property:?}");
    };
    let (length, steps) = counterexample(checker.model(), property, path);
    eprintln!(
        "violated in {length} steps: {property:?} (found in {:.1?})\n{steps}",
        started.elapsed()
    );
}

/// The steps that lead to a violation, and their number. The checker may have continued after it,
/// so the path is cut at the first state that violates the property.
fn counterexample<M: Checkable>(
    model: &M,
    property: &'static str,
    path: Path<M::State, M::Action>,
) -> (usize, String) {
    let property = model.property(property);
    assert!(
        matches!(property.expectation, Expectation::Always),
        "{:?} is not a property of all states",
        property.name
    );
    let before = path
        .into_vec()
        .into_iter()
        .take_while(|(state, _)| (property.condition)(model, state));
    let steps: Vec<_> = before.filter_map(|(_, step)| step).collect();
    let lines = steps.iter().map(|step| format!("    {step:?}\n"));
    (steps.len(), lines.collect())
}

/// The state after a step. A step that changes nothing leads to no new state.
pub fn changed<S: Copy + PartialEq>(before: &S, take: impl FnOnce(&mut S)) -> Option<S> {
    let mut after = *before;
    take(&mut after);
    (after != *before).then_some(after)
}
