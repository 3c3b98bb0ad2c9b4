//! What Baton measures of itself. [`heldout`] scores a model's answers to questions that it was never trained on, for each
//! way of storing the KV cache.

pub mod heldout;

pub use heldout::{EvalArgs, EvalError};

/// `baton bench eval`: asks, and prints the scores on standard output.
///
/// # Errors
/// [`EvalError`] names the file, line or question that failed.
pub fn eval(args: &EvalArgs) -> Result<(), EvalError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(EvalError::Runtime)?;
    let report = runtime.block_on(heldout::run(args))?;
    if args.json {
        println!("{}", report.to_json());
    } else {
        print!("{report}");
    }
    Ok(())
}
