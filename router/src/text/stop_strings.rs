//! Stop strings over a stream of text pieces: nothing from a stop string on is ever delivered.
//!
//! What could be the beginning of a stop string is held back, which is less than the longest of them. The match that ends first
//! wins (of those, the one that begins first), so that the result does not depend on how the text was cut.

/// One answer's matcher.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    longest: usize,
    held: String,
}

/// What became of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The text may be delivered; the answer goes on.
    No(String),
    /// The text before the stop string, and which of them it was. The answer is complete.
    At { text: String, stop: String },
}

impl StopStrings {
    /// Empty strings never match.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let stops: Vec<String> = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self {
            longest: stops.iter().map(String::len).max().unwrap_or(0),
            stops,
            held: String::new(),
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Stopped {
        if self.stops.is_empty() {
            return Stopped::No(piece.to_owned());
        }
        self.held.push_str(piece);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| {
                self.held
                    .find(stop.as_str())
                    .map(|start| (start + stop.len(), start, stop))
            })
            .min_by_key(|(end, start, _)| (*end, *start));
        if let Some((_, start, stop)) = first {
            let stop = stop.clone();
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return Stopped::At { text, stop };
        }
        let keep = self.held_from();
        let kept = self.held.split_off(keep);
        Stopped::No(std::mem::replace(&mut self.held, kept))
    }

    /// What is still held, when the answer ended without a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the longest suffix begins that a stop string begins with.
    fn held_from(&self) -> usize {
        let start = self.held.len().saturating_sub(self.longest.saturating_sub(1));
        (start..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[String], pieces: &[&str]) -> (String, Option<String>) {
        let mut matcher = StopStrings::new(stops);
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Stopped::No(text) => out.push_str(&text),
                Stopped::At { text, stop } => {
                    out.push_str(&text);
                    return (out, Some(stop));
                }
            }
        }
        out.push_str(&matcher.finish());
        (out, None)
    }

    #[test]
    fn a_stop_string_over_pieces_is_found_and_half_of_one_is_delivered_late() {
        let stops = ["END".to_owned()];
        assert_eq!(
            run(&stops, &["a E", "N", "D b"]),
            ("a ".into(), Some("END".into()))
        );
        assert_eq!(run(&stops, &["a E", "N", "F"]), ("a ENF".into(), None));
        assert_eq!(run(&stops, &["a EN"]), ("a EN".into(), None));
        let mut matcher = StopStrings::new(&stops);
        assert_eq!(matcher.push("xEN"), Stopped::No("x".into()));
    }

    proptest! {
        // A small alphabet with a two-byte character makes overlaps frequent.
        #[test]
        fn cuts_do_not_matter_and_nothing_leaks(
            text in "[abé]{0,40}",
            stops in prop::collection::vec("[abé]{1,5}", 1..4),
            cuts in prop::collection::vec(0usize..80, 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= text.len() && text.is_char_boundary(*cut)).collect();
            cuts.push(text.len());
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            let cut_up = run(&stops, &pieces);
            prop_assert_eq!(&cut_up, &run(&stops, &[&text]));
            match &cut_up.1 {
                None => prop_assert_eq!(&cut_up.0, &text),
                Some(stop) => {
                    let delivered = format!("{}{}", cut_up.0, stop);
                    prop_assert!(text.starts_with(delivered.as_str()));
                }
            }
            for stop in &stops {
                prop_assert!(!cut_up.0.contains(stop.as_str()));
            }
        }
    }
}
