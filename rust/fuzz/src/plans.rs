//! Plans in order of arrival at one follower: three bytes of its capacity, then pieces.
//!
//! A refused plan changes nothing; an admitted one leaves every limit kept; the frames that a
//! plan asks for are the ones that are taken.

use stagelink_proto::describe::{OPS_ALL, RowDtype};
use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::plan::{Plan, PlanBounds};
use stagelink_proto::rows::{Boundary, ExpectedRows, RowsFormat};
use stagelink_proto::streams::{Capacity, Streams};

use crate::payload::check_plan;
use crate::source::Source;

/// # Panics
///
/// Where a rule does not hold.
pub fn judge(input: &[u8]) {
    let mut source = Source::new(input);
    let (size, positions, wide) = (source.u8(), source.u8(), source.u8());
    let capacity = Capacity {
        context: 1 + u32::from(size),
        states: 1 + u32::from(wide & 3),
        kv_rows: 1 + u64::from(positions),
    };
    let bounds = PlanBounds {
        ops: OPS_ALL,
        draft_width: u32::from(wide >> 4),
        ..PlanBounds::default()
    };
    let format = RowsFormat {
        width: 1 + u32::from(wide),
        planes: 1 + (wide >> 2 & 3),
        row_dtype: RowDtype::Float32,
        draft_width: bounds.draft_width,
    };
    let mut streams = Streams::new(capacity);
    let mut kept = Plan::with_capacity(&bounds);
    for round in 1.. {
        let Some(payload) = source.piece() else {
            return;
        };
        let fresh = Plan::parse(payload, &bounds);
        let again = kept.parse_into(payload, &bounds);
        assert_eq!(fresh.as_ref().err(), again.as_ref().err());
        let Ok(plan) = fresh else {
            assert!(kept.is_keep_alive() && kept.rows() == 0);
            continue;
        };
        assert!(plan == kept, "memory that is used again changes nothing");
        check_plan(&plan);
        check_frames(round, &plan, &format);
        admit(&mut streams, &plan, &capacity);
    }
}

fn admit(streams: &mut Streams, plan: &Plan, capacity: &Capacity) {
    let before = streams.open().to_vec();
    let verdict = streams.check(plan);
    assert_eq!(
        streams.admit(plan),
        verdict,
        "a check tells what admission does"
    );
    if verdict.is_err() {
        assert_eq!(streams.open(), before, "a refused plan changes nothing");
        return;
    }
    assert!(streams.positions() <= capacity.kv_rows);
    assert!(streams.open().len() as u64 <= u64::from(capacity.states));
    assert!(streams.open().windows(2).all(|two| two[0].id < two[1].id));
    for stream in streams.open() {
        assert!(stream.position() <= capacity.context);
        assert_eq!(streams.stream(stream.id), Some(stream));
    }
}

fn check_frames(round: u64, plan: &Plan, format: &RowsFormat) {
    for boundary in [Boundary::Forward, Boundary::Return, Boundary::ReturnTokens] {
        let Ok(Some(expected)) = ExpectedRows::of_plan(round, plan, boundary, format) else {
            continue;
        };
        let header = Header {
            kind: expected.kind,
            payload_bytes: expected.payload_bytes,
            count: expected.count,
            sequence: round,
            checksummed: true,
            payload_checksum: 0,
        };
        assert_eq!(expected.check(&header), Ok(()));
        for other in [
            Header {
                sequence: round + 1,
                ..header
            },
            Header {
                count: header.count + 1,
                ..header
            },
            Header {
                payload_bytes: header.payload_bytes ^ 1,
                ..header
            },
            Header {
                kind: Kind::Credit,
                ..header
            },
        ] {
            assert!(
                expected.check(&other).is_err(),
                "{other:?} for {expected:?}"
            );
        }
    }
}
