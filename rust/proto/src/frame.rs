//! The 32-byte frame header: kinds, sizes, sequence, checksums (docs/protocol.md 3).
//! It keeps no state; order and sequence are judged in `conversation`.

use crc::{CRC_32_ISCSI, Crc, Table};

use crate::{
    bytes::{Fixed, Put as _, Reader},
    error::{ProtocolError, Refusal},
    limits,
};

const MAGIC: [u8; 4] = *b"SLNK";
const VERSION: u8 = 1;
const FLAG_CHECKSUM: u16 = 1;
const FLAG_SEALED: u16 = 4;

macro_rules! kinds {
    ($($number:literal $variant:ident $name:literal $meaning:literal;)+) => {
        /// What a frame is.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Kind {
            $(#[doc = $meaning] $variant,)+
        }

        impl Kind {
            /// Every kind, in ascending order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(Self::$variant => $number,)+ }
            }

            /// The name in docs/protocol.md.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The kind of a number, if there is one.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// The kind of a name, if there is one.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

kinds! {
    1 Hello "hello" "Identity block of the connector.";
    2 Challenge "challenge" "Nonce of the acceptor.";
    3 Proof "proof" "MAC of the connector.";
    4 Welcome "welcome" "Identity block and MAC of the acceptor.";
    5 Refused "refused" "A named refusal of the acceptor, with its MAC.";
    16 Describe "describe" "What a follower is.";
    17 Ready "ready" "A follower is loaded and warm.";
    18 Plan "plan" "What one round does.";
    19 Rows "rows" "Hidden rows of one round.";
    20 Credit "credit" "Buffers that are free again.";
    21 Progress "progress" "What an engine does, and that its process lives.";
    22 Fate "fate" "The ring ends, and why.";
    23 Bye "bye" "The orderly end.";
    24 Roster "roster" "Every rank's range and address.";
    25 Open "open" "The ring runs.";
    26 Tokens "tokens" "Token ids from the last rank.";
    27 Cancel "cancel" "Advice that a stream will be cancelled.";
    28 Figures "figures" "What a follower's loop came to.";
}

/// How many payload bytes a kind has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PayloadSize {
    /// Exactly so many.
    Exactly(u32),
    /// At most so many; the payload's own parser knows the rest.
    AtMost(u32),
    /// Four for each of the header's count.
    FourEach,
}

impl Kind {
    /// The payload's size, as far as the kind alone tells.
    #[must_use]
    pub const fn payload_size(self) -> PayloadSize {
        match self {
            Self::Hello => PayloadSize::Exactly(128),
            Self::Challenge | Self::Proof | Self::Open => PayloadSize::Exactly(32),
            Self::Welcome => PayloadSize::Exactly(160),
            Self::Refused => PayloadSize::Exactly(256),
            Self::Describe => PayloadSize::AtMost(limits::DESCRIBE_BYTES_MAX),
            Self::Ready | Self::Progress => PayloadSize::Exactly(40),
            Self::Plan => PayloadSize::AtMost(limits::PLAN_BYTES_MAX),
            Self::Rows => PayloadSize::AtMost(limits::PAYLOAD_BYTES_MAX),
            Self::Credit | Self::Bye => PayloadSize::Exactly(0),
            Self::Fate => PayloadSize::AtMost(limits::FATE_BYTES_MAX),
            Self::Roster => PayloadSize::AtMost(limits::ROSTER_BYTES_MAX),
            Self::Tokens => PayloadSize::FourEach,
            Self::Cancel => PayloadSize::Exactly(8),
            Self::Figures => PayloadSize::Exactly(56),
        }
    }

    /// True for the five kinds of the handshake.
    #[must_use]
    pub const fn is_handshake(self) -> bool {
        matches!(
            self,
            Self::Hello | Self::Challenge | Self::Proof | Self::Welcome | Self::Refused
        )
    }

    /// True where the header's sequence field is a round number.
    #[must_use]
    pub const fn carries_round(self) -> bool {
        matches!(self, Self::Plan | Self::Rows | Self::Tokens)
    }
}

/// What both ends of a connection have settled about its frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrameRules {
    /// Payloads carry checksums (handshake frames always do).
    pub checksums: bool,
    /// Largest payload that this end said it takes.
    pub payload_max: u64,
    /// Every frame is sealed, and then none has a checksum (section 4.6).
    pub sealed: bool,
}

