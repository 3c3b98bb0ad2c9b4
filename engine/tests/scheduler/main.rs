//! The scheduler against a device that checks every plan, in random orders of everything that can happen.

mod fairness;
mod random;
mod refusals;
mod relay;
mod sharing;
mod worker;
