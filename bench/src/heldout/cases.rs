//! The questions.

use std::{collections::HashMap, fs, path::Path};

use serde::Deserialize;

use super::EvalError;

/// One line of `heldout.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Case {
    pub task: String,
    /// Part of a task that is scored by itself, as a range of prompt lengths.
    pub bucket: Option<String>,
    pub messages: Vec<Message>,
    pub answer: String,
    #[serde(rename = "match")]
    pub rule: Match,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Message {
    pub role: String,
    pub content: String,
}

/// When an answer is right; white space around it never matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Match {
    Exact,
    Contains,
}

impl Case {
    /// What it is scored with.
    #[must_use]
    pub fn group(&self) -> String {
        match &self.bucket {
            Some(bucket) => format!("{} {bucket}", self.task),
            None => self.task.clone(),
        }
    }

    #[must_use]
    pub fn is_right(&self, given: &str) -> bool {
        match self.rule {
            Match::Exact => given.trim() == self.answer.trim(),
            Match::Contains => given.contains(self.answer.trim()),
        }
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<Case>, EvalError> {
    let text = fs::read_to_string(path).map_err(|source| EvalError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Vec<Case>, EvalError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|source| EvalError::Case {
                path: path.to_owned(),
                line: number + 1,
                source,
            })
        })
        .collect()
}

/// The first `limit` of each group.
pub(super) fn limited(cases: Vec<Case>, limit: Option<usize>) -> Vec<Case> {
    let Some(limit) = limit else { return cases };
    let mut taken: HashMap<String, usize> = HashMap::new();
    cases
        .into_iter()
        .filter(|case| {
            let taken = taken.entry(case.group()).or_default();
            *taken += 1;
            *taken <= limit
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"
{"task":"arithmetic","messages":[{"role":"user","content":"1 + 1?"}],"answer":"2","match":"exact"}
{"task":"recall","bucket":"<=1000","messages":[{"role":"user","content":"?"}],"answer":"fox","match":"contains"}
{"task":"arithmetic","messages":[{"role":"user","content":"1 + 2?"}],"answer":"3","match":"exact"}
"#;

    fn cases() -> Vec<Case> {
        parse(LINES, Path::new("heldout.jsonl")).unwrap()
    }

    #[test]
    fn answers_match_by_their_rule() {
        let cases = cases();
        assert_eq!(cases[1].group(), "recall <=1000");
        assert!(cases[0].is_right(" 2\n"));
        assert!(!cases[0].is_right("It is 2."));
        assert!(cases[1].is_right("The fox."));
        assert!(!cases[1].is_right("The ox."));
    }

    #[test]
    fn a_limit_holds_for_each_group() {
        let kept = limited(cases(), Some(1));
        let groups: Vec<_> = kept.iter().map(Case::group).collect();
        assert_eq!(groups, ["arithmetic", "recall <=1000"]);
        assert_eq!(limited(cases(), None).len(), 3);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = parse("\n{\"task\":1}", Path::new("h.jsonl")).unwrap_err();
        assert!(error.to_string().starts_with("h.jsonl, line 2:"), "{error}");
    }
}
