//! Refusals: one stable code for every rule of the protocol, and the error that carries one.
//! It does not say who is at fault; the caller knows whether the bytes were its own or a peer's.

use alloc::string::String;
use core::fmt;

macro_rules! refusals {
    ($($number:literal $variant:ident $name:literal $meaning:literal;)+) => {
        /// A broken rule, by its code in docs/protocol.md 9.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[non_exhaustive]
        pub enum Refusal {
            $(#[doc = $meaning] $variant,)+
        }

        impl Refusal {
            /// Every refusal, in ascending order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number that fate and refused frames carry.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Self::$variant => $number,)+ }
            }

            /// The stable name: the `reason` of every error that the user sees.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What was wrong, in a few words for a person.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            /// The refusal of a number, if there is one.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// The refusal of a name, if there is one.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

refusals! {
    1 BadMagic "bad_magic" "the bytes are not a stagelink frame";
    2 BadVersion "bad_version" "the frame is of another version";
    3 UnknownKind "unknown_kind" "the frame is of an unknown kind";
    4 UnknownFlag "unknown_flag" "a header flag is unknown or not for this version";
    5 HeaderChecksum "header_checksum" "the header does not match its checksum";
    6 PayloadChecksum "payload_checksum" "the payload does not match its checksum";
    7 PayloadTooLarge "payload_too_large" "the payload is larger than its kind may be";
    8 PayloadSize "payload_size" "the payload is not of its kind's size";
    9 BadCount "bad_count" "the header's count is not one that its kind allows";
    10 BadSequence "bad_sequence" "a frame is missing, doubled or out of order";
    11 ReservedNotZero "reserved_not_zero" "a reserved byte or bit is set";
    12 UnexpectedKind "unexpected_kind" "the frame's kind may not come now";
    13 MissingChecksum "missing_checksum" "payload checksums are not as agreed";
    14 Truncated "truncated" "the connection ended inside a frame";
    15 NotSealed "not_sealed" "a frame is not sealed on a sealed link";
    16 Seal "seal" "a sealed record was changed, moved or made with another key";
    20 Key "key" "the keys differ";
    21 BadRole "bad_role" "the peer's role is not the opposite of ours";
    22 BadLink "bad_link" "the link is unknown or not expected";
    23 NonceReflected "nonce_reflected" "our own nonce came back";
    24 NonceChanged "nonce_changed" "the welcome's nonce is not the challenge";
    25 Protocol "protocol" "the protocol versions differ";
    26 Suite "suite" "the suites differ";
    27 Options "options" "the options differ";
    28 Rank "rank" "the peer's rank is not the one that this link connects";
    29 PeerRank "peer_rank" "the peer believes to talk to another rank";
    30 World "world" "the worlds differ";
    31 Launch "launch" "the peer belongs to another launch";
    32 Lane "lane" "the lane is not one of the link's";
    33 Lanes "lanes" "the numbers of lanes differ";
    34 PayloadCap "payload_cap" "the peer takes too small payloads for this layout";
    35 RankTaken "rank_taken" "the rank's place is taken";
    40 FingerprintConfig "fingerprint_config" "the model configurations differ";
    41 FingerprintTensors "fingerprint_tensors" "the checkpoints' tensors differ";
    42 FingerprintTokenizer "fingerprint_tokenizer" "the tokenizers differ";
    43 FingerprintTemplate "fingerprint_template" "the chat templates differ";
    44 FingerprintDtype "fingerprint_dtype" "the dtypes differ";
    45 FingerprintPlacement "fingerprint_placement" "the placements differ";
    46 FingerprintVersions "fingerprint_versions" "the versions differ";
    47 FingerprintShapes "fingerprint_shapes" "the execution shapes differ";
    48 Fingerprint "fingerprint" "the fingerprints differ";
    50 BadPrefixMagic "bad_prefix_magic" "the payload's prefix has another magic";
    51 BadPrefixVersion "bad_prefix_version" "the payload's prefix has another version";
    52 BadPrefixMessage "bad_prefix_message" "the payload's prefix names another message";
    53 BadText "bad_text" "a text is too long, empty, or not plain UTF-8";
    54 PayloadTrailing "payload_trailing" "bytes follow the payload's last field";
    55 PayloadShort "payload_short" "the payload ends before its fields do";
    60 EngineVersion "engine_version" "the engine versions differ";
    61 FormatWidth "format_width" "the row widths differ";
    62 FormatDtype "format_dtype" "the row dtypes differ";
    63 FormatPlanes "format_planes" "the numbers of planes differ";
    64 DraftWidth "draft_width" "the tap sum widths differ";
    65 RangeEmpty "range_empty" "the layer range is empty";
    66 RangeGap "range_gap" "layers are held by no rank";
    67 RangeOverlap "range_overlap" "layers are held twice";
    68 RangeOverrun "range_overrun" "the layer range ends after the last layer";
    69 Layers "layers" "the numbers of layers differ";
    70 CapacityKvRows "capacity_kv_rows" "the KV holds less than one context";
    71 CapacityStates "capacity_states" "fewer streams can be open than a round may have";
    72 RankDuplicate "rank_duplicate" "two descriptions have the same rank";
    73 WorldDescription "world_description" "a description has another world";
    74 BadAddress "bad_address" "an address or port cannot be dialled";
    75 BadEnum "bad_enum" "a field holds an unknown choice";
    76 BadLimit "bad_limit" "a field is outside its limits";
    77 Sampler "sampler" "the samplers differ or one is not implemented";
    78 RankDescription "rank_description" "a message has another rank than its link";
    79 Shapes "shapes" "the execution shapes of two descriptions differ";
    80 StreamsOrder "streams_order" "stream ids do not ascend";
    81 BadOp "bad_op" "a stream op is unknown";
    82 OpenFirst "open_first" "an open does not start at position 0";
    83 OpenAccepted "open_accepted" "a new stream has accepted rows";
    84 OpenGeneration "open_generation" "a new stream has a generation";
    85 ResumePoint "resume_point" "the resume point is not inside the stream";
    86 RowsWithClose "rows_with_close" "a close or cancel carries rows";
    87 RowsMissing "rows_missing" "an entry that needs rows has none";
    88 CutOrder "cut_order" "chunk cuts do not ascend";
    89 CutOutside "cut_outside" "a chunk cut is not inside the round";
    90 BadReturns "bad_returns" "an entry's returned rows are not a known choice";
    91 UnknownBlock "unknown_block" "a plan block is unknown";
    92 UnsupportedBlock "unsupported_block" "a plan block is not implemented here";
    93 UnsupportedOp "unsupported_op" "a stream op is not implemented here";
    94 TooManyStreams "too_many_streams" "a plan has too many streams";
    95 TooManyRows "too_many_rows" "a plan has too many rows";
    96 ResumeNotZero "resume_not_zero" "an entry that is no resume has a resume point";
    97 CloseAccepted "close_accepted" "a close or cancel has accepted rows";
    98 TooManyRounds "too_many_rounds" "too many rounds are in flight";
    110 UnknownStream "unknown_stream" "the stream is not open";
    111 StreamReused "stream_reused" "a stream id was opened before";
    112 StaleGeneration "stale_generation" "the stream's state is of another generation";
    113 WrongPosition "wrong_position" "the stream's state is at another position";
    114 AcceptedOutside "accepted_outside" "more rows are accepted than the last round had";
    115 ContextOverrun "context_overrun" "a stream would grow beyond the context";
    116 StreamsFull "streams_full" "all states are taken";
    117 KvFull "kv_full" "the KV cannot hold the round's positions";
    120 RowsSize "rows_size" "a rows frame is not of the plan's size";
    121 RowsCount "rows_count" "a rows frame does not have the plan's rows";
    122 RowsRound "rows_round" "a rows frame is of another round";
    123 NoCredit "no_credit" "a rows frame came without a free buffer";
    124 CreditOverflow "credit_overflow" "more credits came than there are buffers";
    125 TokensCount "tokens_count" "a tokens frame does not have the plan's returned rows";
    130 PeerLost "peer_lost" "the connection to the peer was lost";
    131 Deadline "deadline" "a deadline passed";
    132 Silent "silent" "the peer was not heard for too long";
    133 Stalled "stalled" "the peer's engine does not get on";
    134 Engine "engine" "an engine failed";
    135 Interrupted "interrupted" "a rank was interrupted";
    136 NeverJoined "never_joined" "a rank never joined";
    137 ProgressBackwards "progress_backwards" "a progress counter went backwards";
    138 Local "local" "this side tried something illegal";
    139 BatchInvariance "batch_invariance" "only some ranks promise batch invariance";
}

impl Refusal {
    /// True for what never leaves the acceptor: it answers a stranger with a plain close.
    #[must_use]
    pub const fn is_for_strangers(self) -> bool {
        matches!(self, Self::BadRole | Self::Key | Self::NonceReflected)
    }

    /// True for refusals that end only their own connection, not the boot (docs/protocol.md 4.3).
    #[must_use]
    pub const fn ends_only_the_connection(self) -> bool {
        matches!(self, Self::Lane | Self::Launch | Self::RankTaken)
    }

    /// An error with this refusal and a fixed text.
    #[must_use]
    pub const fn error(self, text: &'static str) -> ProtocolError {
        ProtocolError {
            refusal: self,
            detail: Detail::Fixed(text),
            rank: None,
        }
    }

    /// An error that says which number was expected and which one came.
    #[must_use]
    pub fn numbers(
        self,
        what: &'static str,
        expected: impl Into<u64>,
        got: impl Into<u64>,
    ) -> ProtocolError {
        let (expected, got) = (expected.into(), got.into());
        ProtocolError {
            refusal: self,
            detail: Detail::Numbers {
                what,
                expected,
                got,
            },
            rank: None,
        }
    }

    /// An error for a number outside `first..=last`.
    #[must_use]
    pub fn outside(
        self,
        what: &'static str,
        first: impl Into<u64>,
        last: impl Into<u64>,
        got: impl Into<u64>,
    ) -> ProtocolError {
        let (first, last, got) = (first.into(), last.into(), got.into());
        let detail = Detail::Outside {
            what,
            first,
            last,
            got,
        };
        ProtocolError {
            refusal: self,
            detail,
            rank: None,
        }
    }

    /// An error about one stream of a plan.
    #[must_use]
    pub fn stream(self, stream: u32, text: &'static str, expected: u32, got: u32) -> ProtocolError {
        let detail = Detail::Stream {
            stream,
            what: text,
            expected,
            got,
        };
        ProtocolError {
            refusal: self,
            detail,
            rank: None,
        }
    }

    /// An error about a number that has no meaning here.
    #[must_use]
    pub fn unknown(self, what: &'static str, got: impl Into<u64>) -> ProtocolError {
        let got = got.into();
        ProtocolError {
            refusal: self,
            detail: Detail::Unknown { what, got },
            rank: None,
        }
    }

    /// An error about a named thing that came in place of another.
    #[must_use]
    pub const fn named(self, what: &'static str, got: &'static str) -> ProtocolError {
        ProtocolError {
            refusal: self,
            detail: Detail::Named { what, got },
            rank: None,
        }
    }

    /// An error with a text made for the occasion.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> ProtocolError {
        ProtocolError {
            refusal: self,
            detail: Detail::Text(text.into()),
            rank: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A broken rule: its code, what was expected and what came, and the rank that it names.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{refusal}: {detail}")]
pub struct ProtocolError {
    /// The rule.
    pub refusal: Refusal,
    /// What was expected and what came.
    pub detail: Detail,
    /// The rank that broke the rule, where the rule itself tells; the caller knows the link's peer.
    pub rank: Option<u32>,
}

impl ProtocolError {
    /// The same error, naming the rank that broke the rule.
    #[must_use]
    pub fn of_rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }
}

/// The text of an error; only [`Detail::Text`] takes memory.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Detail {
    /// A text that says it all.
    Fixed(&'static str),
    /// One number was expected and another came.
    Numbers {
        /// The field.
        what: &'static str,
        /// What the rule demands.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// A number is not in `first..=last`.
    Outside {
        /// The field.
        what: &'static str,
        /// Smallest legal value.
        first: u64,
        /// Largest legal value.
        last: u64,
        /// What came.
        got: u64,
    },
    /// One number of a stream entry is not the one that the rule demands.
    Stream {
        /// The stream's id.
        stream: u32,
        /// The field.
        what: &'static str,
        /// What the rule demands.
        expected: u32,
        /// What came.
        got: u32,
    },
    /// A number has no meaning here.
    Unknown {
        /// The field.
        what: &'static str,
        /// What came.
        got: u64,
    },
    /// A named thing came in place of another.
    Named {
        /// What the rule demands.
        what: &'static str,
        /// What came.
        got: &'static str,
    },
    /// A text made for the occasion.
    Text(String),
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(text) => f.write_str(text),
            Self::Numbers {
                what,
                expected,
                got,
            } => {
                write!(f, "expected {what} {expected}, got {got}")
            }
            Self::Outside {
                what,
                first,
                last,
                got,
            } => {
                write!(f, "expected {what} in {first}..={last}, got {got}")
            }
            Self::Stream {
                stream,
                what,
                expected,
                got,
            } => {
                write!(f, "stream {stream}: expected {what} {expected}, got {got}")
            }
            Self::Unknown { what, got } => write!(f, "unknown {what} {got}"),
            Self::Named { what, got } => write!(f, "expected {what}, got {got}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;

    #[test]
    fn every_refusal_is_found_again_by_number_and_by_name() {
        for &refusal in Refusal::ALL {
            assert_eq!(Refusal::from_number(refusal.number()), Some(refusal));
            assert_eq!(Refusal::from_name(refusal.name()), Some(refusal));
        }
    }

    #[test]
    fn numbers_ascend() {
        assert!(
            Refusal::ALL
                .iter()
                .map(|refusal| refusal.number())
                .is_sorted()
        );
    }
}
