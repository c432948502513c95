//! `history`: the past leases of a lock.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::{LeaseEnd, PastLease};
use serde::Serialize;

use crate::args::{History, ReportFormat};
use crate::exit::{Outcome, UNAVAILABLE};
use crate::messages;
use crate::report::{millis, print_message, print_stdout};
use crate::show::{json, plain_table, without_padding};

/// A lease in the JSON output. Times are milliseconds since 1970.
#[derive(Serialize)]
struct LeaseJson<'a> {
    token: Option<u64>,
    owner: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    label: Option<&'a str>,
    shared: bool,
    /// The number of the permit, if it is one of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<u32>,
    acquired_ms: Option<u64>,
    ended_ms: Option<u64>,
    /// It ended at this time or earlier, if nobody recorded its end.
    ended_by_ms: Option<u64>,
    end: &'static str,
    /// The end in words, with the reason of a loss, and the client that broke the lease.
    how: String,
}

pub(crate) async fn history(args: History) -> Outcome {
    let client = args.nodes.inspecting_client()?;
    let history = match args.permits {
        false => client.history(args.name.as_bytes()).await?,
        true => client.permit_history(args.name.as_bytes()).await?,
    };
    for (node, error) in &history.missing {
        let error = messages::node_error(error);
        print_message(format!("warning: {node} did not answer ({error})"));
    }
    let leases = &history.leases;
    let text = match args.output {
        ReportFormat::Json => json(&leases.iter().map(lease_json).collect::<Vec<_>>())? + "\n",
        ReportFormat::Table if leases.is_empty() => format!(
            "`{}` has no history: only clients with --history record their leases\n",
            history.name
        ),
        ReportFormat::Table => table(leases, args.permits),
    };
    print_stdout(text.as_bytes())?;
    let is_unknown = |lease: &PastLease| lease.end == LeaseEnd::Unknown;
    Ok(match leases.iter().any(is_unknown) {
        true => ExitCode::from(UNAVAILABLE),
        false => ExitCode::SUCCESS,
    })
}

fn table(leases: &[PastLease], with_permit: bool) -> String {
    let mut table = plain_table();
    let mut header = vec!["TOKEN", "HOLDER", "FROM", "TO", "END"];
    if with_permit {
        header.insert(0, "PERMIT");
    }
    table.set_header(header);
    for lease in leases {
        let to = time(lease.ended_at);
        let mut row = vec![
            lease.holder.token.map_or("-".into(), |t| t.to_string()),
            messages::holder_name(&lease.holder),
            time(lease.acquired_at),
            match lease.end {
                LeaseEnd::Expired => format!("by {to}"),
                _ => to,
            },
            lease.end.to_string(),
        ];
        if with_permit {
            let permit = lease.permit.map_or("-".into(), |permit| permit.to_string());
            row.insert(0, permit);
        }
        table.add_row(row);
    }
    without_padding(&table)
}

fn time(at: Option<SystemTime>) -> String {
    at.map_or("-".into(), |at| {
        humantime::format_rfc3339_millis(at).to_string()
    })
}

fn lease_json(lease: &PastLease) -> LeaseJson<'_> {
    let ended = unix_ms(lease.ended_at);
    let has_expired = lease.end == LeaseEnd::Expired;
    LeaseJson {
        token: lease.holder.token,
        owner: lease.holder.owner_id.as_deref(),
        host: lease.holder.host.as_deref(),
        pid: lease.holder.pid,
        label: lease.holder.label.as_deref(),
        shared: lease.holder.shared,
        permit: lease.permit,
        acquired_ms: unix_ms(lease.acquired_at),
        ended_ms: ended.filter(|_| !has_expired),
        ended_by_ms: ended.filter(|_| has_expired),
        end: match lease.end {
            LeaseEnd::StillHeld => "held",
            LeaseEnd::Released => "released",
            LeaseEnd::Lost(_) => "lost",
            LeaseEnd::Broken { .. } => "broken",
            LeaseEnd::Expired => "expired",
            _ => "unknown",
        },
        how: lease.end.to_string(),
    }
}

fn unix_ms(at: Option<SystemTime>) -> Option<u64> {
    at?.duration_since(UNIX_EPOCH).ok().map(millis)
}
