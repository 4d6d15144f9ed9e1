//! Legal messages of every kind, drawn by proptest.
//! It draws nothing illegal; the tests break the bytes themselves.

use proptest::{collection::vec, option, prelude::*};
use stagelink_proto::{
    Refusal,
    cancel::Cancel,
    describe::{Description, KvDtype, RowDtype, Sampler},
    fate::Fate,
    figures::Figures,
    frame::{Header, Kind},
    hello::{Identity, Link, Role},
    message::{Message, Surroundings},
    open::Open,
    plan::{Entry, Op, Plan, PlanBounds, PlanParts, Returns},
    progress::{Phase, Progress},
    ready::Ready,
    refused::Refused,
    roster::{Member, Roster},
};

use crate::descriptions;

/// A ring of three ranks with thirty layers; taps allowed.
pub(crate) fn surroundings() -> Surroundings {
    let plan_bounds = PlanBounds {
        draft_width: 8,
        ..PlanBounds::default()
    };
    Surroundings {
        rank: 1,
        world: 3,
        layers: 30,
        plan_bounds,
    }
}

pub(crate) fn text(most: usize) -> impl Strategy<Value = String> {
    vec(
        any::<char>().prop_filter("printable", |c| !c.is_control()),
        0..most / 4,
    )
    .prop_map(|letters| letters.into_iter().collect())
}

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9._-]{1,40}"
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(|it| std::net::Ipv4Addr::from(it).to_string()),
        any::<[u8; 16]>().prop_map(|it| std::net::Ipv6Addr::from(it).to_string()),
    ]
    .prop_filter("no wildcard", |text| {
        let address: std::net::IpAddr = text.parse().unwrap();
        !address.to_canonical().is_unspecified()
    })
}

