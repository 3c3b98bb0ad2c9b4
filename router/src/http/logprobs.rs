//! Log probabilities in the forms of the two endpoints.

use baton_proto::v1::{Logprob, TokenLogprobs};

use super::wire::{ChatLogprob, ChatLogprobs, CompletionLogprobs, TokenLogprob};
use crate::text::ModelText;

/// JSON has no infinity: an impossible token shows as OpenAI shows it.
const IMPOSSIBLE: f32 = -9999.0;

pub(super) fn chat(text: &ModelText, logprobs: &[TokenLogprobs]) -> ChatLogprobs {
    ChatLogprobs {
        content: logprobs
            .iter()
            .filter_map(|token| {
                Some(ChatLogprob {
                    chosen: named(text, token.chosen.as_ref()?),
                    top_logprobs: token.top.iter().map(|top| named(text, top)).collect(),
                })
            })
            .collect(),
        refusal: None,
    }
}

/// `offset` is where the answer's next token starts, in characters, and moves on.
pub(super) fn completion(
    text: &ModelText,
    logprobs: &[TokenLogprobs],
    offset: &mut usize,
) -> CompletionLogprobs {
    let mut out = CompletionLogprobs::default();
    for token in logprobs {
        let Some(chosen) = token.chosen.as_ref().map(|chosen| named(text, chosen)) else {
            continue;
        };
        let tops = token.top.iter().map(|top| named(text, top));
        // The chosen token is listed even if it was not among the most likely.
        let tops = tops.chain([chosen.clone()]).map(|top| (top.token, top.logprob));
        out.top_logprobs.push(tops.collect());
        out.text_offset.push(*offset);
        *offset += chosen.token.chars().count();
        out.token_logprobs.push(chosen.logprob);
        out.tokens.push(chosen.token);
    }
    out
}

fn named(text: &ModelText, token: &Logprob) -> TokenLogprob {
    let shown = text.decode(&[token.id], false).unwrap_or_default();
    TokenLogprob {
        logprob: if token.logprob.is_finite() {
            token.logprob
        } else {
            IMPOSSIBLE
        },
        bytes: shown.clone().into_bytes(),
        token: shown,
    }
}
