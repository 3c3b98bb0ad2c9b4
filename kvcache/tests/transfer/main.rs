//! Transfers between real senders and receivers: over loopback sockets, and inside this process.

mod damage;
mod endings;
mod handshake;
mod proxy;
mod rogue;
mod round_trip;
mod world;
