//! What a CPU executor is given.

use baton_kernels::kv::{KvDtype, KvLayout};

use crate::{
    config::EngineConfig,
    model::{ModelConfig, ModelError},
};

/// Sizes of one [`CpuExecutor`](super::CpuExecutor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuExecutorConfig {
    /// Threads that compute; 0 is one per core.
    pub threads: usize,
    pub kv_dtype: KvDtype,
    /// Tokens in a KV page: 16, 32, 64 or 128.
    pub page_tokens: usize,
    /// KV pages.
    pub pages: u32,
    /// Sequences that can be open together.
    pub slots: u32,
    /// Longest sequence in tokens, at most the model's own limit; 0 is that limit.
    pub context_tokens: u32,
}

impl From<&EngineConfig> for CpuExecutorConfig {
    fn from(config: &EngineConfig) -> Self {
        Self {
            threads: config.threads,
            kv_dtype: config.kv_dtype,
            page_tokens: config.page_tokens,
            pages: config.kv_pages,
            slots: config.max_running,
            context_tokens: config.context_tokens,
        }
    }
}

impl CpuExecutorConfig {
    pub(super) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    pub(super) fn layout(&self, model: &ModelConfig) -> KvLayout {
        KvLayout {
            dtype: self.kv_dtype,
            page_tokens: self.page_tokens,
            layers: model.layers,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
        }
    }

    /// The longest sequence that is served.
    pub(super) fn context(&self, model: &ModelConfig) -> Result<u32, ModelError> {
        let most = model.max_positions as u32;
        match self.context_tokens {
            0 => Ok(most),
            tokens if tokens <= most => Ok(tokens),
            tokens => Err(ModelError::Executor {
                field: "engine.context_tokens",
                found: u64::from(tokens),
                rule: format!("this model's positions end at {most}"),
            }),
        }
    }

    pub(super) fn validate(&self) -> Result<(), ModelError> {
        for (field, found) in [
            ("engine.kv_pages", self.pages),
            ("engine.max_running", self.slots),
        ] {
            if found == 0 {
                return Err(ModelError::Executor {
                    field,
                    found: 0,
                    rule: "at least 1".to_owned(),
                });
            }
        }
        Ok(())
    }
}
