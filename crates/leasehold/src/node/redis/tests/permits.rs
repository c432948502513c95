//! The script of semaphores.

use super::*;
use crate::node::seat::Seat;

/// One request of a semaphore with two permits, or now and then with three.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    client: u8,
    permits: u32,
    /// Where a search for a free permit begins.
    from: u64,
    above_floor: i64,
    ttl: Duration,
    after: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// WAIT with the client's ticket.
    Wait,
    /// Leave the line; `true`: and change the number of permits.
    Leave(bool),
    /// A request for a permit, by a client that stands in line with its ticket or not.
    Permit {
        verb: Verb,
        permit: u32,
        in_line: bool,
    },
    /// The same by a claim that only the key makes one of a permit, as that of a detached lease.
    Plain { verb: Verb, permit: u32 },
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let keep = Some(Duration::from_secs(20));
    let verb = prop_oneof![
        6 => Just(Verb::Acquire),
        2 => Just(Verb::Extend),
        4 => Just(WARM.verb),
        1 => Just(Verb::Release { keep }),
    ];
    let released = prop_oneof![Just(Verb::Extend), Just(WARM.verb)];
    let kind = prop_oneof![
        6 => Just(Kind::Wait),
        2 => Just(Kind::Leave(false)),
        1 => Just(Kind::Leave(true)),
        12 => (verb, 0..3u32, any::<bool>())
            .prop_map(|(verb, permit, in_line)| Kind::Permit { verb, permit, in_line }),
        1 => (released, 0..3u32).prop_map(|(verb, permit)| Kind::Plain { verb, permit }),
    ];
    let permits = prop_oneof![9 => Just(2), 1 => Just(3)];
    let above_floor = prop_oneof![
        9 => 1..12i64,
        1 => -2..1i64,
        1 => Just(3_600_000_000i64),
    ];
    let ttl = prop::sample::select(&TTLS[..]);
    let request = (kind, 0..4u8, permits, 0..3u64, above_floor, ttl, pauses());
    let request =
        request.prop_map(
            |(kind, client, permits, from, above_floor, ttl, after)| Request {
                kind,
                client,
                permits,
                from,
                above_floor,
                ttl,
                after,
            },
        );
    prop::collection::vec(request, 1..40)
}

/// The call of a request, with names that begin with `prefix`.
fn seated(request: Request, prefix: &str, floor: u64) -> (Verb, Claim) {
    let Request {
        client, permits, ..
    } = request;
    let semaphore = Name::new(format!("{prefix}-s"))
        .expect("a name")
        .semaphore();
    let owner = |claim: u8, token: u64| {
        let number = u32::from(claim) * 100 + u32::from(client);
        format!("{number:040}:{token}:1@host:{number}").into_bytes()
    };
    // Every client has one ticket, so that it stays in line.
    let ticket_token = floor + 2 + u64::from(client) * 2;
    let ticket = owner(1, ticket_token);
    let token = floor.saturating_add_signed(request.above_floor);
    let claim = |name: &Name, seat: Option<Seat>| {
        let claim = Claim::new(name.clone(), owner(2, token), token, request.ttl);
        match seat {
            Some(seat) => claim.in_seat(seat),
            None => claim,
        }
    };
    let in_line = |seat: Seat| {
        seat.search_from(request.from);
        let claim = Claim::new(semaphore.clone(), ticket.clone(), ticket_token, request.ttl);
        claim.in_seat(seat)
    };
    match request.kind {
        Kind::Wait => (
            Verb::Wait,
            in_line(Seat::ticket(semaphore.clone(), permits)),
        ),
        Kind::Leave(false) => (WARM.verb, in_line(Seat::ticket(semaphore.clone(), permits))),
        Kind::Leave(true) => (
            WARM.verb,
            in_line(Seat::resizing(semaphore.clone(), permits)),
        ),
        Kind::Permit {
            verb,
            permit,
            in_line,
        } => {
            let permit = permit % permits;
            let ticket = in_line.then_some(&*ticket);
            let seat = Seat::permit(semaphore.clone(), permits, permit, ticket);
            (verb, claim(&semaphore.permit(permit), Some(seat)))
        }
        Kind::Plain { verb, permit } => (verb, claim(&semaphore.permit(permit), None)),
    }
}

fn ask_seated(
    node: &dyn Node,
    request: Request,
    prefix: &str,
    floor: u64,
) -> Result<Vote, NodeError> {
    let (verb, claim) = seated(request, prefix, floor);
    let (call, answer) = call(Step { verb, ..WARM }, claim);
    node.submit(call);
    answer.recv().expect("every call is answered")
}

fn obey_the_rules(pair: &Pair, cases: u32) {
    let (asked, granted, free) = (Cell::new(0), Cell::new(0), Cell::new(0));
    pair.compare(cases, &requests(), |requests| {
        let prefix = pair.prefix();
        for (index, request) in requests.iter().enumerate() {
            pair.pass(request.after);
            let theirs = ask_seated(&*pair.redis, *request, &prefix, pair.floors.0);
            let theirs = relative(theirs, pair.floors.0);
            let ours = ask_seated(&pair.memory, *request, &prefix, pair.floors.1);
            let ours = relative(ours, pair.floors.1);
            prop_assert_eq!(&theirs, &ours, "step {} of {:?}", index, &requests);
            asked.set(asked.get() + 1);
            granted.set(granted.get() + usize::from(ours == "Granted"));
            free.set(free.get() + usize::from(ours.starts_with("Free")));
        }
        Ok(())
    });
    // The requests were not just refused, which any two nodes would agree on.
    let (asked, granted, free) = (asked.get(), granted.get(), free.get());
    assert!(granted > asked / 20, "{granted} of {asked} were granted");
    assert!(free > asked / 50, "{free} of {asked} were told of a permit");
}

#[test]
fn the_script_of_semaphores_obeys_the_rules() {
    obey_the_rules(&Pair::start(), 800);
}

#[test]
fn the_script_of_semaphores_obeys_the_rules_on_a_cluster() {
    obey_the_rules(&Pair::start_on_cluster(), 200);
}
