//! First tokens that the router has already, though this worker's engine has not produced them yet.
//!
//! A prefill worker's first tokens are forwarded at once, while KV is still on its way. If that hand-off fails, they
//! come up once more: another prefill worker samples them again, or this worker runs the prompt itself. Sampling is a
//! function, so they are equal; each is passed on once, and what was passed on stands.

use std::collections::BTreeMap;

use baton_engine::step::TokenLogprobs;

/// What the router has been sent ahead of the engine, by choice.
#[derive(Debug, Default)]
pub(crate) struct Forwarded(BTreeMap<u32, u32>);

/// How a token compares with what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    New,
    Known,
    /// Another token was sent in its place.
    Contradiction {
        sent: u32,
    },
}

impl Forwarded {
    /// A prefill worker sampled `token`: is it still to be sent? If so, it counts as sent now.
    pub(crate) fn offer(&mut self, choice: u32, token: u32) -> Compared {
        match self.0.get(&choice) {
            None => {
                self.0.insert(choice, token);
                Compared::New
            }
            Some(sent) if *sent == token => Compared::Known,
            Some(sent) => Compared::Contradiction { sent: *sent },
        }
    }

    /// What the choice goes on from, given what the last prefill worker sampled: the token that was sent, if one was.
    pub(crate) fn adopted(&mut self, choice: u32, sampled: u32) -> u32 {
        self.0.remove(&choice).unwrap_or(sampled)
    }

    /// Output of the engine after a prompt that ran here: takes away the token that was sent already, once.
    pub(crate) fn settle(
        &mut self,
        choice: u32,
        tokens: &mut Vec<u32>,
        logprobs: &mut Vec<TokenLogprobs>,
    ) -> Compared {
        if tokens.is_empty() {
            return Compared::New;
        }
        let Some(sent) = self.0.remove(&choice) else {
            return Compared::New;
        };
        let produced = tokens.remove(0);
        if !logprobs.is_empty() {
            logprobs.remove(0);
        }
        if produced == sent {
            Compared::Known
        } else {
            Compared::Contradiction { sent }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_first_token_passes_once_however_often_it_comes_up() {
        let mut forwarded = Forwarded::default();
        assert_eq!(forwarded.offer(0, 7), Compared::New);
        assert_eq!(forwarded.offer(1, 8), Compared::New);
        assert_eq!(
            forwarded.offer(0, 7),
            Compared::Known,
            "the next candidate samples it again"
        );
        assert_eq!(forwarded.offer(1, 9), Compared::Contradiction { sent: 8 });
        let (mut tokens, mut logprobs) = (vec![7, 5], Vec::new());
        assert_eq!(forwarded.settle(0, &mut tokens, &mut logprobs), Compared::Known);
        assert_eq!(tokens, [5]);
        let mut later = vec![7];
        assert_eq!(forwarded.settle(0, &mut later, &mut logprobs), Compared::New);
        assert_eq!(later, [7], "a repeat later on is output");
    }

    #[test]
    fn a_choice_goes_on_from_what_was_sent() {
        let mut forwarded = Forwarded::default();
        forwarded.offer(0, 7);
        assert_eq!(forwarded.adopted(0, 9), 7);
        assert_eq!(forwarded.adopted(1, 9), 9, "a stop token is not sent");
        let (mut tokens, mut logprobs) = (vec![7], Vec::new());
        assert_eq!(
            forwarded.settle(0, &mut tokens, &mut logprobs),
            Compared::New,
            "nothing is owed any more"
        );
    }
}
