//! `doctor`: examines the nodes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstyle::{AnsiColor, Style};
use leasehold::doctor::{Check, Finding, Measurement, Pace, Report, Spread, Status};
use leasehold::{Builder, Options};
use serde::Serialize;

use crate::args::{Doctor, ReportFormat};
use crate::exit::{FAILED, Failure, Outcome, UNAVAILABLE, WARNED};
use crate::messages;
use crate::nodes::Deployment;
use crate::report::{Stdout, print_message, print_stdout, visible};
use crate::show::{json, plain_table, without_padding};

/// The width of the text, as of the help.
const WIDTH: usize = 100;

pub(crate) async fn doctor(args: Doctor) -> Outcome {
    let nodes = args.nodes.resolve()?;
    let builder = || -> Result<Builder, Failure> {
        match args.ttl {
            Some(ttl) => Ok(nodes.builder()?.options(Options::default().ttl(ttl))),
            None => nodes.inspecting(),
        }
    };
    if let Some(pause) = args.watch {
        return watch(&args, &nodes, pause, builder).await;
    }
    let accepted = Accepted::of(&args);
    let report = nodes.with_tls_files(builder()?.doctor().await?);
    let code = accepted.exit_code(&report, args.strict);
    let is_reachable = report.is_reachable();
    let measured = match args.measure {
        // The findings say what is wrong. A measurement would only fail.
        Some(duration) if is_reachable => {
            let measured = builder()?.measure(duration).await;
            Some(measured.map_err(|error| Failure {
                text: messages::error_without_wait(&error),
                ..Failure::from(error)
            }))
        }
        _ => None,
    };
    let left_out = "left out, because no majority can be reached";
    let measure_error = match &measured {
        Some(Err(failure)) => Some(&*failure.text),
        None if args.measure.is_some() => Some(left_out),
        _ => None,
    };
    let text = match args.output {
        ReportFormat::Table => {
            let mut text = page(&report, &accepted, args.verbose);
            if let Some(Ok(measured)) = &measured {
                text += &measurement(measured);
            }
            text
        }
        ReportFormat::Json => {
            let measured = measured
                .as_ref()
                .and_then(|measured| measured.as_ref().ok());
            let report = ReportJson {
                measured: measured.map(MeasurementJson::of),
                measure_error,
                ..ReportJson::of(&report.findings, &report, &accepted)
            };
            json(&report)? + "\n"
        }
    };
    print(&text)?;
    if args.measure.is_some() && !is_reachable {
        print_message(format!("warning: --measure: {left_out}"));
    }
    if let Some(Err(mut failure)) = measured {
        failure.text = format!("--measure: {}", failure.text);
        // A check has found the cause.
        if severity(&report, &accepted) == "fail" {
            failure.code = FAILED;
        }
        return Err(failure);
    }
    Ok(code)
}

/// Examines repeatedly. Prints the first report, and then what changes. In JSON, each examination is an
/// object, so that a reader can tell that nothing changes.
async fn watch(
    args: &Doctor,
    nodes: &Deployment<'_>,
    pause: Duration,
    builder: impl Fn() -> Result<Builder, Failure>,
) -> Outcome {
    let accepted = Accepted::of(args);
    let mut known: Option<Statuses> = None;
    loop {
        let report = nodes.with_tls_files(builder()?.doctor().await?);
        let statuses = statuses(&report);
        let text = match (&known, args.output) {
            (None, ReportFormat::Table) => page(&report, &accepted, args.verbose),
            (Some(known), ReportFormat::Table) => {
                let changed = changes(known, &report);
                changed.map(|change| change.line(&accepted)).collect()
            }
            (None, ReportFormat::Json) => {
                json(&ReportJson::of(&report.findings, &report, &accepted))? + "\n"
            }
            (Some(known), ReportFormat::Json) => {
                let changed = changes(known, &report).map(|change| change.now);
                json(&ReportJson::of(changed, &report, &accepted))? + "\n"
            }
        };
        if print(&text)? == Stdout::Closed {
            return Ok(accepted.exit_code(&report, args.strict));
        }
        known = Some(statuses);
        tokio::time::sleep(pause).await;
    }
}

fn print(text: &str) -> Result<Stdout, Failure> {
    // Colours only where the terminal shows them.
    let choice = anstream::AutoStream::choice(&std::io::stdout());
    let text = match choice {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    };
    Ok(print_stdout(text.as_bytes())?)
}

/// The checks whose findings do not count.
struct Accepted(Vec<Check>);

