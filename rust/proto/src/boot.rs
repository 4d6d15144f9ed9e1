//! The lead's boot: who is linked, has described itself, is ready (docs/protocol.md 5).
//! It dials nobody; what may come on one link is judged in `conversation`.

use alloc::vec::Vec;

use crate::{
    bytes::to_usize,
    describe::Description,
    error::{ProtocolError, Refusal},
    layout::Layout,
    ready::Ready,
    roster::Roster,
};

/// How far one follower's boot has come, as the lead sees it.
#[derive(Clone, Debug, Default)]
struct Place {
    linked: bool,
    description: Option<Description>,
    ready: Option<Ready>,
}

/// Steps 1 to 8 of section 5 on rank 0.
#[derive(Clone, Debug)]
pub struct LeadBoot {
    places: Vec<Place>,
}

impl LeadBoot {
    /// Rank 0 is linked with itself and has described itself.
    ///
    /// Errors: the rules of section 6.1 for its own description.
    pub fn new(own: Description) -> Result<Self, ProtocolError> {
        own.check()?;
        let mut places = alloc::vec![Place::default(); to_usize(own.world)];
        if let Some(lead) = places.first_mut() {
            *lead = Place {
                linked: true,
                description: Some(own),
                ready: None,
            };
        }
        Ok(Self { places })
    }

    /// True where the control link of `rank` is still to be made.
    #[must_use]
    pub fn is_free(&self, rank: u32) -> bool {
        self.places
            .get(to_usize(rank))
            .is_some_and(|place| !place.linked)
    }

    /// The control link of `rank` is made. Errors: `rank_taken`.
    pub fn linked(&mut self, rank: u32) -> Result<(), ProtocolError> {
        if !self.is_free(rank) {
            return Err(Refusal::RankTaken
                .error("the rank is linked already")
                .of_rank(rank));
        }
        self.place(rank)?.linked = true;
        Ok(())
    }

    /// A follower has described itself. Errors: `rank_duplicate`.
    pub fn described(&mut self, description: Description) -> Result<(), ProtocolError> {
        let rank = description.rank;
        let place = self.place(rank)?;
        if place.description.is_some() {
            let error = Refusal::RankDuplicate.error("expected one description of each rank");
            return Err(error.of_rank(rank));
        }
        place.description = Some(description);
        Ok(())
    }

    /// A rank, the lead too, is loaded and warm. Errors: `unexpected_kind` for a second time.
    pub fn ready(&mut self, ready: Ready) -> Result<(), ProtocolError> {
        let rank = ready.rank;
        let place = self.place(rank)?;
        if place.ready.is_some() {
            return Err(Refusal::UnexpectedKind
                .error("expected one ready")
                .of_rank(rank));
        }
        place.ready = Some(ready);
        Ok(())
    }

    /// The ranks that have not described themselves.
    pub fn undescribed(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks(|place| place.description.is_none())
    }

    /// The ranks that are not ready.
    pub fn unready(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks(|place| place.ready.is_none())
    }

    /// Step 3: all descriptions together. Errors: `never_joined`, section 6.1.1.
    pub fn layout(&self) -> Result<Layout, ProtocolError> {
        let descriptions: Vec<Description> = self.descriptions().cloned().collect();
        let world = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        Layout::agree(&descriptions, world)
    }

    /// Step 4: what the lead hands out.
    pub fn roster(&self) -> Result<Roster, ProtocolError> {
        Roster::of_descriptions(self.descriptions())
    }

    /// The descriptions so far, in rank order.
    pub fn descriptions(&self) -> impl Iterator<Item = &Description> + '_ {
        self.places
            .iter()
            .filter_map(|place| place.description.as_ref())
    }

    /// The readies so far, in rank order.
    pub fn readies(&self) -> impl Iterator<Item = &Ready> + '_ {
        self.places.iter().filter_map(|place| place.ready.as_ref())
    }

    fn ranks(&self, is: impl Fn(&Place) -> bool) -> impl Iterator<Item = u32> {
        self.places
            .iter()
            .zip(0_u32..)
            .filter_map(move |(place, rank)| is(place).then_some(rank))
    }

    fn place(&mut self, rank: u32) -> Result<&mut Place, ProtocolError> {
        let world = u64::try_from(self.places.len()).unwrap_or(u64::MAX);
        self.places.get_mut(to_usize(rank)).ok_or_else(|| {
            let last = world.saturating_sub(1);
            Refusal::RankDescription
                .outside("rank", 0_u32, last, rank)
                .of_rank(rank)
        })
    }
}
