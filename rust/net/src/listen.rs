//! The listening socket of a stage: bound to one address of this machine, never a wildcard.
//!
//! It accepts nothing; boot does, while it lasts.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::address::{check_listen, own_addresses, resolve};
use crate::deadline::Deadline;
use crate::error::LinkError;
use crate::socket::ListenSocket;

/// How long a host name in a listen address may take to resolve.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// A bound listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: ListenSocket,
    address: SocketAddr,
}

impl Listener {
    /// Bind `host:port` or `[v6]:port`; port 0 lets the kernel choose.
    ///
    /// Refused by name: `bad_address`, `listen_wildcard`, `listen_foreign`, `listen_taken`.
    pub fn bind(text: &str) -> Result<Self, LinkError> {
        let wanted = resolve(text, Deadline::after(RESOLVE_LIMIT))?;
        check_listen(wanted)?;
        let socket = ListenSocket::bind(wanted).map_err(|error| refuse(wanted, &error))?;
        let address = socket.address().map_err(|error| refuse(wanted, &error))?;
        // What the kernel bound is what counts, not what was asked for.
        check_listen(address)?;
        Ok(Self { socket, address })
    }

    /// The address that was really bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn into_socket(self) -> ListenSocket {
        self.socket
    }
}

fn refuse(address: SocketAddr, error: &io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::AddrInUse => LinkError::config(
            "listen_taken",
            format!("listen address {address} is taken by another process; choose another port"),
        ),
        io::ErrorKind::AddrNotAvailable => LinkError::config(
            "listen_foreign",
            format!(
                "listen address {address} is not of this machine, which has {}",
                own_addresses()
            ),
        ),
        io::ErrorKind::PermissionDenied => LinkError::config(
            "listen_denied",
            format!("listen address {address} is not allowed for this user; choose a port >= 1024"),
        ),
        _ => LinkError::config(
            "bad_address",
            format!("listen address {address} cannot be listened on: {error}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_zero_becomes_a_real_port() {
        assert_ne!(Listener::bind("127.0.0.1:0").unwrap().address().port(), 0);
    }

    #[test]
    fn a_port_that_is_taken_and_a_foreign_address_are_named() {
        let first = Listener::bind("127.0.0.1:0").unwrap();
        let taken = Listener::bind(&first.address().to_string()).unwrap_err();
        assert_eq!(taken.reason, "listen_taken");
        assert_eq!(
            Listener::bind("203.0.113.7:0").unwrap_err().reason,
            "listen_foreign"
        );
        assert_eq!(
            Listener::bind("0.0.0.0:0").unwrap_err().reason,
            "listen_wildcard"
        );
    }
}