impl Accepted {
    fn of(args: &Doctor) -> Self {
        let ids = args.accept.iter();
        Self(ids.filter_map(|id| Check::from_id(id)).collect())
    }

    fn has(&self, finding: &Finding) -> bool {
        finding.status >= Status::Warn && self.0.contains(&finding.check)
    }

    fn exit_code(&self, report: &Report, strict: bool) -> ExitCode {
        match severity(report, self) {
            // Nothing was examined that could be accepted.
            _ if !report.is_reachable() => ExitCode::from(UNAVAILABLE),
            "fail" => ExitCode::from(FAILED),
            "warn" if strict => ExitCode::from(WARNED),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// The highest status of what is not accepted.
fn severity(report: &Report, accepted: &Accepted) -> &'static str {
    let counted = report.findings.iter().filter(|found| !accepted.has(found));
    let statuses = counted.map(|finding| finding.status);
    word(statuses.max().unwrap_or(Status::Ok))
}

/// The status in JSON. The table has it in capital letters.
fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Fail => "fail",
        _ => "unknown",
    }
}

fn style(status: Status) -> Style {
    let colour = match status {
        Status::Ok => AnsiColor::Green,
        Status::Warn => AnsiColor::Yellow,
        Status::Fail => AnsiColor::Red,
        _ => AnsiColor::Cyan,
    };
    Style::new().fg_color(Some(colour.into())).bold()
}

/// The whole report as text: problems with reason and remedy, and what is fine in few lines.
fn page(report: &Report, accepted: &Accepted, verbose: bool) -> String {
    let mut page = String::new();
    for status in [Status::Fail, Status::Warn] {
        for check in Check::ALL {
            let found = |finding: &&Finding| finding.check == *check && finding.status == status;
            let findings: Vec<_> = report.findings.iter().filter(found).collect();
            if !findings.is_empty() {
                page += &problem(&findings, accepted);
            }
        }
    }
    if !verbose {
        page += &unknowns(report);
    }
    let fine = |finding: &&Finding| finding.status == Status::Ok;
    if verbose {
        let rest = report
            .findings
            .iter()
            .filter(|f| f.status <= Status::Unknown);
        for finding in rest {
            let _ = writeln!(page, "{}{}", heading(finding, false), place(finding));
        }
        page.push('\n');
    } else {
        let mut passed: Vec<_> = report.findings.iter().filter(fine).collect();
        // A check that has found something at another node is not fine.
        passed.retain(|one| {
            let same = |other: &Finding| other.check == one.check && other.status != Status::Ok;
            !report.findings.iter().any(same)
        });
        let mut ids: Vec<_> = passed.iter().map(|finding| finding.check.id()).collect();
        ids.dedup();
        if !ids.is_empty() {
            let style = style(Status::Ok);
            let _ = writeln!(
                page,
                "{style}OK{style:#}       {}\n",
                wrapped(&ids.join(", "), 9)
            );
        }
    }
    page += &summary(report, accepted);
    page
}

/// `FAIL     eviction`
fn heading(finding: &Finding, accepted: bool) -> String {
    let style = style(finding.status);
    let word = word(finding.status).to_uppercase();
    let note = if accepted { " (accepted)" } else { "" };
    let pad = " ".repeat(9 - word.len());
    format!("{style}{word}{style:#}{pad}{}{note}", finding.check.id())
}

/// The node, if any, and what was seen there. It may contain text of the server.
fn place(finding: &Finding) -> String {
    let seen = visible(&finding.seen);
    match &finding.node {
        Some(node) => format!(": {node}: {seen}"),
        None => format!(": {seen}"),
    }
}

/// What one check found at one node or at several.
fn problem(findings: &[&Finding], accepted: &Accepted) -> String {
    let first = findings[0];
    let mut text = heading(first, accepted.has(first));
    text.push('\n');
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {name:<7}{}", wrapped(value, 9));
        }
    };
    for finding in findings {
        line(
            "seen",
            &match &finding.node {
                Some(node) => format!("{node}: {}", finding.seen),
                None => finding.seen.clone(),
            },
        );
    }
    line("why", first.check.why());
    // The same remedy at several nodes is shown once.
    let mut remedies: Vec<_> = findings.iter().map(|finding| &*finding.remedy).collect();
    remedies.dedup();
    for remedy in remedies {
        line("remedy", remedy);
    }
    text + "\n"
}

