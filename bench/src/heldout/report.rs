//! Scores as a table and as JSON.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::Serialize;

use super::Case;

/// Scores of one model, a column for each KV dtype.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub model: PathBuf,
    pub cases: usize,
    pub columns: Vec<Column>,
}

/// What one KV dtype scored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    pub kv_dtype: String,
    /// By task and bucket, and `all`.
    pub scores: BTreeMap<String, Score>,
    pub output_tokens: usize,
    pub seconds: f64,
}

/// Right answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Score {
    pub right: usize,
    pub asked: usize,
}

const ALL: &str = "all";

impl Report {
    pub(super) fn new(model: PathBuf, cases: &[Case], columns: Vec<Column>) -> Self {
        Self {
            model,
            cases: cases.len(),
            columns,
        }
    }

    /// The report as JSON.
    ///
    /// # Panics
    /// Never: its keys are strings.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("maps with string keys serialize")
    }
}

impl Column {
    /// Counts one answer.
    pub(super) fn count(&mut self, case: &Case, right: bool) {
        for group in [case.group(), ALL.to_owned()] {
            let score = self.scores.entry(group).or_default();
            score.asked += 1;
            score.right += usize::from(right);
        }
    }
}

impl Score {
    /// Of 100.
    #[must_use]
    pub fn percent(&self) -> f64 {
        100.0 * self.right as f64 / self.asked.max(1) as f64
    }
}

/// A Markdown table: a row for each task, a column for each KV dtype, and `all` at the end.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.columns.first() else {
            return Ok(());
        };
        write!(f, "| task | asked |")?;
        for column in &self.columns {
            write!(f, " {} |", column.kv_dtype)?;
        }
        write!(f, "\n|---|--:|")?;
        for _ in &self.columns {
            write!(f, "--:|")?;
        }
        let groups = first.scores.keys().filter(|group| *group != ALL);
        for group in groups.map(String::as_str).chain([ALL]) {
            let asked = first.scores.get(group).map_or(0, |score| score.asked);
            write!(f, "\n| {group} | {asked} |")?;
            for column in &self.columns {
                let score = column.scores.get(group).copied().unwrap_or_default();
                write!(f, " {:.1} |", score.percent())?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heldout::Match;

    fn case(task: &str, bucket: Option<&str>) -> Case {
        Case {
            task: task.into(),
            bucket: bucket.map(Into::into),
            messages: Vec::new(),
            answer: String::new(),
            rule: Match::Exact,
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_group_and_a_column_for_each_dtype() {
        let cases = [
            case("story", None),
            case("recall", Some("<=1000")),
            case("story", None),
        ];
        let mut columns = Vec::new();
        for (kv_dtype, right) in [("f32", [true, true, true]), ("fp8_e4m3", [true, false, false])] {
            let mut column = Column {
                kv_dtype: kv_dtype.into(),
                scores: BTreeMap::new(),
                output_tokens: 9,
                seconds: 1.0,
            };
            for (case, right) in cases.iter().zip(right) {
                column.count(case, right);
            }
            columns.push(column);
        }
        let report = Report::new("m".into(), &cases, columns);
        assert_eq!(
            report.to_string(),
            "| task | asked | f32 | fp8_e4m3 |\n|---|--:|--:|--:|\n\
             | recall <=1000 | 1 | 100.0 | 0.0 |\n| story | 2 | 100.0 | 50.0 |\n| all | 3 | 100.0 | 33.3 |\n"
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["columns"][1]["scores"]["story"]["right"], 1);
    }
}
