//! Rounds in flight, credits and rows frames: what fits the plan and what does not.
//! Bytes of rows frames have vectors.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use stagelink_proto::{
    ProtocolError, Refusal,
    describe::RowDtype,
    frame::{Header, Kind},
    in_flight::{Buffers, Credits, InFlight},
    plan::{Entry, Op, Plan, PlanBounds, PlanParts, Returns},
    rows::{Boundary, ExpectedRows, RowsFormat},
};

const FORMAT: RowsFormat = RowsFormat {
    width: 3,
    planes: 2,
    row_dtype: RowDtype::Bfloat16,
    draft_width: 5,
};

fn refusal<T>(verdict: Result<T, ProtocolError>) -> Option<Refusal> {
    verdict.err().map(|error| error.refusal)
}

fn plan(rows: u32, returns: Returns, tap_sums: bool) -> Plan {
    let entry = Entry {
        id: 1,
        op: Op::Open,
        first: 0,
        rows,
        accepted: 0,
        resume: 0,
        generation: 0,
    };
    let parts = PlanParts {
        entries: vec![entry],
        returns: Some(vec![returns]),
        tap_sums,
        ..PlanParts::default()
    };
    Plan::from_parts(
        parts,
        &PlanBounds {
            draft_width: 5,
            ..PlanBounds::default()
        },
    )
    .unwrap()
}

fn expected(round: u64) -> ExpectedRows {
    let plan = plan(4, Returns::Last, false);
    ExpectedRows::of_plan(round, &plan, Boundary::Forward, &FORMAT)
        .unwrap()
        .unwrap()
}

fn header(it: &ExpectedRows) -> Header {
    Header {
        kind: it.kind,
        payload_bytes: it.payload_bytes,
        count: it.count,
        sequence: it.round,
        checksummed: true,
        payload_checksum: 0,
    }
}

#[test]
fn a_forward_frame_has_every_row_and_a_return_frame_those_that_return() {
    let of = |returns, boundary, taps| {
        let plan = plan(4, returns, taps);
        let it = ExpectedRows::of_plan(9, &plan, boundary, &FORMAT)
            .unwrap()
            .unwrap();
        (it.kind, it.count, it.payload_bytes)
    };
    assert_eq!(
        of(Returns::Last, Boundary::Forward, false),
        (Kind::Rows, 4, 4 * 12)
    );
    assert_eq!(
        of(Returns::Last, Boundary::Forward, true),
        (Kind::Rows, 4, 4 * 32)
    );
    assert_eq!(
        of(Returns::Last, Boundary::Return, false),
        (Kind::Rows, 1, 12)
    );
    assert_eq!(
        of(Returns::None, Boundary::Return, true),
        (Kind::Rows, 0, 0)
    );
    assert_eq!(
        of(Returns::All, Boundary::ReturnTokens, true),
        (Kind::Tokens, 4, 16)
    );
}

#[test]
fn a_keep_alive_is_followed_by_no_rows_frame() {
    let none = ExpectedRows::of_plan(9, &Plan::keep_alive(), Boundary::Forward, &FORMAT);
    assert_eq!(none, Ok(None));
}

#[test]
fn a_round_that_no_frame_can_carry_is_refused_before_it_is_sent() {
    let wide = RowsFormat {
        width: 1 << 20,
        planes: 8,
        ..FORMAT
    };
    assert_eq!(
        refusal(wide.payload_need(65_536)),
        Some(Refusal::PayloadTooLarge)
    );
    let many = plan(1_000, Returns::All, false);
    let verdict = ExpectedRows::of_plan(1, &many, Boundary::Forward, &wide);
    assert_eq!(refusal(verdict), Some(Refusal::PayloadTooLarge));
}

#[test]
fn rows_are_judged_by_round_then_count_then_size() {
    let due = expected(9);
    let good = header(&due);
    assert_eq!(refusal(due.check(&good)), None);
    let all_wrong = Header {
        sequence: 8,
        count: 1,
        payload_bytes: 1,
        ..good
    };
    assert_eq!(refusal(due.check(&all_wrong)), Some(Refusal::RowsRound));
    let two_wrong = Header {
        sequence: 9,
        ..all_wrong
    };
    assert_eq!(refusal(due.check(&two_wrong)), Some(Refusal::RowsCount));
    let one_wrong = Header {
        count: 4,
        ..two_wrong
    };
    assert_eq!(refusal(due.check(&one_wrong)), Some(Refusal::RowsSize));
    let tokens = Header {
        kind: Kind::Tokens,
        ..good
    };
    assert_eq!(refusal(due.check(&tokens)), Some(Refusal::UnexpectedKind));
}

