//! Rings of several ranks in one process, over real loopback sockets, and a peer made by hand.
//! It asserts nothing.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its own part"
)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use stagelink_net::error::LinkError;
use stagelink_net::join::Settings;
use stagelink_net::listen::Listener;
use stagelink_net::ring::Ring;
use stagelink_net::wait::{Strategy, Uninterrupted};
use stagelink_proto::describe::{BLOCKS_LEAST, Description, KvDtype, OPS_LEAST, RowDtype, Sampler};
use stagelink_proto::hello::Suite;
use stagelink_proto::plan::{Entry, Op, Plan, PlanBounds, PlanParts, Returns};
use stagelink_proto::ready::Ready;

/// The key of every ring here.
pub const KEY: [u8; 32] = [7; 32];
/// Values of a row, float32.
pub const WIDTH: u32 = 16;
/// Most rows of a round.
pub const ROWS_MAX: u32 = 4096;

static FILES: AtomicU32 = AtomicU32::new(0);

/// A file of the user's own that is gone when the value is.
pub struct KeyFile(pub PathBuf);

impl KeyFile {
    pub fn new(key: [u8; 32]) -> Self {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("stagelink-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .unwrap();
        file.write_all(&key).unwrap();
        Self(path)
    }

    pub fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn description(rank: u32, world: u32) -> Description {
    Description {
        rank,
        world,
        first: rank * 10,
        end: rank * 10 + 10,
        layers: world * 10,
        width: WIDTH,
        planes: 1,
        row_dtype: RowDtype::Float32,
        kv_dtype: KvDtype::Float32,
        sampler: Sampler::First,
        chunk_rows: 64,
        rows_max: ROWS_MAX,
        streams_max: 4,
        context: 1 << 20,
        states: 4,
        kv_rows: 1 << 22,
        draft_width: 0,
        buffers: 2,
        rounds_in_flight_max: 8,
        ops: OPS_LEAST,
        blocks: BLOCKS_LEAST,
        batch_invariant: false,
        keep: true,
        weight_bytes: 1000,
        process: 0,
        port: 1,
        engine_version: "test 1".into(),
        backend: "none".into(),
        device: "none".into(),
        host: format!("host{rank}"),
        address: "127.0.0.1".into(),
        taps: Vec::new(),
    }
}

/// Settings with short timers; the listener's port is the kernel's choice.
pub fn settings(rank: u32, world: u32, lead: Option<String>, key: &KeyFile) -> Settings {
    Settings {
        listener: Listener::bind("127.0.0.1:0").unwrap(),
        lead,
        key_file: key.path(),
        launch_id: None,
        fields: std::array::from_fn(|index| [u8::try_from(index).unwrap(); 32]),
        description: description(rank, world),
        join_limit: Duration::from_secs(10),
        keepalive: Duration::from_millis(100),
        silent_intervals: 3,
        strategy: Strategy::Block,
        suite: Suite::Psk,
        checksums: true,
    }
}

pub fn join(settings: Settings) -> Result<Ring, LinkError> {
    Ring::join(settings, &Uninterrupted)
}

pub fn ready(ring: &Ring) -> Result<(), LinkError> {
    let rank = ring.rank();
    let ready = Ready {
        rank,
        load_ms: 1,
        tensor_bytes_held: 2,
        tensor_bytes_read: 3,
    };
    ring.ready(ready, Duration::from_secs(10), &Uninterrupted)
}

/// A complete and open ring, in rank order; `change` alters every rank's settings.
pub fn open_ring(world: u32, change: impl Fn(&mut Settings) + Sync) -> Vec<Ring> {
    let rings = join_all(world, change);
    thread::scope(|scope| {
        for ring in &rings {
            scope.spawn(move || ready(ring).unwrap());
        }
    });
    rings
}

/// A complete ring whose stages are still loading.
pub fn join_all(world: u32, change: impl Fn(&mut Settings) + Sync) -> Vec<Ring> {
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, world, None, &key);
    change(&mut lead);
    let address = lead.listener.address().to_string();
    let change = &change;
    thread::scope(|scope| {
        let mut handles = vec![scope.spawn(move || join(lead).unwrap())];
        for rank in 1..world {
            let mut follower = settings(rank, world, Some(address.clone()), &key);
            change(&mut follower);
            handles.push(scope.spawn(move || join(follower).unwrap()));
        }
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    })
}

/// One stream's rows in one round.
pub fn plan(op: Op, first: u32, rows: u32, accepted: u32, returns: Returns) -> Plan {
    let entry = Entry {
        id: 1,
        op,
        first,
        rows,
        accepted,
        resume: 0,
        generation: 0,
    };
    let parts = PlanParts {
        entries: vec![entry],
        returns: Some(vec![returns]),
        ..PlanParts::default()
    };
    Plan::from_parts(parts, &PlanBounds::default()).unwrap()
}

/// Serve rounds until bye: send on what came, each byte one more than it was.
pub fn follow(ring: &Ring) -> Result<u32, LinkError> {
    let last = ring.rank() + 1 == ring.world();
    let mut rows = vec![0_u8; (ROWS_MAX * WIDTH * 4) as usize];
    let mut served = 0;
    while let Some((round, plan)) = ring.receive_plan(&Uninterrupted)? {
        served += 1;
        if plan.rows() == 0 {
            continue;
        }
        let lent = stagelink_net::lent::LentMut::from_slice(&mut rows);
        let count = ring.receive_rows(round, lent, &Uninterrupted)?;
        let bytes = (count * WIDTH * 4) as usize;
        rows[..bytes]
            .iter_mut()
            .for_each(|byte| *byte = byte.wrapping_add(1));
        let returned = (plan.rows_returned() * WIDTH * 4) as usize;
        let out = if last {
            &rows[bytes - returned..bytes]
        } else {
            &rows[..bytes]
        };
        let lent = stagelink_net::lent::Lent::from_slice(out);
        ring.send_rows(round, lent, &Uninterrupted)?;
    }
    ring.close();
    Ok(served)
}

/// Join a ring of `world` with every rank's settings altered; each rank's outcome, rank 0 first.
pub fn join_each(
    world: u32,
    change: impl Fn(&mut Settings) + Sync,
    visit: impl FnOnce(SocketAddr) + Send,
) -> Vec<Result<Ring, LinkError>> {
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, world, None, &key);
    change(&mut lead);
    let address = lead.listener.address();
    let (change, key) = (&change, &key);
    thread::scope(|scope| {
        let lead = scope.spawn(move || join(lead));
        visit(address);
        let mut handles = vec![lead];
        for rank in 1..world {
            handles.push(scope.spawn(move || {
                let mut follower = settings(rank, world, Some(address.to_string()), key);
                change(&mut follower);
                join(follower)
            }));
        }
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    })
}
