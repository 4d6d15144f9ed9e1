//! Test equipment: a TCP proxy whose links can be delayed, cut, corrupted and silenced on command.
//!
//! It knows nothing of the stagelink protocol, and nothing that ships depends on it.
//!
//! Every byte of a connection has an *offset*: its place in what the sender sent, from 0. All
//! faults that touch bytes are bound to offsets and a seed, never to how reads happened to fall,
//! so the same seed and the same commands harm the same bytes in every run. *Up* is from the side
//! that dialled the proxy to the target, *down* is back.
//!
//! [`FaultProxy`] is the whole interface; the program `stagelink-fault-proxy` feeds it the lines of
//! its standard input. [`parse`] has the table of commands.

pub mod command;
mod connection;
mod draw;
mod faults;
mod lane;
pub mod limits;
mod pace;
pub mod parse;
mod proxy;
mod relay;
mod rewrite;
mod status;
mod wake;

pub use command::{Command, CommandError, Direction, Order, Request};
pub use proxy::{FaultProxy, Reached};
pub use status::{ConnectionStatus, LaneStatus};
