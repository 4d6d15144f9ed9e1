//! Sockets, threads and memory of a stagelink ring: waits and sends what stagelink-proto decides.
//! It knows no Python, no model and no engine.
//!
//! Four threads of a process use this crate. The calling thread joins the ring, sends plans, and
//! moves the rows of the row lane by driving its sockets itself; it waits for its neighbours' rows,
//! for plans, and for signals of its caller. The control thread hears every control link, sends
//! keep-alives, judges who is silent or stuck, and tells the ring's fate; it waits for no peer at
//! all. Two threads move the rows of the bulk lane between its sockets and posted buffers.

mod accept;
mod activity;
pub mod adapt;
pub mod address;
mod boot;
mod boot_dial;
mod boot_faults;
mod boundary;
pub mod buffers;
mod bulk_in;
mod bulk_out;
pub mod connection;
mod control;
mod control_link;
mod crowd;
pub mod deadline;
mod dial;
mod ending;
pub mod error;
mod fate;
pub mod habits;
mod incoming;
pub mod join;
pub mod key_file;
pub mod lent;
pub mod listen;
pub mod members;
mod opening;
mod outgoing;
mod plans;
pub mod posted;
pub mod probe;
pub mod ring;
mod rounds;
pub mod seal;
mod slots;
mod socket;
mod star;
mod strangers;
mod stuck;
mod sync;
mod telling;
pub mod wait;
mod wake;
