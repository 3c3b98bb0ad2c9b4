//! The bundled model's held-out scores, on a sample of the questions: `baton bench eval` asks them all.

#![allow(clippy::unwrap_used, reason = "a test throughout")]

use std::path::Path;

use baton_bench::{EvalArgs, heldout};
use baton_kernels::kv::KvDtype;

#[test]
fn the_bundled_model_answers_as_well_with_fp8_kv() {
    const EACH: usize = 4;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let args = EvalArgs {
        model: models.join("baton-tiny"),
        heldout: models.join("heldout.jsonl"),
        kv_dtype: vec![KvDtype::F32, KvDtype::Fp8E4m3],
        limit: Some(EACH),
        threads: 0,
        json: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let report = runtime.block_on(heldout::run(&args)).unwrap();

    assert_eq!(report.columns.len(), 2);
    for column in &report.columns {
        assert!(column.scores.len() > 5, "{report}");
        for (group, score) in &column.scores {
            let asked = if group == "all" { report.cases } else { EACH };
            assert_eq!(score.asked, asked, "{group}");
        }
        assert!(column.scores["all"].percent() >= 85.0, "{report}");
    }
}
