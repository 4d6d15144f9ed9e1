//! Little-endian reading and writing: the only place that cuts byte slices.
//! It knows no message; it answers a short or long payload and a bad text with their refusals.

use alloc::{string::String, vec::Vec};

use crate::error::{ProtocolError, Refusal};

/// Widens a wire size to a memory size; `limits` asserts that this loses nothing.
#[expect(
    clippy::as_conversions,
    reason = "usize has at least 32 bits, asserted in limits"
)]
pub(crate) const fn to_usize(value: u32) -> usize {
    value as usize
}

/// Narrows a length that the caller has bounded, or names the field that is too long.
pub(crate) fn to_u32(value: usize, what: &'static str) -> Result<u32, ProtocolError> {
    u32::try_from(value).map_err(|_| Refusal::Local.outside(what, 0_u32, u32::MAX, u64::MAX))
}

/// Reads fields one after the other; never beyond the payload.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or_else(|| self.short(bytes))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| self.short(N))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reserved bytes: zero, or `reserved_not_zero`.
    pub(crate) fn reserved(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        if self.take(bytes)?.iter().any(|&byte| byte != 0) {
            return Err(Refusal::ReservedNotZero.error("expected zeros in reserved bytes"));
        }
        Ok(())
    }

    /// A text of a known length: UTF-8 without control characters, or `bad_text`.
    pub(crate) fn text(&mut self, bytes: usize) -> Result<&'a str, ProtocolError> {
        let text = core::str::from_utf8(self.take(bytes)?)
            .map_err(|_| Refusal::BadText.error("expected a text in UTF-8"))?;
        check_text(text)?;
        Ok(text)
    }

    /// A text after one byte that says its length.
    pub(crate) fn short_text(&mut self) -> Result<String, ProtocolError> {
        let bytes = self.u8()?;
        self.text(usize::from(bytes)).map(String::from)
    }

    /// The payload's end: nothing may follow the last field.
    pub(crate) fn finish(self) -> Result<(), ProtocolError> {
        match u64::try_from(self.rest.len()) {
            Ok(0) => Ok(()),
            rest => Err(Refusal::PayloadTrailing.numbers(
                "bytes after the last field",
                0_u32,
                rest.unwrap_or(u64::MAX),
            )),
        }
    }

    fn short(&self, needed: usize) -> ProtocolError {
        let count = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let (needed, rest) = (count(needed), count(self.rest.len()));
        Refusal::PayloadShort.numbers("bytes for the next field", needed, rest)
    }
}

/// Refuses control characters, which could forge a line of a log or a terminal.
pub(crate) fn check_text(text: &str) -> Result<(), ProtocolError> {
    if text.chars().any(char::is_control) {
        return Err(Refusal::BadText.error("expected a text without control characters"));
    }
    Ok(())
}

/// The longest beginning of `text` of at most `bytes` bytes that cuts no character, on one line.
pub(crate) fn one_line(text: &str, bytes: usize) -> String {
    let mut line = String::with_capacity(text.len().min(bytes));
    for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len().saturating_add(character.len_utf8()) > bytes {
            break;
        }
        line.push(character);
    }
    line
}

/// Little-endian fields, written one after the other.
pub(crate) trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn zeros(&mut self, bytes: usize) {
        for _ in 0..bytes {
            self.u8(0);
        }
    }

    fn short_text(&mut self, text: &str) -> Result<(), ProtocolError> {
        check_text(text)?;
        let bytes = u8::try_from(text.len())
            .map_err(|_| Refusal::BadText.error("expected a text of at most 255 bytes"))?;
        self.u8(bytes);
        self.bytes(text.as_bytes());
        Ok(())
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A message of a fixed size on the stack; its writer fills all of it, which the tests check.
pub(crate) struct Fixed<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Fixed<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            filled: 0,
        }
    }

    pub(crate) fn finish(self) -> [u8; N] {
        debug_assert_eq!(self.filled, N, "a fixed message is written whole");
        self.bytes
    }
}

impl<const N: usize> Put for Fixed<N> {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.filled.saturating_add(bytes.len());
        if let Some(place) = self.bytes.get_mut(self.filled..end) {
            place.copy_from_slice(bytes);
        }
        self.filled = end;
    }
}
