//! Asks the system for tokens, over gRPC.

use baton_proto::v1::{GenerateRequest, TokenSequence, generate_event::Event, generate_request::Input};
use futures::StreamExt as _;

use crate::System;

/// Token ids of one answer.
pub type Answer = Vec<u32>;

/// One prompt with what decides its answer.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub ids: Vec<u32>,
    pub temperature: f32,
    pub seed: u64,
    pub n: u32,
    pub max_tokens: u32,
}

impl Prompt {
    /// A prompt answered greedily, once.
    #[must_use]
    pub fn greedy(ids: Vec<u32>, max_tokens: u32) -> Self {
        Self {
            ids,
            temperature: 0.0,
            seed: 0,
            n: 1,
            max_tokens,
        }
    }

    /// The same prompt, sampled.
    #[must_use]
    pub fn sampled(self, seed: u64, n: u32) -> Self {
        Self {
            temperature: 0.9,
            seed,
            n,
            ..self
        }
    }

    fn request(&self) -> GenerateRequest {
        GenerateRequest {
            input: Some(Input::Tokens(TokenSequence {
                ids: self.ids.clone(),
            })),
            temperature: Some(self.temperature),
            top_p: Some(0.95),
            seed: Some(self.seed),
            n: Some(self.n),
            max_tokens: Some(self.max_tokens),
            ignore_eos: true,
            ..GenerateRequest::default()
        }
    }
}

impl System {
    /// The tokens of each choice.
    ///
    /// # Panics
    /// When the request fails.
    pub async fn answers(&self, prompt: &Prompt) -> Vec<Answer> {
        let mut answers = vec![Vec::new(); prompt.n as usize];
        let stream = self
            .inference
            .clone()
            .generate(prompt.request())
            .await
            .expect("accepted");
        let mut events = stream.into_inner();
        while let Some(event) = events.next().await {
            if let Some(Event::Delta(delta)) = event.expect("no failure").event {
                answers[delta.choice as usize].extend(delta.ids);
            }
        }
        answers
    }

    /// The answers to several prompts asked together.
    ///
    /// # Panics
    /// When a request fails.
    pub async fn answers_together(&self, prompts: &[Prompt]) -> Vec<Vec<Answer>> {
        futures::future::join_all(prompts.iter().map(|prompt| self.answers(prompt))).await
    }
}
