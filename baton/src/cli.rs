//! The command line: subcommands, and the settings that their flags override.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::{
    config::{BatonConfig, ConfigArgs, Override},
    logging::LogFormat,
};

/// Serves language models with prefill and decode on separate workers.
#[derive(Debug, Parser)]
#[command(name = "baton", version, about)]
pub struct Cli {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run router, prefill and decode workers together on this machine
    Up(UpArgs),
    /// Run a router: HTTP and gRPC in, plans out
    Router(RouterArgs),
    /// Run a prefill worker: prompts in, KV out
    PrefillWorker(WorkerArgs),
    /// Run a decode worker: KV in, tokens out
    DecodeWorker(WorkerArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Held-out scores of a model, by KV dtype
    Eval(baton_bench::EvalArgs),
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Port of the OpenAI API on 127.0.0.1 [default: that of router.listen, 8000]
    #[arg(long)]
    port: Option<u16>,
    /// Prefill workers [default: 1]
    #[arg(long, value_name = "N")]
    prefill: Option<usize>,
    /// Decode workers [default: 1]
    #[arg(long, value_name = "M")]
    decode: Option<usize>,
    /// No prefill workers: decode workers run their own prompts
    #[arg(long)]
    aggregated: bool,
    /// Model directory in the Hugging Face layout [default: models/baton-tiny]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// How KV travels; local runs everything in one process
    #[arg(long, value_enum)]
    transport: Option<Transport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    Tcp,
    Local,
}

#[derive(Debug, Args)]
pub struct RouterArgs {
    /// Address of the OpenAI API
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address for workers and gRPC clients
    #[arg(long, value_name = "ADDR")]
    grpc_listen: Option<SocketAddr>,
    /// Model directory, for its tokenizer and chat template
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    #[command(flatten)]
    pub supervised: SupervisedArgs,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Router to join, as host:port of its gRPC address; may be given several times [default: 127.0.0.1:8001]
    #[arg(long = "router", value_name = "ADDR")]
    routers: Vec<String>,
    /// Address to serve on; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address that others reach this worker by, where that is not the one it listens on
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Name in the fleet
    #[arg(long)]
    id: Option<String>,
    /// Model directory in the Hugging Face layout
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    #[command(flatten)]
    pub supervised: SupervisedArgs,
}

/// Set by `baton up` on its children.
#[derive(Clone, Copy, Debug, Args)]
pub struct SupervisedArgs {
    /// Announce readiness as a JSON line on standard output, and drain when standard input ends
    #[arg(long, hide = true)]
    pub supervised: bool,
}

impl Cli {
    /// The settings that flags override.
    #[must_use]
    pub fn overrides(&self) -> Vec<Override> {
        let mut set = self.command.overrides();
        if let Some(format) = self.config.log_format {
            let name = match format {
                LogFormat::Human => "human",
                LogFormat::Json => "json",
            };
            set.push(Override::new("log.format", name));
        }
        set
    }
}

impl Command {
    fn overrides(&self) -> Vec<Override> {
        match self {
            Self::Up(args) => args.overrides(),
            Self::Router(args) => args.overrides(),
            Self::PrefillWorker(args) | Self::DecodeWorker(args) => args.overrides(),
            Self::Bench(_) => Vec::new(),
        }
    }
}

impl UpArgs {
    fn overrides(&self) -> Vec<Override> {
        let mut set = Vec::new();
        if let Some(port) = self.port {
            set.push(Override::new("router.listen", format!("127.0.0.1:{port}")));
            // Two systems on one machine must not meet on the default gRPC port; workers are told the real one.
            set.push(Override::new("router.grpc_listen", "127.0.0.1:0"));
        }
        if let Some(prefill) = self.prefill {
            set.push(Override::new("up.prefill", prefill));
        }
        if let Some(decode) = self.decode {
            set.push(Override::new("up.decode", decode));
        }
        if self.aggregated {
            set.push(Override::new("up.aggregated", true));
        }
        if let Some(path) = &self.model {
            set.extend(BatonConfig::model_overrides(path));
        }
        match self.transport {
            None => {}
            Some(Transport::Tcp) => set.push(Override::new("transfer.transport", "tcp")),
            Some(Transport::Local) => {
                set.push(Override::new("transfer.transport", "local"));
                set.push(Override::new("up.one_process", true));
            }
        }
        set
    }
}

impl RouterArgs {
    fn overrides(&self) -> Vec<Override> {
        let mut set = Vec::new();
        set.extend(
            self.listen
                .map(|addr| Override::new("router.listen", addr.to_string())),
        );
        set.extend(
            self.grpc_listen
                .map(|addr| Override::new("router.grpc_listen", addr.to_string())),
        );
        set.extend(
            self.model
                .as_deref()
                .into_iter()
                .flat_map(BatonConfig::model_overrides),
        );
        set
    }
}

impl WorkerArgs {
    fn overrides(&self) -> Vec<Override> {
        let mut set = Vec::new();
        if !self.routers.is_empty() {
            set.push(Override::new("worker.routers", self.routers.clone()));
        }
        set.extend(
            self.listen
                .map(|addr| Override::new("worker.listen", addr.to_string())),
        );
        set.extend(
            self.advertise
                .as_ref()
                .map(|addr| Override::new("worker.advertise_addr", addr.clone())),
        );
        set.extend(self.id.as_ref().map(|id| Override::new("worker.id", id.clone())));
        set.extend(
            self.model
                .as_deref()
                .into_iter()
                .flat_map(BatonConfig::model_overrides),
        );
        set
    }
}