impl Default for FrameRules {
    fn default() -> Self {
        Self {
            checksums: true,
            payload_max: u64::from(limits::PAYLOAD_BYTES_MAX),
            sealed: false,
        }
    }
}

/// A frame header that keeps every rule that needs no state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Bytes after the header.
    pub payload_bytes: u32,
    /// Rows, tokens or credits; 0 for other kinds.
    pub count: u32,
    /// Round number of plan, rows and tokens, else the connection's sequence number.
    pub sequence: u64,
    /// The payload has a checksum.
    pub checksummed: bool,
    /// CRC-32C of the payload, 0 where the connection goes without.
    pub payload_checksum: u32,
}

impl Header {
    /// A header for `payload`, with its checksum where `checksums` says so.
    ///
    /// Errors: `local` for a payload beyond 4 GiB, else what a receiver would answer.
    pub fn for_payload(
        kind: Kind,
        sequence: u64,
        count: u32,
        payload: &[u8],
        checksums: bool,
    ) -> Result<Self, ProtocolError> {
        let payload_bytes = crate::bytes::to_u32(payload.len(), "payload bytes")?;
        let checksummed = checksums || kind.is_handshake();
        let payload_checksum = if checksummed { checksum(payload) } else { 0 };
        let header = Self {
            kind,
            payload_bytes,
            count,
            sequence,
            checksummed,
            payload_checksum,
        };
        header.check_sizes(&FrameRules {
            checksums,
            ..FrameRules::default()
        })?;
        Ok(header)
    }

    /// Reads a header and makes every check of section 3 that needs no state, in its order.
    pub fn parse(bytes: &[u8; 32], rules: &FrameRules) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(bytes);
        if fields.array::<4>()? != MAGIC {
            return Err(Refusal::BadMagic.error("expected a frame that starts with SLNK"));
        }
        let version = fields.u8()?;
        let kind = fields.u8()?;
        let flags = fields.u16()?;
        let payload_bytes = fields.u32()?;
        let count = fields.u32()?;
        let sequence = fields.u64()?;
        let payload_checksum = fields.u32()?;
        if fields.u32()? != header_checksum(bytes) {
            return Err(Refusal::HeaderChecksum.error("expected the CRC-32C of the header"));
        }
        if version != VERSION {
            return Err(Refusal::BadVersion.numbers("frame version", VERSION, version));
        }
        let kind =
            Kind::from_number(kind).ok_or_else(|| Refusal::UnknownKind.unknown("kind", kind))?;
        check_flags(kind, flags, rules)?;
        let checksummed = flags & FLAG_CHECKSUM != 0;
        let header = Self {
            kind,
            payload_bytes,
            count,
            sequence,
            checksummed,
            payload_checksum,
        };
        header.check_sizes(rules)?;
        Ok(header)
    }

    /// The header's bytes, with its own checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; 32] {
        let flags = if self.checksummed { FLAG_CHECKSUM } else { 0 };
        self.encode_with(flags, self.payload_checksum)
    }

    /// The header's bytes on a sealed link: the flag for it, and no payload checksum.
    #[must_use]
    pub fn encode_sealed(&self) -> [u8; 32] {
        self.encode_with(FLAG_SEALED, 0)
    }

    fn encode_with(&self, flags: u16, payload_checksum: u32) -> [u8; 32] {
        let mut out = Fixed::<{ limits::HEADER_CHECKED_BYTES }>::new();
        out.bytes(&MAGIC);
        out.u8(VERSION);
        out.u8(self.kind.number());
        out.u16(flags);
        out.u32(self.payload_bytes);
        out.u32(self.count);
        out.u64(self.sequence);
        out.u32(payload_checksum);
        let checked = out.finish();
        let mut whole = Fixed::<{ limits::HEADER_BYTES }>::new();
        whole.bytes(&checked);
        whole.u32(checksum(&checked));
        whole.finish()
    }

    /// Compares the payload's checksum, computed by the caller, with the header's.
    ///
    /// Where the connection goes without, `computed` is not looked at and the field must be 0.
    pub fn check_payload(&self, computed: u32) -> Result<(), ProtocolError> {
        let expected = if self.checksummed { computed } else { 0 };
        if self.payload_checksum == expected {
            return Ok(());
        }
        let (what, got) = ("payload checksum", self.payload_checksum);
        Err(Refusal::PayloadChecksum.numbers(what, expected, got))
    }

    fn check_sizes(&self, rules: &FrameRules) -> Result<(), ProtocolError> {
        let got = u64::from(self.payload_bytes);
        let (exactly, most) = match self.kind.payload_size() {
            PayloadSize::Exactly(bytes) => (u64::from(bytes), u64::MAX),
            PayloadSize::FourEach => (u64::from(self.count).saturating_mul(4), rules.payload_max),
            PayloadSize::AtMost(most) => (got, rules.payload_max.min(u64::from(most))),
        };
        if got != exactly {
            return Err(Refusal::PayloadSize.numbers("payload bytes", exactly, got));
        }
        if got > most.min(u64::from(limits::PAYLOAD_BYTES_MAX)) {
            return Err(Refusal::PayloadTooLarge.outside("payload bytes", 0_u32, most, got));
        }
        self.check_count()
    }

    fn check_count(&self) -> Result<(), ProtocolError> {
        match self.kind {
            Kind::Rows | Kind::Tokens => Ok(()),
            Kind::Credit if self.count >= 1 => Ok(()),
            Kind::Credit => Err(Refusal::BadCount.outside("credits", 1_u32, u32::MAX, 0_u32)),
            _ if self.count == 0 => Ok(()),
            _ => Err(Refusal::BadCount.numbers("count", 0_u32, self.count)),
        }
    }
}