#[test]
fn rounds_finish_in_the_order_in_which_they_began() {
    let mut rounds = InFlight::new(2);
    rounds.begin(expected(5)).unwrap();
    rounds.begin(expected(8)).unwrap();
    assert_eq!(
        refusal(rounds.begin(expected(9))),
        Some(Refusal::TooManyRounds)
    );
    assert_eq!(
        refusal(rounds.check_rows(&header(&expected(8)))),
        Some(Refusal::RowsRound)
    );
    assert_eq!(refusal(rounds.finish(8)), Some(Refusal::Local));
    assert_eq!(rounds.finish(5).unwrap().round, 5);
    assert_eq!(rounds.finish(8).unwrap().round, 8);
    assert!(rounds.is_empty());
    assert_eq!(
        refusal(rounds.check_rows(&header(&expected(8)))),
        Some(Refusal::RowsRound)
    );
}

#[test]
fn credits_go_back_when_half_of_the_buffers_are_owed() {
    for (most, due) in [(1, 1), (2, 1), (3, 2), (16, 8)] {
        let mut buffers = Buffers::new(most);
        for _ in 1..due {
            buffers.fill().unwrap();
            assert_eq!(buffers.due(), 0, "of {most}");
        }
        buffers.fill().unwrap();
        assert_eq!(buffers.due(), due, "of {most}");
    }
}

#[test]
fn a_sender_never_lacks_a_credit_once_its_frames_are_taken() {
    for most in 1..=8 {
        let (mut credits, mut buffers) = (Credits::new(most), Buffers::new(most));
        for _ in 0..100 {
            let mut unread = 0;
            while credits.is_ready() {
                credits.take().unwrap();
                unread += 1;
            }
            assert!(unread > 0, "of {most}");
            for _ in 0..unread {
                buffers.fill().unwrap();
                let due = buffers.due();
                buffers.release(due).unwrap();
                credits.receive(due).unwrap();
            }
        }
    }
}

#[test]
fn credits_and_buffers_stay_in_step() {
    let (mut credits, mut buffers) = (Credits::new(2), Buffers::new(2));
    for _ in 0..3 {
        credits.take().unwrap();
        buffers.fill().unwrap();
        credits.take().unwrap();
        buffers.fill().unwrap();
        assert!(!credits.is_ready());
        assert_eq!(refusal(credits.take()), Some(Refusal::NoCredit));
        assert_eq!(refusal(buffers.fill()), Some(Refusal::NoCredit));
        buffers.release(2).unwrap();
        credits.receive(2).unwrap();
    }
    assert_eq!(refusal(buffers.release(1)), Some(Refusal::Local));
    assert_eq!(refusal(credits.receive(1)), Some(Refusal::CreditOverflow));
    assert!(
        credits.is_ready(),
        "a refused credit frame has changed nothing"
    );
}

#[test]
fn a_plan_made_here_is_judged_like_a_peers() {
    let open = Entry {
        id: 1,
        op: Op::Open,
        first: 1,
        rows: 1,
        accepted: 0,
        resume: 0,
        generation: 0,
    };
    let made = |parts: PlanParts| refusal(Plan::from_parts(parts, &PlanBounds::default()));
    let entries = vec![open];
    let parts = PlanParts {
        entries,
        ..PlanParts::default()
    };
    assert_eq!(made(parts.clone()), Some(Refusal::OpenFirst));
    let good = PlanParts {
        entries: vec![Entry { first: 0, ..open }],
        ..parts
    };
    assert_eq!(made(good.clone()), None);
    let short = PlanParts {
        token_ids: Some(vec![]),
        ..good.clone()
    };
    assert_eq!(made(short), Some(Refusal::Local));
    let cut = PlanParts {
        cuts: vec![1],
        ..good
    };
    assert_eq!(made(cut), Some(Refusal::CutOutside));
}
