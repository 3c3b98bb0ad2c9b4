//! `baton.toml`: one file for all parts, overridden by the environment, overridden by flags.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use baton_decode_worker::DecodeConfig;
use baton_engine::EngineConfig;
use baton_kvcache::transfer::TransferConfig;
use baton_proto::InvalidConfig;
use baton_router::RouterConfig;
use baton_worker::WorkerConfig;
use figment::{
    Figment,
    providers::{Env, Format as _, Serialized, Toml},
};
use serde::{Deserialize, Serialize};

use crate::{logging::LogConfig, up::UpConfig};

/// Read where no file is named.
const DEFAULT_FILE: &str = "baton.toml";

/// Holds a whole configuration as TOML: how `baton up` hands its own down to its children.
pub const INLINE_ENV: &str = "BATON_CONFIG_TOML";

/// Everything that can be set.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatonConfig {
    pub log: LogConfig,
    pub router: RouterConfig,
    pub worker: WorkerConfig,
    pub engine: EngineConfig,
    pub transfer: TransferConfig,
    pub decode: DecodeConfig,
    pub up: UpConfig,
}

/// A flag's value for the setting of that dotted name.
pub struct Override {
    pub field: &'static str,
    pub value: figment::value::Value,
}

impl Override {
    pub fn new(field: &'static str, value: impl Into<figment::value::Value>) -> Self {
        Self {
            field,
            value: value.into(),
        }
    }
}

impl Default for BatonConfig {
    fn default() -> Self {
        let router = RouterConfig::default();
        // Parts that run on one machine with their defaults find each other.
        let worker = WorkerConfig {
            routers: vec![router.grpc_listen.to_string()],
            ..WorkerConfig::default()
        };
        Self {
            router,
            worker,
            log: LogConfig::default(),
            engine: EngineConfig::default(),
            transfer: TransferConfig::default(),
            decode: DecodeConfig::default(),
            up: UpConfig::default(),
        }
    }
}

impl BatonConfig {
    /// Defaults, then the file, then `BATON_SECTION__KEY` from the environment, then flags.
    ///
    /// # Errors
    /// When a file is missing or malformed, a key is unknown, or a value is out of range: the message names it and where it
    /// came from.
    pub fn load(file: Option<&Path>, flags: Vec<Override>) -> anyhow::Result<Self> {
        let file = match (file, std::env::var(INLINE_ENV)) {
            (Some(path), _) => {
                // Figment would let a missing file pass in silence.
                std::fs::metadata(path)
                    .with_context(|| format!("cannot read the configuration {}", path.display()))?;
                Toml::file_exact(path)
            }
            (None, Ok(inline)) => Toml::string(&inline),
            (None, Err(_)) => Toml::file(DEFAULT_FILE),
        };
        let environment = Env::prefixed("BATON_")
            .split("__")
            .filter(|key| key.as_str().contains('.'));
        Self::extract(Figment::from(file).merge(environment), flags)
    }

    /// The same from a text, whatever the environment says.
    ///
    /// # Errors
    /// As [`BatonConfig::load`].
    pub fn from_toml(text: &str, flags: Vec<Override>) -> anyhow::Result<Self> {
        Self::extract(Figment::from(Toml::string(text)), flags)
    }

    fn extract(settings: Figment, flags: Vec<Override>) -> anyhow::Result<Self> {
        let mut layers = Figment::from(Serialized::defaults(Self::default())).merge(settings);
        for Override { field, value } in flags {
            layers = layers.merge((field, value));
        }
        let config: Self = layers
            .extract()
            .map_err(|error| anyhow::anyhow!("configuration: {error}"))?;
        config.validate().context("configuration")?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        self.router.validate()?;
        self.worker.validate()?;
        self.engine.validate()?;
        self.transfer.validate()?;
        self.decode.validate()?;
        self.up.validate()
    }

    /// The whole configuration as a file that would give it.
    ///
    /// # Panics
    /// Never: every section is a plain table.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("sections are plain tables")
    }

    /// The model directory is one setting for people, and two for the parts that read it.
    pub fn model_overrides(path: &Path) -> Vec<Override> {
        let path = path.to_string_lossy().into_owned();
        vec![
            Override::new("router.model", path.clone()),
            Override::new("worker.model", path),
        ]
    }
}

/// Where the configuration comes from, for every subcommand.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// Settings file [default: baton.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print every setting with its value, and exit
    #[arg(long, global = true)]
    pub print_config: bool,
    /// How to log
    #[arg(long, global = true, value_enum)]
    pub log_format: Option<crate::logging::LogFormat>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, flags: Vec<Override>) -> anyhow::Result<BatonConfig> {
        let path = tempfile::Builder::new().suffix(".toml").tempfile()?;
        std::fs::write(&path, file)?;
        BatonConfig::load(Some(path.path()), flags)
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let file = "[up]\ndecode = 3\nprefill = 2\n";
        let config = load(file, vec![Override::new("up.decode", 4)]).expect("valid");
        assert_eq!((config.up.decode, config.up.prefill), (4, 2));
        assert_eq!(config.router.listen.port(), 8000);
    }

    #[test]
    fn what_is_printed_reads_back_the_same() {
        let config = BatonConfig::default();
        let read = load(&config.to_toml(), Vec::new()).expect("its own output");
        assert_eq!(read.to_toml(), config.to_toml());
    }

    #[test]
    fn unknown_keys_bad_types_and_bad_values_are_named() {
        for (file, part) in [
            ("[router]\nlisten_adr = \"x\"\n", "listen_adr"),
            ("[rooter]\n", "rooter"),
            ("[engine]\npage_tokens = \"many\"\n", "engine.page_tokens"),
            (
                "[engine]\npage_tokens = 17\n",
                "engine.page_tokens = 17: choose 16, 32, 64 or 128",
            ),
            ("[up]\ndecode = 0\n", "up.decode = 0"),
            ("[up\n", "TOML"),
        ] {
            let error = format!("{:#}", load(file, Vec::new()).expect_err(file));
            assert!(error.contains(part), "{file}: {error}");
        }
        let missing = BatonConfig::load(Some(Path::new("/no/such.toml")), Vec::new()).expect_err("no file");
        assert!(format!("{missing:#}").contains("/no/such.toml"));
    }
}
