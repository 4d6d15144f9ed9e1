//! The start of a rank: check its settings, read its key, and boot it into a ring.
//!
//! What happens between the ranks is `boot`; what happens afterwards is `ring`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::describe::Description;
use stagelink_proto::fingerprint::Fingerprint;
use stagelink_proto::hello::{LAUNCH_UNKNOWN, Suite};
use stagelink_proto::layout::Layout;
use stagelink_proto::plan::PlanBounds;
use stagelink_proto::proof::Secret;
use stagelink_proto::streams::Capacity;

use crate::address::resolve;
use crate::boot::{Boot, member_of, own_fault};
use crate::control::{Shared, spawn};
use crate::control_link::Reading;
use crate::deadline::Deadline;
use crate::error::{Kind, LinkError};
use crate::key_file::read_key_file;
use crate::listen::Listener;
use crate::ring::{Ring, Terms};
use crate::rounds::Rounds;
use crate::wait::{Interrupt, Strategy};

/// What a rank is started with.
#[derive(Debug)]
pub struct Settings {
    /// Used up by the call; closed when the ring is complete.
    pub listener: Listener,
    /// Rank 0's address; `None` on rank 0.
    pub lead: Option<String>,
    /// Path of the key file.
    pub key_file: String,
    /// `None`: random on rank 0, learned from it on a follower.
    pub launch_id: Option<[u8; 16]>,
    /// The eight field digests of the fingerprint.
    pub fields: [[u8; 32]; 8],
    /// What this stage is; address, port and process are filled in.
    pub description: Description,
    /// Absolute limit of the whole boot.
    pub join_limit: Duration,
    /// Keep-alive interval; rank 0's is told to all.
    pub keepalive: Duration,
    /// Silent intervals that end the ring.
    pub silent_intervals: u32,
    /// How the calling thread waits for rows and plans.
    pub strategy: Strategy,
    /// How every link is protected; the same on every rank.
    pub suite: Suite,
    /// False on every rank leaves out the payload checksums; a sealed suite has none.
    pub checksums: bool,
}

impl Ring {
    /// Steps 1 to 5 of docs/protocol.md 5.
    ///
    /// Errors: what is wrong with the settings, before anything is sent; then what any rank
    /// reports, the same on all of them.
    pub fn join(settings: Settings, interrupt: &dyn Interrupt) -> Result<Self, LinkError> {
        let deadline = Deadline::after(settings.join_limit);
        let own = described(&settings)?;
        let lead = lead_address(&settings, deadline)?;
        let key = read_key_file(&settings.key_file)?;
        let secret = Secret::from_key(&key);
        drop(key);
        let bounds = own_bounds(&own);
        let reading = Reading {
            world: own.world,
            layers: own.layers,
            bounds,
        };
        let (interval, silent) = (settings.keepalive, settings.silent_intervals);
        let shared = Shared::new(own.clone(), reading, interval, silent).map_err(no_resources)?;
        let shared = Arc::new(shared);
        shared.members().put(member_of(&own));
        let thread = spawn(Arc::clone(&shared)).map_err(no_resources)?;
        let boot = Boot {
            shared: &shared,
            secret,
            fingerprint: Fingerprint::new(settings.fields),
            own: own.clone(),
            suite: settings.suite,
            checksums: settings.checksums,
            deadline,
            interrupt,
        };
        let agreed = match lead {
            None => {
                let launch_id = settings.launch_id.map_or_else(random_launch_id, Ok);
                launch_id.and_then(|launch_id| boot.lead(settings.listener, launch_id))
            }
            Some(lead) => {
                let launch_id = settings.launch_id.unwrap_or(LAUNCH_UNKNOWN);
                boot.follow(settings.listener, lead, launch_id)
            }
        };
        let agreed = agreed.inspect_err(|error| give_up(&shared, error))?;
        let (bounds, capacity, in_flight) = limits_of(&own, agreed.layout.as_ref());
        let bulk = crate::posted::spawn(&shared).map_err(no_resources)?;
        Ok(Self {
            control: Mutex::new(Some(thread)),
            bulk: Mutex::new(bulk),
            terms: Terms {
                launch_id: agreed.launch_id,
                strategy: settings.strategy,
                checksums: settings.checksums && !settings.suite.is_sealed(),
                keepalive: settings.keepalive,
                silent_intervals: settings.silent_intervals,
                format: own.rows_format(),
                bounds,
                no_keep: agreed.no_keep,
                strangers: agreed.strangers,
            },
            rounds: Mutex::new(Rounds::new(capacity, in_flight)),
            process: std::process::id(),
            shared,
        })
    }
}

