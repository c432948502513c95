//! What all tasks write down together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Ledger(Mutex<Book>);

#[derive(Default)]
struct Book {
    pairs: u64,
    handovers: u64,
    errors: u64,
    held: Duration,
    waits: Vec<Duration>,
    /// Who waits, since when.
    waiting: HashMap<usize, Instant>,
    last: Option<usize>,
    inside: bool,
    broken: bool,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait goes on when an attempt gives up.
    pub fn ask(&self, who: usize) {
        self.book().waiting.entry(who).or_insert_with(Instant::now);
    }

    pub fn failed(&self) {
        self.book().errors += 1;
    }

    pub fn enter(&self, who: usize, contending: bool) {
        let mut book = self.book();
        if let Some(since) = book.waiting.remove(&who) {
            book.waits.push(since.elapsed());
        }
        if contending {
            book.broken |= std::mem::replace(&mut book.inside, true);
            if book.last.replace(who).is_some_and(|last| last != who) {
                book.handovers += 1;
            }
        }
    }

    pub fn leave(&self, held: Duration) {
        let mut book = self.book();
        book.inside = false;
        book.held += held;
    }

    pub fn paired(&self) {
        self.book().pairs += 1;
    }

    pub fn line(&self, length: Duration) -> Result<String, String> {
        let book = self.book();
        if book.broken {
            return Err("two held the lock at once".into());
        }
        let unfinished = book.waiting.values().map(Instant::elapsed);
        let waits: Vec<Duration> = book.waits.iter().copied().chain(unfinished).collect();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let line = serde_json::json!({
            "length_ms": ms(length),
            "pairs": book.pairs,
            "handovers": book.handovers,
            "errors": book.errors,
            "mean_wait_ms": ms(waits.iter().sum()) / waits.len().max(1) as f64,
            "longest_wait_ms": ms(waits.into_iter().max().unwrap_or_default()),
            "held_ms": ms(book.held) / book.pairs.max(1) as f64,
        });
        Ok(line.to_string())
    }
}
