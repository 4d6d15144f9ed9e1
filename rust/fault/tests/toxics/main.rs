//! Every fault over real sockets on loopback.
//!
//! What a lane decides without sockets is tested beside it, in `src/lane.rs`.

mod bench;
mod bytes;
mod endings;