/// What is not known. A provider that hides one field hides many, so checks with the same remedy share a
/// paragraph.
fn unknowns(report: &Report) -> String {
    let unknown = |finding: &&Finding| finding.status == Status::Unknown;
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in report.findings.iter().filter(unknown) {
        let same = |group: &&mut Vec<&Finding>| group[0].remedy == finding.remedy;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    let style = style(Status::Unknown);
    let paragraph = |group: Vec<&Finding>| {
        let mut ids: Vec<_> = group.iter().map(|finding| finding.check.id()).collect();
        ids.dedup();
        let mut text = format!("{style}UNKNOWN{style:#}  {}\n", wrapped(&ids.join(", "), 9));
        // Of many checks, what each of them lacks says no more than the remedy does.
        let seen = if ids.len() == 1 { &group[..] } else { &[] };
        for finding in seen {
            let place = place(finding);
            let _ = writeln!(
                text,
                "  seen   {}",
                wrapped(place.trim_start_matches(": "), 9)
            );
        }
        let remedy = &group[0].remedy;
        if !remedy.is_empty() {
            let _ = writeln!(text, "  remedy {}", wrapped(remedy, 9));
        }
        text + "\n"
    };
    groups.into_iter().map(paragraph).collect()
}

/// The words of a text, between which a line may be broken. A command in backticks is one of them, so
/// that it can be copied.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut start, mut is_command) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' => is_command = !is_command && text[at + 1..].contains('`'),
            ' ' if !is_command => {
                words.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&text[start..]);
    words
}

/// Breaks a text into lines, which are indented from the second on. It may contain text of a server.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in words(&visible(text)) {
        let length = lines.last().map_or(0, |line| line.chars().count());
        if length > 0 && indent + length + 1 + word.chars().count() > WIDTH {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

fn summary(report: &Report, accepted: &Accepted) -> String {
    let count = |status: Status| {
        let of = |found: &&Finding| found.status == status && !accepted.has(found);
        report.findings.iter().filter(of).count()
    };
    let counted = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let accepted = report.findings.iter().filter(|found| accepted.has(found));
    let mut parts = vec![
        counted(count(Status::Fail), "failure"),
        counted(count(Status::Warn), "warning"),
        format!("{} unknown", count(Status::Unknown)),
        format!("{} passed", count(Status::Ok)),
    ];
    if let number @ 1.. = accepted.count() {
        parts.push(format!("{number} accepted"));
    }
    let nodes = counted(report.nodes.len(), "node");
    format!("{nodes}: {}\n", parts.join(", "))
}

fn measurement(measured: &Measurement) -> String {
    let mut table = plain_table();
    table.set_header(vec!["CALLERS", "LOCKS/S", "ACQUIRE P50", "P99", "MAX"]);
    for pace in [&measured.alone, &measured.together] {
        table.add_row(vec![
            pace.callers.to_string(),
            format!("{:.0}", pace.pairs_per_second()),
            time(pace.acquire.p50),
            time(pace.acquire.p99),
            time(pace.acquire.max),
        ]);
    }
    let mut nodes = plain_table();
    nodes.set_header(vec!["NODE", "ROUND TRIP P50", "P99", "MAX"]);
    for (node, spread) in &measured.nodes {
        nodes.add_row(match spread {
            Ok(spread) => vec![
                node.clone(),
                time(spread.p50),
                time(spread.p99),
                time(spread.max),
            ],
            Err(error) => vec![node.clone(), messages::node_error(error)],
        });
    }
    let (table, nodes) = (without_padding(&table), without_padding(&nodes));
    format!("\n{table}\n{nodes}")
}

/// A short time: `0.21ms`.
pub(crate) fn time(duration: Duration) -> String {
    format!("{:.2}ms", duration.as_secs_f64() * 1000.0)
}

/// What each check found at each node.
type Statuses = BTreeMap<(Check, Option<String>), Status>;

fn statuses(report: &Report) -> Statuses {
    let findings = report.findings.iter();
    let mut statuses = Statuses::new();
    for finding in findings {
        let key = (finding.check, finding.node.clone());
        // A check may have several findings about the deployment.
        let known = statuses.entry(key).or_insert(finding.status);
        *known = finding.status.max(*known);
    }
    statuses
}

/// A finding whose status is not what it was.
struct Change<'a> {
    was: Option<Status>,
    now: &'a Finding,
}