pub(crate) fn identity(role: Role) -> impl Strategy<Value = Identity> {
    let numbers = (
        any::<[u16; 2]>(),
        any::<[u8; 2]>(),
        any::<[u32; 4]>(),
        any::<u64>(),
    );
    let digests = (any::<[u8; 16]>(), any::<[u8; 32]>(), any::<[u8; 32]>());
    let link = prop_oneof![Just(Link::Ring), Just(Link::Control)];
    (numbers, digests, link).prop_map(move |(numbers, digests, link)| {
        let ([protocol, suite], [lane, lanes], [rank, peer_rank, world, options], payload_max) =
            numbers;
        let (launch_id, nonce, fingerprint) = digests;
        Identity {
            protocol,
            suite,
            role,
            link,
            lane,
            lanes,
            rank,
            peer_rank,
            world,
            options,
            payload_max,
            launch_id,
            nonce,
            fingerprint,
        }
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    proptest::sample::select(Refusal::ALL)
}

pub(crate) fn refused() -> impl Strategy<Value = Refused> {
    (refusal(), text(156), any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(code, text, a, b)| {
        let mut heads = [0; 64];
        heads[..32].copy_from_slice(&a);
        heads[32..].copy_from_slice(&b);
        Refused::new(code, &text, heads)
    })
}

/// What bounds a description's other fields: its layers and its largest round.
fn place() -> impl Strategy<Value = Description> {
    let numbers = (
        0_u32..4_000,
        1_u32..96,
        1_u32..=4_096,
        1_u32..=65_536,
        1_u16..,
    );
    let texts = (name(), name(), text(100), text(100), address());
    (numbers, texts).prop_map(|(numbers, texts)| {
        let (first, held, layers, rows_max, port) = numbers;
        let (engine_version, backend, device, host, address) = texts;
        let end = first + held;
        Description {
            first,
            end,
            layers,
            rows_max,
            port,
            engine_version,
            backend,
            device,
            host,
            address,
            ..descriptions::description(1, 3)
        }
    })
}

pub(crate) fn description() -> impl Strategy<Value = Description> {
    let format = (
        1_u32..=1 << 20,
        1_u8..=8,
        1_u8..=3,
        1_u8..=5,
        1_u8..=2,
        0_u32..=1 << 20,
    );
    let shapes = (1_u32..=1_024, 1_u32..=1 << 24, any::<u32>(), any::<u64>());
    let counts = (1_u16..=64, 1_u16..=64, any::<u64>(), any::<u32>());
    let bits = (any::<bool>(), any::<bool>(), 0_u32..2, 0_u32..8);
    (place(), format, shapes, counts, bits).prop_flat_map(
        |(place, format, shapes, counts, bits)| {
            let mut it = place;
            (it.width, it.planes) = (format.0, format.1);
            it.row_dtype = RowDtype::from_number(format.2).unwrap();
            it.kv_dtype = KvDtype::from_number(format.3).unwrap();
            it.sampler = Sampler::from_number(format.4).unwrap();
            it.draft_width = format.5;
            (it.streams_max, it.context, it.states, it.kv_rows) = shapes;
            (
                it.buffers,
                it.rounds_in_flight_max,
                it.weight_bytes,
                it.process,
            ) = counts;
            (it.batch_invariant, it.keep) = (bits.0, bits.1);
            it.ops |= bits.2 << 5;
            it.blocks |= bits.3 << 1;
            let own: Vec<u32> = (it.first..it.end).collect();
            let most = own.len().min(20);
            (
                1..=it.rows_max,
                proptest::sample::subsequence(own, 0..=most),
            )
                .prop_map(move |(chunk_rows, taps)| Description {
                    chunk_rows,
                    taps,
                    ..it.clone()
                })
        },
    )
}

fn roster() -> impl Strategy<Value = Roster> {
    let places = vec((1_u16.., address(), text(100)), 3);
    (1_u32..29, 1_u32..29, places).prop_filter_map("two cuts", |(a, b, places)| {
        let (low, high) = (a.min(b), a.max(b));
        let ends = if low < high {
            [low, high, 30]
        } else {
            return None;
        };
        let firsts = [0, low, high];
        let ranges = firsts.into_iter().zip(ends);
        let members = ranges
            .zip(places)
            .map(|((first, end), (port, address, host))| Member {
                first,
                end,
                port,
                address,
                host,
            });
        Roster::new(members.collect()).ok()
    })
}

fn entry(id: u32) -> impl Strategy<Value = Entry> {
    let numbers = (0_u32..1 << 24, 1_u32..40, 0_u32..40, any::<u32>());
    (1_u8..=5, numbers).prop_map(move |(op, (first, rows, accepted, generation))| {
        let op = Op::from_number(op).unwrap();
        let blank = Entry {
            id,
            op,
            first,
            rows,
            accepted: 0,
            resume: 0,
            generation: 0,
        };
        match op {
            Op::Open => Entry { first: 0, ..blank },
            Op::Continue => Entry {
                accepted,
                generation,
                ..blank
            },
            Op::Close | Op::Cancel => Entry {
                rows: 0,
                generation,
                ..blank
            },
            Op::Resume => Entry {
                first: first + 1,
                resume: first / 2 + 1,
                ..blank
            },
        }
    })
}

fn returns(rows: u32) -> BoxedStrategy<Returns> {
    if rows == 0 {
        return Just(Returns::None).boxed();
    }
    prop_oneof![Just(Returns::All), Just(Returns::Last), Just(Returns::None)].boxed()
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    vec(1_u32..1_000, 0..6)
        .prop_flat_map(|steps| {
            let mut id = 0;
            let ids = steps.into_iter().map(move |step| {
                id += step;
                id
            });
            ids.map(entry).collect::<Vec<_>>()
        })
        .prop_flat_map(|entries| {
            let rows: u32 = entries.iter().map(|entry| entry.rows).sum();
            let inside: Vec<u32> = (1..rows.max(1)).collect();
            let cuts = proptest::sample::subsequence(inside.clone(), 0..=inside.len());
            let returned: Vec<_> = entries.iter().map(|entry| returns(entry.rows)).collect();
            let ids = vec(any::<u32>(), usize::try_from(rows).unwrap());
            let keys = vec(any::<[u8; 16]>(), entries.len());
            let blocks = (
                option::of(returned),
                option::of(ids),
                any::<bool>(),
                option::of(keys),
            );
            (Just(entries), cuts, blocks)
        })
        .prop_map(
            |(entries, cuts, (returns, token_ids, tap_sums, cache_keys))| {
                let parts = if entries.is_empty() {
                    PlanParts::default()
                } else {
                    PlanParts {
                        entries,
                        cuts,
                        returns,
                        token_ids,
                        tap_sums,
                        cache_keys,
                    }
                };
                Plan::from_parts(parts, &surroundings().plan_bounds).unwrap()
            },
        )
}

fn progress() -> impl Strategy<Value = Progress> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>());
    (1_u8..=7, numbers).prop_map(|(phase, (round, counter, busy_limit_ms, done))| Progress {
        rank: 1,
        phase: Phase::from_number(phase).unwrap(),
        round,
        counter,
        busy_limit_ms,
        done,
    })
}

