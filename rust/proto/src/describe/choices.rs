//! The numbered choices of a description: dtypes and sampler (docs/protocol.md 6.1).
//! They compute nothing.

use crate::error::{ProtocolError, Refusal};

macro_rules! wire_enum {
    (
        $(#[$doc:meta])* $name:ident $field:literal
        { $($(#[$variant_doc:meta])* $number:literal $variant:ident $text:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(Self::$variant => $number,)+ }
            }

            /// The name in docs/protocol.md.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The value of a number. Errors: `bad_enum`.
            pub fn from_number(number: u8) -> Result<Self, ProtocolError> {
                match number {
                    $($number => Ok(Self::$variant),)+
                    _ => Err(Refusal::BadEnum.unknown($field, number)),
                }
            }

            /// The value of a name. Errors: `bad_enum`.
            pub fn from_name(name: &str) -> Result<Self, ProtocolError> {
                match name {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(Refusal::BadEnum.text(alloc::format!(
                        "expected a {} of {}, got {name:?}",
                        $field,
                        [$($text),+].join(", "),
                    ))),
                }
            }
        }
    };
}
pub(crate) use wire_enum;

wire_enum! {
    /// Element type of boundary rows.
    RowDtype "row_dtype" {
        /// 4 bytes.
        1 Float32 "float32",
        /// 2 bytes, as 16-bit words.
        2 Bfloat16 "bfloat16",
        /// 2 bytes.
        3 Float16 "float16",
    }
}

impl RowDtype {
    /// Bytes of one value.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Float32 => 4,
            Self::Bfloat16 | Self::Float16 => 2,
        }
    }
}

wire_enum! {
    /// Element type of the KV; it may differ from stage to stage.
    KvDtype "kv_dtype" {
        /// 4 bytes.
        1 Float32 "float32",
        /// 2 bytes.
        2 Bfloat16 "bfloat16",
        /// 2 bytes.
        3 Float16 "float16",
        /// Blocks of 8-bit values.
        4 Q8 "q8_0",
        /// Something else.
        5 Other "other",
    }
}

wire_enum! {
    /// Which stage samples.
    Sampler "sampler" {
        /// Rank 0: a ring, rows return.
        1 First "first",
        /// The last rank: a chain, tokens return.
        2 Last "last",
    }
}