/// CRC-32C of a whole payload; portable, so that rows take a faster one outside.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    CRC_32C.checksum(bytes)
}

/// CRC-32C of a payload that comes in pieces.
#[derive(Clone)]
pub struct Checksum(crc::Digest<'static, u32, Table<16>>);

impl Checksum {
    /// The checksum of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(CRC_32C.digest())
    }

    /// Takes the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The value over all pieces.
    #[must_use]
    pub const fn finish(self) -> u32 {
        self.0.finalize()
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Checksum")
    }
}

fn header_checksum(bytes: &[u8; 32]) -> u32 {
    let (checked, _) = bytes
        .split_first_chunk::<{ limits::HEADER_CHECKED_BYTES }>()
        .map_or_else(
            || (&[][..], &[][..]),
            |(head, rest)| (head.as_slice(), rest),
        );
    checksum(checked)
}

fn check_flags(kind: Kind, flags: u16, rules: &FrameRules) -> Result<(), ProtocolError> {
    if rules.sealed {
        return check_sealed_flags(flags);
    }
    if flags & !FLAG_CHECKSUM != 0 {
        return Err(Refusal::UnknownFlag.outside("flags", 0_u32, FLAG_CHECKSUM, flags));
    }
    let agreed = u16::from(rules.checksums || kind.is_handshake());
    if flags != agreed {
        return Err(Refusal::MissingChecksum.numbers("checksum flag", agreed, flags));
    }
    Ok(())
}

fn check_sealed_flags(flags: u16) -> Result<(), ProtocolError> {
    if flags & !(FLAG_CHECKSUM | FLAG_SEALED) != 0 {
        let most = FLAG_CHECKSUM | FLAG_SEALED;
        return Err(Refusal::UnknownFlag.outside("flags", 0_u32, most, flags));
    }
    if flags != FLAG_SEALED {
        return Err(Refusal::NotSealed.numbers("flags of a sealed frame", FLAG_SEALED, flags));
    }
    Ok(())
}

static CRC_32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn checksum_is_crc_32c() {
        assert_eq!(checksum(b"123456789"), 0xE306_9283);
    }
}
