//! What a probe asks of a ring beside its rows: the boundary links' sockets, and which interface an
//! address is on.
//!
//! It measures nothing: times are taken where the rows are moved, and the kernel's own facts are
//! read from the sockets by the caller.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use crate::error::LinkError;
use crate::ring::Ring;

impl Ring {
    /// Duplicates of the boundary links' sockets: to the next rank, and from the previous one.
    ///
    /// They are closed on exec, and only to be asked for facts: the bytes are the ring's. Errors:
    /// `link_busy` while a thread moves rows and after the end, `descriptors` where none is left.
    pub fn boundary_sockets(&self) -> Result<[OwnedFd; 2], LinkError> {
        let (next, previous) = (
            self.shared.outgoing.try_lock(),
            self.shared.incoming.try_lock(),
        );
        if let (Ok(next), Ok(previous)) = (&next, &previous)
            && let (Some(next), Some(previous)) = (next.as_ref(), previous.as_ref())
        {
            return Ok([duplicate(next.socket())?, duplicate(previous.socket())?]);
        }
        Err(LinkError::config(
            "link_busy",
            "expected an open ring whose rows rest, to ask its boundary links for facts",
        ))
    }
}

/// The name of this machine's interface that has the address; `None` where none has it.
///
/// Of several (an address that is doubled by a person's mistake) it is the first.
#[must_use]
pub fn interface_of(address: IpAddr) -> Option<String> {
    let address = address.to_canonical();
    let all = if_addrs::get_if_addrs().ok()?;
    let found = all.into_iter().find(|interface| interface.ip() == address);
    found.map(|interface| interface.name)
}

fn duplicate(socket: impl AsFd) -> Result<OwnedFd, LinkError> {
    socket.as_fd().try_clone_to_owned().map_err(|error| {
        LinkError::config(
            "descriptors",
            format!("cannot open one more descriptor of a link: {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_on_an_interface_and_a_foreign_one_is_not() {
        assert!(interface_of("127.0.0.1".parse().unwrap()).is_some());
        assert!(interface_of("::ffff:127.0.0.1".parse().unwrap()).is_some());
        // TEST-NET-1, which no machine has.
        assert_eq!(interface_of("192.0.2.1".parse().unwrap()), None);
    }
}