impl Change<'_> {
    fn line(&self, accepted: &Accepted) -> String {
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        let was = match self.was {
            Some(was) => format!(" (was {})", word(was).to_uppercase()),
            None => String::new(),
        };
        let remedy = match self.now.remedy.is_empty() {
            true => String::new(),
            false => format!("\n  remedy {}", wrapped(&self.now.remedy, 9)),
        };
        let (heading, place) = (heading(self.now, accepted.has(self.now)), place(self.now));
        format!("{now} {heading}{place}{was}{remedy}\n")
    }
}

/// The findings whose status has changed. A finding that was not there and is fine is no change: the node
/// answers again, which `reach` says.
fn changes<'a>(known: &Statuses, report: &'a Report) -> impl Iterator<Item = Change<'a>> {
    report.findings.iter().filter_map(|finding| {
        let was = known.get(&(finding.check, finding.node.clone())).copied();
        let is_new = match was {
            Some(was) => was != finding.status,
            None => finding.status >= Status::Warn,
        };
        is_new.then_some(Change { was, now: finding })
    })
}

/// The report in JSON, or what has changed.
#[derive(Serialize)]
struct ReportJson<'a> {
    /// The highest status of what is not accepted, changed or not.
    status: &'static str,
    nodes: &'a [String],
    findings: Vec<FindingJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<MeasurementJson>,
    /// Why nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    measure_error: Option<&'a str>,
}

#[derive(Serialize)]
struct FindingJson {
    id: &'static str,
    node: Option<String>,
    status: &'static str,
    accepted: bool,
    seen: String,
    why: &'static str,
    remedy: String,
    docs: String,
}

#[derive(Serialize)]
struct MeasurementJson {
    alone: PaceJson,
    together: PaceJson,
    nodes: Vec<NodeJson>,
}

#[derive(Serialize)]
struct PaceJson {
    callers: usize,
    locks_per_second: f64,
    acquire: SpreadJson,
}

#[derive(Serialize)]
struct NodeJson {
    node: String,
    round_trip: Option<SpreadJson>,
    error: Option<String>,
}

#[derive(Serialize)]
struct SpreadJson {
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

impl<'a> ReportJson<'a> {
    fn of(
        findings: impl IntoIterator<Item = &'a Finding>,
        report: &'a Report,
        accepted: &Accepted,
    ) -> Self {
        let findings = findings.into_iter();
        Self {
            status: severity(report, accepted),
            nodes: &report.nodes,
            findings: findings
                .map(|finding| FindingJson::of(finding, accepted))
                .collect(),
            measured: None,
            measure_error: None,
        }
    }
}

impl MeasurementJson {
    fn of(measured: &Measurement) -> Self {
        Self {
            alone: PaceJson::of(&measured.alone),
            together: PaceJson::of(&measured.together),
            nodes: measured
                .nodes
                .iter()
                .map(|(node, spread)| NodeJson {
                    node: node.clone(),
                    round_trip: spread.as_ref().ok().map(SpreadJson::of),
                    error: spread.as_ref().err().map(messages::node_error),
                })
                .collect(),
        }
    }
}

impl FindingJson {
    fn of(finding: &Finding, accepted: &Accepted) -> Self {
        Self {
            id: finding.check.id(),
            node: finding.node.clone(),
            status: word(finding.status),
            accepted: accepted.has(finding),
            seen: finding.seen.clone(),
            why: finding.check.why(),
            remedy: finding.remedy.clone(),
            docs: finding.check.docs(),
        }
    }
}

impl PaceJson {
    fn of(pace: &Pace) -> Self {
        Self {
            callers: pace.callers,
            locks_per_second: pace.pairs_per_second(),
            acquire: SpreadJson::of(&pace.acquire),
        }
    }
}

impl SpreadJson {
    fn of(spread: &Spread) -> Self {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            p50_us: us(spread.p50),
            p99_us: us(spread.p99),
            max_us: us(spread.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim(), 9);
        assert!(lines.lines().all(|line| line.len() <= WIDTH));
        assert!(
            lines
                .lines()
                .skip(1)
                .all(|line| line.starts_with("         word"))
        );
        assert_eq!(wrapped("short", 9), "short");
        // A word that is too long stays whole: it may be a command to copy.
        let long = "x".repeat(150);
        assert_eq!(wrapped(&long, 9), long);
        // So does a command of several words.
        let command = format!("`redis-cli {}`;", "x ".repeat(50));
        assert_eq!(
            wrapped(&format!("run {command} then `it"), 2),
            format!("run\n  {command}\n  then `it")
        );
        assert_eq!(wrapped("a\u{1b}[2Jb\nc", 9), "a\\u{1b}[2Jb\\nc");
    }
}
