//! Addresses as people write them: parse one, and refuse one that must not be listened on.
//!
//! It opens no socket; a name is looked up under a deadline.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;

use crate::deadline::Deadline;
use crate::error::LinkError;

/// The longest address text that is looked at: a domain name of 253 bytes, and a port.
const ADDRESS_CHARS_MAX: usize = 260;

/// Parse `host:port` or `[v6]:port`; a host name is resolved until the deadline.
pub fn resolve(text: &str, deadline: Deadline) -> Result<SocketAddr, LinkError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let shown: String = text.chars().take(80).collect();
    let well_formed = text.len() <= ADDRESS_CHARS_MAX
        && text.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok()
        });
    if !well_formed {
        return Err(LinkError::config(
            "bad_address",
            format!("address {shown:?} is not host:port or [v6]:port"),
        ));
    }
    look_up(text, deadline).ok_or_else(|| {
        LinkError::config(
            "bad_address",
            format!("the name in address {shown:?} has no address; check it, or give the numbers"),
        )
    })
}

fn look_up(text: &str, deadline: Deadline) -> Option<SocketAddr> {
    // The system's resolver takes no deadline, so it gets a thread of its own that may be left.
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = text.to_owned();
    std::thread::Builder::new()
        .name("stagelink-resolve".into())
        .spawn(move || {
            let found = name.to_socket_addrs().ok().and_then(|mut all| {
                let first = all.next()?;
                Some(
                    std::iter::once(first)
                        .chain(all)
                        .find(SocketAddr::is_ipv4)
                        .unwrap_or(first),
                )
            });
            // The caller may have given up; then nobody wants the answer.
            let _ = sender.send(found);
        })
        .ok()?;
    receiver.recv_timeout(deadline.remaining()).ok().flatten()
}

/// Refuse an address that a stage must not listen on: a wildcard or a multicast one.
pub fn check_listen(address: SocketAddr) -> Result<(), LinkError> {
    let ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        return Err(LinkError::config(
            "listen_wildcard",
            format!(
                "listen address {address} is a wildcard and would be open on every network; \
                 give one of this machine's addresses: {}",
                own_addresses()
            ),
        ));
    }
    if ip.is_multicast() {
        return Err(LinkError::config(
            "listen_foreign",
            format!("listen address {address} is a multicast address, expected one of a machine"),
        ));
    }
    Ok(())
}

/// This machine's addresses with their interfaces, for a person who chose a wrong one.
#[must_use]
pub fn own_addresses() -> String {
    let Ok(all) = if_addrs::get_if_addrs() else {
        return "(unknown)".into();
    };
    let mut shown: Vec<String> = all
        .iter()
        .filter(|interface| !is_link_local(interface.ip()))
        .take(16)
        .map(|interface| format!("{} ({})", interface.ip(), interface.name))
        .collect();
    shown.dedup();
    if shown.is_empty() {
        "none".into()
    } else {
        shown.join(", ")
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> Result<SocketAddr, LinkError> {
        resolve(text, Deadline::after(Duration::from_secs(5)))
    }

    #[test]
    fn an_address_of_numbers_needs_no_look_up() {
        assert_eq!(parse("10.0.0.1:7000").unwrap().port(), 7000);
        assert!(parse("[::1]:7000").unwrap().is_ipv6());
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        for text in [
            "",
            ":",
            ":7000",
            "host",
            "host:",
            "host:99999",
            "::1:7000",
            "a b",
            "1.2.3.4:-1",
        ] {
            assert_eq!(parse(text).unwrap_err().reason, "bad_address", "{text}");
        }
    }

    #[test]
    fn a_wildcard_in_every_spelling_is_refused() {
        for text in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:1"] {
            let refused = check_listen(parse(text).unwrap()).unwrap_err();
            assert_eq!(refused.reason, "listen_wildcard");
        }
        assert!(check_listen(parse("127.0.0.1:0").unwrap()).is_ok());
    }
}
