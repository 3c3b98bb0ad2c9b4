//! gRPC: the same pipeline for clients, and the registry that workers join.

mod inference;
mod registry;

pub(crate) use inference::InferenceService;
pub(crate) use registry::RegistryService;
