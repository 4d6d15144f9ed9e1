//! All descriptions of a ring: its size, then one piece for each rank.
//!
//! Whatever order they come in the verdict is the same, and an accepted layout holds every layer
//! once.

use stagelink_proto::boot::LeadBoot;
use stagelink_proto::describe::Description;
use stagelink_proto::layout::Layout;
use stagelink_proto::roster::Roster;

use crate::source::Source;

/// # Panics
///
/// Where a rule does not hold.
pub fn judge(input: &[u8]) {
    let mut source = Source::new(input);
    let world = u32::from(source.u8());
    let mut ranks = Vec::new();
    while let Some(payload) = source.piece() {
        match Description::parse(payload) {
            Ok(description) => ranks.push(description),
            Err(_) => return,
        }
    }
    let verdict = Layout::agree(&ranks, world);
    boot(&ranks);
    if verdict.is_ok() {
        check(&mut ranks, world);
    }
    ranks.reverse();
    let reversed = Layout::agree(&ranks, world);
    assert_eq!(reversed.is_ok(), verdict.is_ok(), "order of arrival");
}

/// The lead takes the descriptions one by one.
fn boot(ranks: &[Description]) {
    let Some((lead, followers)) = ranks.split_first() else {
        return;
    };
    let Ok(mut boot) = LeadBoot::new(lead.clone()) else {
        return;
    };
    for follower in followers {
        let _ = boot.linked(follower.rank);
        let _ = boot.described(follower.clone());
    }
    if boot.layout().is_ok() {
        boot.roster().expect("who agrees has a roster");
    }
}

fn check(ranks: &mut [Description], world: u32) {
    ranks.sort_by_key(|one| one.rank);
    let layers = ranks[0].layers;
    assert_eq!(ranks.len() as u64, u64::from(world));
    assert_eq!(ranks.first().map(|one| one.first), Some(0));
    assert_eq!(ranks.last().map(|one| one.end), Some(layers));
    assert!(ranks.windows(2).all(|two| two[0].end == two[1].first));
    let roster = Roster::of_descriptions(ranks.iter()).expect("who agrees has a roster");
    let mut bytes = Vec::new();
    roster.encode(&mut bytes).expect("a roster can be sent");
    assert_eq!(Roster::parse(&bytes, world, layers), Ok(roster));
}
