//! Drives the redlock and redis-lock crates, both with threads: the one blocks anyway, the
//! other connects for every command when it does not. Arguments and output: `../README.md`.

mod clients;
mod ledger;

use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use clients::{Client, Lock};
use ledger::Ledger;

/// What is to be done.
struct Order {
    client: String,
    urls: Vec<String>,
    contending: bool,
    tasks: usize,
    length: Duration,
    hold: Duration,
    best: bool,
    ttl: Duration,
}

fn read() -> Result<Order, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [
        client,
        urls,
        work,
        tasks,
        seconds,
        hold_ms,
        settings,
        ttl_ms,
    ] = &args[..]
    else {
        return Err("eight arguments are needed; see the README".into());
    };
    let number = |text: &str| {
        text.parse::<f64>()
            .map_err(|error| format!("{text}: {error}"))
    };
    Ok(Order {
        client: client.clone(),
        urls: urls.split(',').map(str::to_owned).collect(),
        contending: work == "contend",
        tasks: number(tasks)? as usize,
        length: Duration::from_secs_f64(number(seconds)?),
        hold: Duration::from_secs_f64(number(hold_ms)? / 1e3),
        best: settings == "best",
        ttl: Duration::from_secs_f64(number(ttl_ms)? / 1e3),
    })
}

fn run() -> Result<String, String> {
    let order = Arc::new(read()?);
    let ledger = Arc::new(Ledger::default());
    let ready = Arc::new(Barrier::new(order.tasks + 1));
    let mut threads = Vec::new();
    for who in 0..order.tasks {
        let mut client = Client::connect(&order)?;
        let name = format!("{}/{}", order.client, std::process::id());
        let own = format!("{name}/{who}");
        // Once without contention, so that everything is set up.
        let held = client.acquire(&own)?.ok_or("its own lock is taken")?;
        client.release(held)?;
        let name = if order.contending { name } else { own };
        let (order, ledger, ready) = (order.clone(), ledger.clone(), ready.clone());
        threads.push(std::thread::spawn(move || {
            ready.wait();
            let start = Instant::now();
            while start.elapsed() < order.length {
                pair(&mut client, who, &name, &order, &ledger);
            }
        }));
    }
    ready.wait();
    let start = Instant::now();
    if order.contending {
        // Who waits for a lock at the end is not waited for.
        std::thread::sleep(order.length);
    } else {
        for thread in threads {
            thread.join().map_err(|_| "a task panicked")?;
        }
    }
    ledger.line(start.elapsed())
}

fn pair(client: &mut Client, who: usize, name: &str, order: &Order, ledger: &Ledger) {
    ledger.ask(who);
    let Ok(Some(held)) = client.acquire(name) else {
        return ledger.failed();
    };
    ledger.enter(who, order.contending);
    if order.contending {
        let entered = Instant::now();
        std::thread::sleep(order.hold);
        ledger.leave(entered.elapsed());
    }
    match client.release(held) {
        Ok(()) => ledger.paired(),
        Err(_) => ledger.failed(),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
