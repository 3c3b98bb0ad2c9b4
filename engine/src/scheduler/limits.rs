//! What can be refused before any work: checked on the caller's thread.

use crate::{
    executor::ExecutorLimits,
    request::{EngineRequest, RequestError, Work},
};

/// The bounds that a request must keep.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    executor: ExecutorLimits,
    page_tokens: u32,
}

/// A request that can run on this engine, sooner or later.
#[derive(Clone, Debug)]
pub struct CheckedRequest(EngineRequest);

impl RequestLimits {
    #[must_use]
    pub fn new(executor: ExecutorLimits, page_tokens: u32) -> Self {
        Self {
            executor,
            page_tokens: page_tokens.max(1),
        }
    }

    /// # Errors
    /// [`RequestError`] where the request could never run here, whatever else does.
    pub fn check(&self, request: EngineRequest) -> Result<CheckedRequest, RequestError> {
        check_choices(&request)?;
        if request.choices.len() > self.executor.slots as usize {
            return Err(RequestError::Invalid(
                "more choices than this worker can run together",
            ));
        }
        let vocab = self.executor.vocab;
        let emitted = request.choices.iter().flat_map(|choice| &choice.emitted);
        if let Some(&token) = request
            .prompt
            .iter()
            .chain(emitted)
            .find(|token| **token >= vocab)
        {
            return Err(RequestError::TokenOutOfRange { token, vocab });
        }
        let context = self.executor.context_tokens;
        let longest = request.prompt.len() + longest_emitted(&request);
        if longest >= context as usize {
            return Err(RequestError::TooLong {
                prompt: longest,
                context,
            });
        }
        let needed = self.pages_needed(&request);
        if needed > self.executor.pages {
            return Err(RequestError::NeverFits {
                needed,
                total: self.executor.pages,
            });
        }
        Ok(CheckedRequest(request))
    }

    /// Most tokens that a sequence of the request can have, prompt and output.
    #[must_use]
    pub fn length_cap(&self, request: &EngineRequest) -> u32 {
        let wanted = (request.prompt.len() as u32).saturating_add(request.stop.max_tokens);
        wanted.min(self.executor.context_tokens)
    }

    /// Positions that rows of a sequence of at most `cap` tokens can write. The last token's KV is never needed. With k
    /// drafted tokens, a row planned while the one before it is in flight can begin k positions late and write k more.
    #[must_use]
    pub fn written_positions(&self, cap: u32) -> u32 {
        let drafts = self.executor.tokens_per_sample - 1;
        (cap - 1 + 2 * drafts).min(self.executor.context_tokens)
    }

    /// Pages that the request holds at once when all its choices have grown to their full length.
    fn pages_needed(&self, request: &EngineRequest) -> u32 {
        let prompt = request.prompt.len() as u32;
        if let Work::Prefill { .. } = request.work {
            let run = prompt + longest_emitted(request) as u32;
            return run.div_ceil(self.page_tokens);
        }
        let shared = prompt / self.page_tokens;
        let whole = self.written_positions(self.length_cap(request)).max(prompt);
        let own = whole.div_ceil(self.page_tokens) - shared;
        shared.saturating_add(own.saturating_mul(request.choices.len() as u32))
    }
}

impl CheckedRequest {
    #[must_use]
    pub fn get(&self) -> &EngineRequest {
        &self.0
    }

    pub(super) fn into_inner(self) -> EngineRequest {
        self.0
    }
}

fn longest_emitted(request: &EngineRequest) -> usize {
    request
        .choices
        .iter()
        .map(|choice| choice.emitted.len())
        .max()
        .unwrap_or(0)
}

fn check_choices(request: &EngineRequest) -> Result<(), RequestError> {
    if request.prompt.is_empty() {
        return Err(RequestError::Invalid("the prompt is empty"));
    }
    if request.choices.is_empty() {
        return Err(RequestError::Invalid("no choice is asked for"));
    }
    let mut indices: Vec<u32> = request.choices.iter().map(|choice| choice.index).collect();
    indices.sort_unstable();
    if indices.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(RequestError::Invalid("two choices have the same index"));
    }
    let max_tokens = request.stop.max_tokens as usize;
    if request
        .choices
        .iter()
        .any(|choice| choice.emitted.len() >= max_tokens)
    {
        return Err(RequestError::Invalid("a choice has emitted max_tokens already"));
    }
    let resumed = request.choices.iter().any(|choice| !choice.emitted.is_empty());
    let hand_off = !matches!(request.work, Work::Generate);
    if hand_off && resumed && request.choices.len() > 1 {
        return Err(RequestError::Invalid(
            "a hand-off moves one sequence: several choices may not have emitted anything",
        ));
    }
    Ok(())
}
