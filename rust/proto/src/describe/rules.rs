//! Rules that several messages' fields share: ranges, bits, texts, addresses.
//! Which field has which rule its message says.

use core::{net::IpAddr, ops::RangeInclusive};

use crate::{
    error::{ProtocolError, Refusal},
    limits,
};

/// A port that can be dialled.
pub(crate) fn check_port(port: u16) -> Result<(), ProtocolError> {
    if port == 0 {
        return Err(Refusal::BadAddress.error("expected a port of 1 or more"));
    }
    Ok(())
}

/// A literal address that can be dialled: no name, no wildcard.
pub(crate) fn check_address(address: &str) -> Result<(), ProtocolError> {
    let parsed: IpAddr = address.parse().map_err(|_| {
        Refusal::BadAddress.text(alloc::format!(
            "expected a literal address, got {address:?}"
        ))
    })?;
    if parsed.to_canonical().is_unspecified() {
        return Err(Refusal::BadAddress.text(alloc::format!("{address} is a wildcard")));
    }
    Ok(())
}

pub(crate) fn check_text_bytes(text: &str) -> Result<(), ProtocolError> {
    if text.len() > limits::TEXT_MAX {
        return Err(Refusal::BadText.error("expected a text of at most 255 bytes"));
    }
    Ok(())
}

pub(crate) fn check_range<T>(
    what: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ProtocolError>
where
    T: Copy + Into<u64> + PartialOrd,
{
    if range.contains(&value) {
        return Ok(());
    }
    Err(Refusal::BadLimit.outside(what, *range.start(), *range.end(), value))
}

pub(super) fn check_bits(
    what: &'static str,
    bits: u32,
    least: u32,
    all: u32,
) -> Result<(), ProtocolError> {
    if bits & least == least && bits & !all == 0 {
        return Ok(());
    }
    Err(Refusal::BadLimit.outside(what, least, all, bits))
}