fn fate() -> impl Strategy<Value = Fate> {
    (refusal(), option::of(0_u32..3), 0_u32..3, text(512))
        .prop_map(|(code, culprit, reporter, text)| Fate::new(code, culprit, reporter, &text))
}

/// Any message, with the count that its header carries.
pub(crate) fn message() -> impl Strategy<Value = (Kind, u32, Message)> {
    let digest = any::<[u8; 32]>;
    let ready = any::<(u32, u64, u64)>().prop_map(|(load_ms, held, read)| Ready {
        rank: 1,
        load_ms,
        tensor_bytes_held: held,
        tensor_bytes_read: read,
    });
    let open = (1_u64.., 20_u32..=60_000, 2_u32..=100)
        .prop_map(|(first, interval, silent)| Open::new(first, interval, silent).unwrap());
    let tokens = vec(any::<u32>(), 0..20);
    let figures = any::<[u64; 6]>().prop_map(|values| Figures::of(1, values));
    prop_oneof![
        identity(Role::Connector).prop_map(|it| (Kind::Hello, 0, Message::Hello(it))),
        digest().prop_map(|it| (Kind::Challenge, 0, Message::Challenge(it))),
        digest().prop_map(|it| (Kind::Proof, 0, Message::Proof(it))),
        (identity(Role::Acceptor), digest()).prop_map(|(it, mac)| (
            Kind::Welcome,
            0,
            Message::Welcome(it, mac)
        )),
        (refused(), digest()).prop_map(|(it, mac)| (Kind::Refused, 0, Message::Refused(it, mac))),
        description().prop_map(|it| (Kind::Describe, 0, Message::Describe(Box::new(it)))),
        ready.prop_map(|it| (Kind::Ready, 0, Message::Ready(it))),
        plan().prop_map(|it| (Kind::Plan, 0, Message::Plan(it))),
        (1_u32..).prop_map(|count| (Kind::Credit, count, Message::Credit)),
        progress().prop_map(|it| (Kind::Progress, 0, Message::Progress(it))),
        fate().prop_map(|it| (Kind::Fate, 0, Message::Fate(it))),
        Just((Kind::Bye, 0, Message::Bye)),
        roster().prop_map(|it| (Kind::Roster, 0, Message::Roster(it))),
        open.prop_map(|it| (Kind::Open, 0, Message::Open(it))),
        tokens.prop_map(|it| {
            let count = u32::try_from(it.len()).unwrap();
            (Kind::Tokens, count, Message::Tokens(it))
        }),
        any::<u32>().prop_map(|stream| (Kind::Cancel, 0, Message::Cancel(Cancel { stream }))),
        figures.prop_map(|it| (Kind::Figures, 0, Message::Figures(it))),
    ]
}

/// The payload of a message, by its own encoder.
pub(crate) fn payload_of(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        Message::Hello(it) => out.extend(it.encode()),
        Message::Challenge(it) | Message::Proof(it) => out.extend(it),
        Message::Welcome(it, mac) => {
            out.extend(it.encode());
            out.extend(mac);
        }
        Message::Refused(it, mac) => {
            out.extend(it.encode());
            out.extend(mac);
        }
        Message::Describe(it) => it.encode(&mut out).unwrap(),
        Message::Ready(it) => out.extend(it.encode()),
        Message::Plan(it) => it.encode(&mut out),
        Message::Rows | Message::Credit | Message::Bye => {}
        Message::Progress(it) => out.extend(it.encode()),
        Message::Fate(it) => it.encode(&mut out),
        Message::Roster(it) => it.encode(&mut out).unwrap(),
        Message::Open(it) => out.extend(it.encode()),
        Message::Tokens(it) => out.extend(it.iter().flat_map(|id| id.to_le_bytes())),
        Message::Cancel(it) => out.extend(it.encode()),
        Message::Figures(it) => out.extend(it.encode()),
    }
    out
}

/// A whole frame of a message.
pub(crate) fn frame_of(kind: Kind, count: u32, message: &Message, sequence: u64) -> Vec<u8> {
    let payload = payload_of(message);
    let header = Header::for_payload(kind, sequence, count, &payload, true).unwrap();
    [header.encode().as_slice(), &payload].concat()
}
