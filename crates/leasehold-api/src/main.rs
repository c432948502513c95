//! Prints the public API of a crate, one item per line, from the JSON that rustdoc writes for it.
//! `.ci/public-api` calls it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: leasehold-api RUSTDOC_JSON");
        return ExitCode::FAILURE;
    };
    let api = public_api::Builder::from_rustdoc_json(path)
        .omit_blanket_impls(true)
        .build();
    match api {
        Ok(api) => {
            for line in api.items().map(ToString::to_string) {
                if !is_noise(&line) {
                    println!("{line}");
                }
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("leasehold-api: cannot read the JSON of rustdoc: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Auto traits that nobody relies on. `Send` and `Sync` stay: losing one of them breaks callers.
fn is_noise(line: &str) -> bool {
    const TRAITS: [&str; 5] = [
        "core::marker::Freeze for ",
        "core::marker::Unpin for ",
        "core::marker::UnsafeUnpin for ",
        "core::panic::unwind_safe::RefUnwindSafe for ",
        "core::panic::unwind_safe::UnwindSafe for ",
    ];
    TRAITS.iter().any(|name| line.contains(name))
}
