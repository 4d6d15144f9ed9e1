//! Nonblocking TCP sockets with the options every link has, and the poll that all waits use.
//!
//! It knows no frames and no deadlines; callers loop.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, TcpKeepalive, Type};

/// How long the kernel lets sent bytes stay unacknowledged; a backstop behind the keep-alives.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 64;

/// One connection: nonblocking, without Nagle's delay, closed on exec.
#[derive(Debug)]
pub(crate) struct Socket {
    raw: RawSocket,
}

impl Socket {
    /// Start to connect; the socket becomes writable when it is done or has failed.
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let raw = new_raw(address)?;
        let socket = Self::with_options(raw)?;
        match socket.raw.connect(&address.into()) {
            Err(error) if !in_progress(&error) => Err(error),
            _ => Ok(socket),
        }
    }

    /// The connection's error, once it is writable; `None` when it stands.
    pub(crate) fn connect_error(&self) -> Option<io::Error> {
        match self.raw.take_error() {
            Ok(None) => self.raw.peer_addr().err(),
            Ok(error) => error,
            Err(error) => Some(error),
        }
    }

    /// The other side's address, for texts.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.raw.peer_addr().ok()?.as_socket()
    }

    /// Send what fits; 0 bytes gone is `WouldBlock`.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(&self.raw, bytes, flags)
    }

    /// Receive what is there; 0 is the other side's close.
    pub(crate) fn receive(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let (count, _) = rustix::net::recv(&self.raw, bytes, RecvFlags::DONTWAIT)?;
        Ok(count)
    }

    /// Let the kernel take few bytes that it cannot send yet, so that what waits is seen here.
    pub(crate) fn bound_unsent(&self, bytes: u32) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return self.raw.set_tcp_notsent_lowat(bytes);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = bytes;
            Ok(())
        }
    }

    /// Say that nothing more will be sent; what was sent still arrives.
    pub(crate) fn finish(&self) {
        // A socket that is gone already has nothing to finish.
        let _ = self.raw.shutdown(std::net::Shutdown::Write);
    }

    /// End the connection at once, so that the other side sees a reset and not a half frame.
    pub(crate) fn reset(&self) {
        let _ = SockRef::from(&self.raw).set_linger(Some(Duration::ZERO));
        let _ = self.raw.shutdown(std::net::Shutdown::Both);
    }

    /// Let sent bytes wait for a reader however long it computes before it takes them.
    ///
    /// The kernel counts a closed window as no answer, so its own limit would end the link of a
    /// stage that is busy for long with rounds waiting before its door. That a boundary carries
    /// nothing is the lead's to judge (`stuck`).
    pub(crate) fn outwait_busy_reader(&self) {
        // Without it a busy reader is only waited for less long.
        #[cfg(target_os = "linux")]
        let _ = SockRef::from(&self.raw).set_tcp_user_timeout(None);
    }

    fn with_options(raw: RawSocket) -> io::Result<Self> {
        raw.set_nonblocking(true)?;
        raw.set_tcp_nodelay(true)?;
        // Backstops for a peer whose machine vanished; the keep-alive frames are the detector.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5));
        raw.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        raw.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        #[cfg(not(target_os = "linux"))]
        let _ = USER_TIMEOUT;
        #[cfg(target_vendor = "apple")]
        raw.set_nosigpipe(true)?;
        Ok(Self { raw })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

/// A bound socket that listens.
#[derive(Debug)]
pub(crate) struct ListenSocket {
    raw: RawSocket,
}

impl ListenSocket {
    /// Bind and listen.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let raw = new_raw(address)?;
        if address.is_ipv6() {
            raw.set_only_v6(true)?;
        }
        // Lets a new launch take the port while old connections of it are in TIME_WAIT.
        raw.set_reuse_address(true)?;
        raw.set_nonblocking(true)?;
        raw.bind(&address.into())?;
        raw.listen(BACKLOG)?;
        Ok(Self { raw })
    }

    /// The address that the kernel really bound.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let bound = self.raw.local_addr()?;
        bound
            .as_socket()
            .ok_or_else(|| io::Error::other("not an internet address"))
    }

    /// The next waiting connection, if there is one.
    pub(crate) fn accept(&self) -> io::Result<Option<Socket>> {
        match self.raw.accept() {
            Ok((raw, _)) => Socket::with_options(raw).map(Some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // A connection that was reset while it waited is nobody's fault.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

fn new_raw(address: SocketAddr) -> io::Result<RawSocket> {
    // socket2 sets close-on-exec on every socket that it makes or accepts.
    RawSocket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )
}

fn in_progress(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error())
}

/// Wait until one of `fds` is ready, at most `timeout`; a signal ends the wait early.
pub(crate) fn poll(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<(), Errno> {
    let timeout = timeout.try_into().map_err(|_| Errno::INVAL)?;
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) => Ok(()),
        Err(Errno::INTR) => {
            for fd in fds {
                fd.clear_revents();
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Whether a polled descriptor wants attention: data, close or error.
pub(crate) fn is_ready(fd: &PollFd<'_>) -> bool {
    !fd.revents().is_empty()
}

/// Wait for bytes.
pub(crate) const READ: PollFlags = PollFlags::IN;
/// Wait for room.
pub(crate) const WRITE: PollFlags = PollFlags::OUT;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_that_waits_for_a_busy_reader_has_no_limit_of_the_kernel() {
        let raw = new_raw(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let socket = Socket::with_options(raw).unwrap();
        let limit = |socket: &Socket| SockRef::from(&socket.raw).tcp_user_timeout().unwrap();
        assert_eq!(limit(&socket), Some(USER_TIMEOUT));
        socket.outwait_busy_reader();
        assert_eq!(limit(&socket), None);
    }
}
