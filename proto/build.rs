//! Compiles `baton/v1/*.proto` into OUT_DIR with protox, so that no `protoc` is needed.

use std::{env, error::Error, path::PathBuf};

const FILES: [&str; 6] = [
    "baton/v1/sampling.proto",
    "baton/v1/inference.proto",
    "baton/v1/decode.proto",
    "baton/v1/prefill.proto",
    "baton/v1/kv_link.proto",
    "baton/v1/registry.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=baton");
    let descriptors = protox::compile(FILES, ["."])?;
    let path = PathBuf::from(env::var("OUT_DIR")?).join("baton.bin");
    std::fs::write(&path, prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