/// Tell whoever is linked already how the boot ended.
fn give_up(shared: &Shared, error: &LinkError) {
    if error.kind == Kind::Interrupted {
        // The others would only see a lost connection.
        let text = "interrupted while the ring came together";
        shared.fail(Refusal::Interrupted, text);
    }
    // The thread tells the fate, if there is one, before it ends.
    shared.stop();
    shared
        .fate
        .wait_told(Deadline::after(Duration::from_secs(1)));
}

/// The description with what only the link knows.
fn described(settings: &Settings) -> Result<Description, LinkError> {
    let mut own = settings.description.clone();
    let address = settings.listener.address();
    own.address = address.ip().to_string();
    own.port = address.port();
    own.process = std::process::id();
    own.check().map_err(|error| own_fault(&error))?;
    let need = own.rows_format().payload_need(own.rows_max);
    need.map_err(|error| own_fault(&error))?;
    let millis = settings.keepalive.as_millis();
    if !(20..=60_000).contains(&millis) || !(2..=100).contains(&settings.silent_intervals) {
        return Err(LinkError::config(
            "keepalive",
            format!(
                "keep-alive interval {millis} ms with {} silent intervals; \
                 expected 20 to 60000 ms and 2 to 100",
                settings.silent_intervals
            ),
        ));
    }
    Ok(own)
}

fn lead_address(settings: &Settings, deadline: Deadline) -> Result<Option<SocketAddr>, LinkError> {
    let rank = settings.description.rank;
    let lead = match (&settings.lead, rank) {
        (None, 0) => return Ok(None),
        (Some(_), 0) => {
            return Err(LinkError::config(
                "lead",
                "rank 0 is the lead and dials no lead's address",
            ));
        }
        (None, _) => {
            return Err(LinkError::config(
                "lead",
                format!("rank {rank} needs the address of rank 0 (--lead HOST:PORT)"),
            ));
        }
        (Some(text), _) => resolve(text, deadline)?,
    };
    let own = settings.listener.address();
    if lead.ip().is_unspecified() || lead.port() == 0 {
        return Err(LinkError::config(
            "bad_address",
            format!("rank 0's address {lead} cannot be dialled; give its real address and port"),
        ));
    }
    if own.ip().is_loopback() && !lead.ip().is_loopback() {
        return Err(LinkError::config(
            "listen_loopback",
            format!(
                "listen address {own} is reachable from this machine only, but rank 0 is at \
                 {lead}; listen on an address that the other ranks can reach: {}",
                crate::address::own_addresses()
            ),
        ));
    }
    Ok(Some(lead))
}

fn own_bounds(own: &Description) -> PlanBounds {
    PlanBounds {
        streams_max: own.streams_max,
        rows_max: own.rows_max,
        ops: own.ops,
        blocks: own.blocks,
        draft_width: own.draft_width,
    }
}

/// The lead plans for the tightest stage; a follower refuses what it cannot do itself.
fn limits_of(own: &Description, layout: Option<&Layout>) -> (PlanBounds, Capacity, u16) {
    if let Some(layout) = layout {
        return (
            layout.plan_bounds,
            layout.capacity,
            layout.rounds_in_flight_max,
        );
    }
    let capacity = Capacity {
        context: own.context,
        states: own.states,
        kv_rows: own.kv_rows,
    };
    (own_bounds(own), capacity, own.rounds_in_flight_max)
}

fn random_launch_id() -> Result<[u8; 16], LinkError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| {
        own_fault(&Refusal::Local.error("the operating system gave no random bytes"))
    })?;
    Ok(id)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
fn no_resources(error: std::io::Error) -> LinkError {
    LinkError::config(
        "resources",
        format!("no descriptor or thread for the ring: {error}"),
    )
}
