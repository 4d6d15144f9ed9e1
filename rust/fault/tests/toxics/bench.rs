//! A target behind a proxy, and the two ends of a connection through it.
//!
//! It asserts nothing but that sockets can be made.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use stagelink_fault::FaultProxy;

/// Longest wait for something that must come.
const LIMIT: Duration = Duration::from_secs(10);
/// How long nothing must come, where nothing may.
const QUIET: Duration = Duration::from_millis(60);

/// A proxy and the listener that it forwards to.
pub(crate) struct Bench {
    pub(crate) proxy: FaultProxy,
    listener: TcpListener,
}

/// The two ends of one connection: `near` dialled the proxy, `far` is the target's.
pub(crate) struct Pair {
    pub(crate) near: TcpStream,
    pub(crate) far: TcpStream,
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Bench {
    pub(crate) fn new(seed: u64) -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        let target = listener.local_addr().unwrap();
        let proxy = FaultProxy::start(loopback(), target, seed).unwrap();
        Self { proxy, listener }
    }

    /// A proxy with these commands, and one connection through it.
    pub(crate) fn with(seed: u64, lines: &[&str]) -> (Self, Pair) {
        let bench = Self::new(seed);
        for line in lines {
            bench.order(line);
        }
        let pair = bench.connect();
        (bench, pair)
    }

    pub(crate) fn order(&self, line: &str) -> String {
        self.proxy.control(line).unwrap()
    }

    pub(crate) fn connect(&self) -> Pair {
        let near = TcpStream::connect(self.proxy.address()).unwrap();
        let (far, _) = self.listener.accept().unwrap();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket.set_write_timeout(Some(LIMIT)).unwrap();
            socket.set_nodelay(true).unwrap();
        }
        Pair { near, far }
    }
}

pub(crate) fn send(mut socket: &TcpStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

pub(crate) fn receive(mut socket: &TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Everything up to the end of the stream.
pub(crate) fn receive_all(mut socket: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The error that ends the stream.
pub(crate) fn receive_error(mut socket: &TcpStream) -> ErrorKind {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap_err().kind()
}

/// Neither a byte nor an end comes for a while.
pub(crate) fn is_quiet(mut socket: &TcpStream) -> bool {
    socket.set_read_timeout(Some(QUIET)).unwrap();
    let read = socket.read(&mut [0]);
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}
