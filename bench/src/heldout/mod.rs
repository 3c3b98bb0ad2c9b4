//! Held-out scores: the questions of `heldout.jsonl`, answered greedily by the whole engine, once for each KV dtype.

mod cases;
mod report;
mod run;

use std::{path::PathBuf, sync::Arc};

use baton_engine::{EngineError, cpu::Model, model::ModelError, request::RequestError};
use baton_kernels::kv::KvDtype;
use baton_router::text::{ModelText, TextError};

pub use cases::{Case, Match};
pub use report::{Column, Report, Score};

/// Scores a model's answers to held-out questions.
#[derive(Clone, Debug, clap::Args)]
pub struct EvalArgs {
    /// Checkpoint folder
    #[arg(long, default_value = "models/baton-tiny")]
    pub model: PathBuf,
    /// Questions with their answers, one JSON object a line
    #[arg(long, default_value = "models/heldout.jsonl")]
    pub heldout: PathBuf,
    /// How to store keys and values; each gives one column
    #[arg(long, value_delimiter = ',', value_parser = parse_kv_dtype, default_value = "f32,bf16,fp8_e4m3")]
    pub kv_dtype: Vec<KvDtype>,
    /// Ask only so many questions of each task and bucket
    #[arg(long)]
    pub limit: Option<usize>,
    /// Threads that compute; 0 is one per core
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why there are no scores.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error("cannot start: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}, line {line}: {source}")]
    Case {
        path: PathBuf,
        line: usize,
        source: serde_json::Error,
    },
    #[error("{0} has no questions")]
    Empty(PathBuf),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the engine's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("question {case}: {source}")]
    Request { case: usize, source: RequestError },
    #[error("question {case} was not answered to its end")]
    Unanswered { case: usize },
}

/// Asks every question with every KV dtype. Takes minutes for thousands of questions.
///
/// # Errors
/// [`EvalError`] names the file, line or question that failed.
pub async fn run(args: &EvalArgs) -> Result<Report, EvalError> {
    let cases = cases::limited(cases::read(&args.heldout)?, args.limit);
    if cases.is_empty() {
        return Err(EvalError::Empty(args.heldout.clone()));
    }
    let text = ModelText::load(&args.model)?;
    let model = Arc::new(Model::load(&args.model)?);
    let mut columns = Vec::with_capacity(args.kv_dtype.len());
    for &kv_dtype in &args.kv_dtype {
        let engine = run::EvalEngine::start(Arc::clone(&model), kv_dtype, args.threads)?;
        columns.push(engine.column(&text, &cases).await?);
    }
    Ok(Report::new(args.model.clone(), &cases, columns))
}

fn parse_kv_dtype(name: &str) -> Result<KvDtype, String> {
    const ALL: [KvDtype; 3] = [KvDtype::F32, KvDtype::Bf16, KvDtype::Fp8E4m3];
    ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|dtype| dtype.name()).collect();
        format!("choose from {}", names.join(", "))
    })
}
