//! The one binary. Nothing but wiring.

use std::process::ExitCode;

use anyhow::Context as _;
use baton::{
    cli::{BenchCommand, Cli, Command},
    config::BatonConfig,
    logging, roles, up,
};
use clap::Parser as _;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // The chain of causes on one line: a backtrace is no help to whoever starts this.
        Err(error) => {
            eprintln!("baton: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let config = BatonConfig::load(cli.config.config.as_deref(), cli.overrides())?;
    if cli.config.print_config {
        print!("{}", config.to_toml());
        return Ok(());
    }
    logging::start(&config.log)?;
    if let Command::Bench(BenchCommand::Eval(args)) = &cli.command {
        return baton_bench::eval(args).context("evaluation");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?;
    runtime.block_on(async {
        match cli.command {
            Command::Up(_) => up::run(config).await,
            Command::Router(args) => roles::router(config, args.supervised).await,
            Command::PrefillWorker(args) => roles::prefill_worker(config, args.supervised).await,
            Command::DecodeWorker(args) => roles::decode_worker(config, args.supervised).await,
            Command::Bench(_) => Ok(()),
        }
    })
}
