//! Wiring: one configuration, one command line, and each part of the system as a process or together in one.

pub mod cli;
pub mod config;
pub mod logging;
pub mod roles;
pub mod up;
