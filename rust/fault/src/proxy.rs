//! The proxy: takes connections, gives each a thread, and passes commands on to them.
//!
//! It moves no bytes itself.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use crate::command::{Command, CommandError, Order, Request};
use crate::connection::Connection;
use crate::limits::{CONNECTIONS_MAX, RULES_MAX};
use crate::relay::reset;
use crate::status::ConnectionStatus;
use crate::wake::Wake;

/// How many directions of open connections a command found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Directions that took it.
    pub set: u64,
    /// Directions where its offset had gone by, or that had ended.
    pub past: u64,
}

/// A running proxy; dropping it ends every connection.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    seed: u64,
    start: Instant,
    wake: Wake,
    stop: AtomicBool,
    book: Mutex<Book>,
}

/// Who is connected, and what later connections must be told.
#[derive(Debug, Default)]
struct Book {
    rules: Vec<Command>,
    connections: Vec<Arc<Connection>>,
    threads: Vec<JoinHandle<()>>,
}

impl FaultProxy {
    /// Listen on `listen` (port 0: any) and forward to `target`.
    ///
    /// A wildcard address is refused. The target need not listen yet: it is dialled when a
    /// connection comes, again and again for `limits::DIAL_LIMIT`.
    pub fn start(listen: SocketAddr, target: SocketAddr, seed: u64) -> io::Result<Self> {
        if listen.ip().is_unspecified() {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("expected the address of one interface to listen on, came {listen}"),
            ));
        }
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            seed,
            start: Instant::now(),
            wake: Wake::new()?,
            stop: AtomicBool::new(false),
            book: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("fault-accept".into())
            .spawn(move || accepting.accept_all(&listener))?;
        Ok(Self {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Where to connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Carry out a command; from the return on no byte passes against it.
    pub fn apply(&self, command: &Command) -> Result<Reached, CommandError> {
        self.shared.apply(command)
    }

    /// Carry out one line of the control, and answer as the program does: what follows `ok`.
    pub fn control(&self, line: &str) -> Result<String, CommandError> {
        match line.parse()? {
            Request::Apply(command) => {
                let reached = self.apply(&command)?;
                Ok(format!(
                    "{{\"set\":{},\"past\":{}}}",
                    reached.set, reached.past
                ))
            }
            Request::Status => {
                let list: Vec<String> = self.status().iter().map(ToString::to_string).collect();
                Ok(format!("{{\"connections\":[{}]}}", list.join(",")))
            }
        }
    }

    /// What every connection did so far, in the order of acceptance.
    #[must_use]
    pub fn status(&self) -> Vec<ConnectionStatus> {
        let book = self.shared.lock();
        book.connections.iter().map(|one| one.status()).collect()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake.set();
        if let Some(acceptor) = self.acceptor.take() {
            // A thread that panicked has said so already.
            let _ = acceptor.join();
        }
        let book = std::mem::take(&mut *self.shared.lock());
        book.connections.iter().for_each(|one| one.stop());
        for thread in book.threads {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn accept_all(&self, listener: &TcpListener) {
        while !self.stop.load(Ordering::SeqCst) {
            match listener.accept() {
                // A connection that cannot be served is reset, and the next one is taken.
                Ok((client, _)) => drop(self.take(client)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut entries = [
                        PollFd::new(&self.wake, PollFlags::IN),
                        PollFd::new(listener, PollFlags::IN),
                    ];
                    let _ = poll(&mut entries, None);
                }
                // The peer went before it was taken.
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn take(&self, client: TcpStream) -> io::Result<()> {
        let mut book = self.lock();
        if book.connections.len() >= CONNECTIONS_MAX {
            return reset(client);
        }
        let id = book.connections.len() as u64;
        let connection = Arc::new(Connection::new(id, self.seed, self.start)?);
        for rule in &book.rules {
            // A rule that went in once does so again: the limits are the same.
            let _ = connection.apply(rule);
        }
        let (served, target) = (Arc::clone(&connection), self.target);
        let thread = std::thread::Builder::new()
            .name(format!("fault-{id}"))
            .spawn(move || served.run(client, target))?;
        book.connections.push(connection);
        book.threads.push(thread);
        Ok(())
    }

    fn apply(&self, command: &Command) -> Result<Reached, CommandError> {
        let mut book = self.lock();
        if let Some(id) = command.connection
            && !command.lasts()
            && id >= book.connections.len() as u64
        {
            return Err(CommandError::new(
                "no_connection",
                format!("connection {id} has not come yet, so it cannot be ended now"),
            ));
        }
        if command.lasts() {
            book.remember(command)?;
        }
        let mut all = Reached::default();
        for connection in &book.connections {
            let reached = connection.apply(command)?;
            all.set += reached.set;
            all.past += reached.past;
        }
        Ok(all)
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn remember(&mut self, command: &Command) -> Result<(), CommandError> {
        let heals_all = command.order == Order::Heal && command.connection.is_none();
        if heals_all {
            let Some(healed) = command.direction else {
                self.rules.clear();
                return Ok(());
            };
            self.rules.retain(|rule| rule.direction != Some(healed));
        }
        if self.rules.len() >= RULES_MAX {
            return Err(CommandError::new(
                "too_many_rules",
                format!("at most {RULES_MAX} commands are remembered; heal first"),
            ));
        }
        self.rules.push(*command);
        Ok(())
    }
}
