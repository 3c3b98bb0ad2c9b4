//! The router as its clients and workers see it: real sockets, a real tokenizer, and decode workers that follow a script.

mod failures;
mod fleet;
mod grpc;
mod openai_client;
mod refusals;
mod streaming;
mod whole;
mod worker;
