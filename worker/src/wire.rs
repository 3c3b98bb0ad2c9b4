//! What an engine says, in the wire's terms, and back.

use baton_engine::{FirstToken, request::FinishReason, step::TokenLogprobs};
use baton_proto::v1;

/// Output of one choice.
#[must_use]
pub fn tokens(choice: u32, ids: Vec<u32>, logprobs: &[TokenLogprobs]) -> v1::Tokens {
    v1::Tokens {
        choice,
        ids,
        logprobs: logprobs.iter().map(token_logprobs).collect(),
        prompt_logprobs: Vec::new(),
    }
}

/// The end of one choice.
#[must_use]
pub fn finished(choice: u32, reason: FinishReason, stop_token: Option<u32>) -> v1::Finished {
    let reason = match reason {
        FinishReason::Stop => v1::FinishReason::Stop,
        FinishReason::Length => v1::FinishReason::Length,
        FinishReason::Deadline => v1::FinishReason::Deadline,
    };
    v1::Finished {
        choice,
        reason: reason.into(),
        stop_token_id: stop_token,
    }
}

/// A first token on its way from prefill to decode worker.
#[must_use]
pub fn first_token(first: &FirstToken) -> v1::FirstToken {
    v1::FirstToken {
        choice: first.choice,
        id: first.token,
        logprobs: first.logprobs.as_ref().map(token_logprobs),
    }
}

/// A first token as the decode worker's engine adopts it.
#[must_use]
pub fn adopted_token(first: &v1::FirstToken) -> FirstToken {
    FirstToken {
        choice: first.choice,
        token: first.id,
        logprobs: first.logprobs.as_ref().map(engine_logprobs),
    }
}

fn token_logprobs(logprobs: &TokenLogprobs) -> v1::TokenLogprobs {
    let logprob = |(id, logprob): &(u32, f32)| v1::Logprob {
        id: *id,
        logprob: *logprob,
    };
    v1::TokenLogprobs {
        chosen: Some(logprob(&logprobs.chosen)),
        top: logprobs.top.iter().map(logprob).collect(),
    }
}

fn engine_logprobs(logprobs: &v1::TokenLogprobs) -> TokenLogprobs {
    let pair = |logprob: &v1::Logprob| (logprob.id, logprob.logprob);
    TokenLogprobs {
        chosen: logprobs.chosen.as_ref().map(pair).unwrap_or_default(),
        top: logprobs.top.iter().map(pair).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_token_survives_the_hop_with_its_logprobs() {
        let first = FirstToken {
            choice: 2,
            token: 7,
            logprobs: Some(TokenLogprobs {
                chosen: (7, -0.5),
                top: vec![(7, -0.5), (9, -1.5)],
            }),
        };
        assert_eq!(adopted_token(&first_token(&first)), first);
        assert_eq!(
            tokens(2, vec![7], first.logprobs.as_slice()).logprobs[0]
                .top
                .len(),
            2
        );
    }
}
