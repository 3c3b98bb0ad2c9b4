//! What a worker asks of its engine, and what it hears back.

use std::{fmt, sync::Arc, time::Duration};

use baton_kernels::sampling::SamplingParams;
use baton_kvcache::PagePin;
use baton_proto::CacheScope;

use crate::step::TokenLogprobs;

/// One prompt and its `n` choices.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// The id that logs and traces carry; it need not be unique.
    pub id: String,
    pub prompt: Arc<[u32]>,
    /// At least one. With emitted tokens the sequence resumes after them.
    pub choices: Vec<ChoiceStart>,
    pub sampling: Arc<SamplingParams>,
    pub stop: StopRules,
    pub scope: CacheScope,
    /// Lower runs first.
    pub priority: i32,
    /// Time left; when it has passed, every unfinished choice ends with [`FinishReason::Deadline`].
    pub deadline: Option<Duration>,
    pub work: Work,
}

/// Where a choice begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceStart {
    /// Position among the answers, part of the key of its random numbers.
    pub index: u32,
    /// Output tokens that exist already.
    pub emitted: Vec<u32>,
}

/// When a choice ends, as far as token ids decide it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopRules {
    /// Output tokens, emitted ones included.
    pub max_tokens: u32,
    /// EOS (unless ignored) and stop tokens. They end a choice and are not streamed.
    pub stop_tokens: Vec<u32>,
}

/// How far the engine takes a request.
#[derive(Clone)]
pub enum Work {
    /// Run the prompt here, then decode.
    Generate,
    /// Decode here with KV from a prefill worker. Where fewer than `min_missing_tokens` of the prompt are missing from
    /// this engine's own cache, the same as [`Work::Generate`]. The request waits after
    /// [`EngineEvent::NeedsHandoff`] for `lease`, `adopt` or `prefill_here`.
    GenerateFromHandoff { min_missing_tokens: u32 },
    /// Run the prompt here for a decode worker: KV to `sink`, the first token of each choice to the caller, no more.
    Prefill { sink: Arc<dyn KvSink>, held_pages: u32 },
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generate => f.write_str("Generate"),
            Self::GenerateFromHandoff { min_missing_tokens } => {
                write!(f, "GenerateFromHandoff({min_missing_tokens})")
            }
            Self::Prefill { held_pages, .. } => write!(f, "Prefill({held_pages})"),
        }
    }
}

/// Where a prefill engine leaves KV as it becomes final, layer by layer. Called on the engine's thread: must not block.
pub trait KvSink: Send + Sync {
    /// The slices of `layer` of these pages will not change any more. `pages` pairs each page's index in the sequence
    /// with a pin that keeps it from reuse. Every (page, layer) from the receiver's first missing page to the prompt's
    /// last page is named exactly once, the last partial page when its last chunk ran.
    fn ready(&self, layer: u32, pages: &[(u32, PagePin)]);
}

/// What happens to a request, in order. The stream ends after the last choice's [`EngineEvent::Finished`], for
/// [`Work::Prefill`] after the last [`EngineEvent::Tokens`], or after [`EngineEvent::Failed`].
#[derive(Clone, Debug)]
pub enum EngineEvent {
    /// It waits its turn. Sent once, when accepted.
    Queued { requests_ahead: u32 },
    /// Only `held_pages` leading pages of the prompt are here (and pinned): ask a prefill worker for the rest.
    NeedsHandoff { held_pages: u32 },
    /// The pages asked for with `lease`: sequence pages `first_page ..`, mutable and this request's.
    Leased { first_page: u32, pages: Vec<PagePin> },
    /// Its prompt begins to run here.
    Started { cached_tokens: u32, queued: Duration },
    /// Output of one choice, in order. A slow reader gets several steps' tokens at once.
    Tokens {
        choice: u32,
        tokens: Vec<u32>,
        logprobs: Vec<TokenLogprobs>,
    },
    Finished {
        choice: u32,
        reason: FinishReason,
        stop_token: Option<u32>,
    },
    /// The request cannot go on.
    Failed(RequestError),
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An EOS or stop token.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The request's time was up.
    Deadline,
}

/// Why the engine refused a request or gave it up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error(
        "the prompt has {prompt} tokens, and with at least one of output that exceeds the context of {context}"
    )]
    TooLong { prompt: usize, context: u32 },
    #[error("the request needs {needed} KV pages at once, and this worker has {total} in all")]
    NeverFits { needed: u32, total: u32 },
    #[error("token {token} is outside of the vocabulary of {vocab}")]
    TokenOutOfRange { token: u32, vocab: u32 },
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{waiting} requests are waiting, which is this worker's limit")]
    QueueFull { waiting: usize },
    #[error("this worker is draining")]
    Draining,
    #[error("the engine stopped: {0}")]
    EngineStopped(String),
}
