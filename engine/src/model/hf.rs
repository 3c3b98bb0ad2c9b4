//! `config.json` as Hugging Face writes it: which fields there are, their defaults, and their older spellings.

use baton_kernels::rotary::RopeScaling;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Architecture, ModelConfig, ModelError, Rope, config::inconsistent};

const DEFAULT_ROPE_THETA: f64 = 10_000.0;
const SUPPORTED_ROPE: &str = "default, linear, llama3";

/// The field that decides how the others are read.
#[derive(Deserialize)]
pub(super) struct Kind {
    architectures: Option<Vec<String>>,
}

/// Fields that decide the arithmetic; others are ignored, as `transformers` does.
#[derive(Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    #[serde(default = "default_norm_eps")]
    rms_norm_eps: f32,
    #[serde(default = "default_activation")]
    hidden_act: String,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeFields>,
    rope_parameters: Option<RopeFields>,
    partial_rotary_factor: Option<f64>,
    /// A missing field and `null` differ here: Mistral's default is a window, `null` is none.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
    eos_token_id: Option<OneOrMany>,
}

/// `rope_parameters` of transformers 5, `rope_scaling` before. In the first the base is inside.
#[derive(Deserialize)]
struct RopeFields {
    rope_type: Option<String>,
    /// The oldest spelling of `rope_type`.
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
    /// One set for each kind of layer.
    full_attention: Option<Value>,
    sliding_attention: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl Kind {
    pub(super) fn architecture(&self) -> Result<Architecture, ModelError> {
        let names = self.architectures.as_deref().unwrap_or_default();
        match names {
            [name] => Architecture::from_name(name),
            _ => None,
        }
        .ok_or_else(|| unsupported("architectures", format!("{names:?}"), Architecture::SUPPORTED))
    }
}

impl Config {
    pub(super) fn into_model(self, architecture: Architecture) -> Result<ModelConfig, ModelError> {
        self.reject_unsupported()?;
        let head_dim = self.derived_head_dim(architecture)?;
        let rope = self.rope()?;
        let windows = self.windows(architecture)?;
        let llama = architecture == Architecture::Llama;
        let qwen3 = architecture == Architecture::Qwen3;
        // Llama's and Qwen3's field covers all four projections; Qwen2 always has three, Mistral none.
        let all_four = (llama || qwen3) && self.attention_bias;
        Ok(ModelConfig {
            architecture,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.kv_heads(architecture)?,
            head_dim,
            max_positions: self.max_position_embeddings,
            norm_eps: self.rms_norm_eps,
            rope,
            tied_embeddings: self.tie_word_embeddings,
            qkv_bias: all_four || architecture == Architecture::Qwen2,
            output_bias: all_four,
            mlp_bias: llama && self.mlp_bias,
            qk_norm: qwen3,
            windows,
            eos: match self.eos_token_id {
                None => Vec::new(),
                Some(OneOrMany::One(token)) => vec![token],
                Some(OneOrMany::Many(tokens)) => tokens,
            },
        })
    }

    fn reject_unsupported(&self) -> Result<(), ModelError> {
        if self.hidden_act != "silu" {
            return Err(unsupported("hidden_act", self.hidden_act.clone(), "silu"));
        }
        if let Some(quantization) = &self.quantization_config {
            let found = quantization.get("quant_method").unwrap_or(quantization);
            return Err(unsupported(
                "quantization_config",
                found.to_string(),
                "none: weights in bf16, f16 or f32",
            ));
        }
        Ok(())
    }

    fn kv_heads(&self, architecture: Architecture) -> Result<usize, ModelError> {
        match (self.num_key_value_heads, architecture) {
            (Some(heads), _) => Ok(heads),
            // The first Llama's files have no such field: its heads do not share keys.
            (None, Architecture::Llama) => Ok(self.num_attention_heads),
            (None, _) => Err(inconsistent("num_key_value_heads", "is missing".to_owned())),
        }
    }

    fn derived_head_dim(&self, architecture: Architecture) -> Result<usize, ModelError> {
        if let Some(head_dim) = self.head_dim {
            return Ok(head_dim);
        }
        if architecture == Architecture::Qwen3 {
            // Its default in transformers is 128 whatever the other fields are.
            return Ok(128);
        }
        if self.num_attention_heads == 0 || !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return Err(inconsistent(
                "head_dim",
                format!(
                    "is missing, and hidden_size {} cannot be split over {} heads",
                    self.hidden_size, self.num_attention_heads
                ),
            ));
        }
        Ok(self.hidden_size / self.num_attention_heads)
    }

    fn rope(&self) -> Result<Rope, ModelError> {
        let fields = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = fields
            .and_then(|fields| fields.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(DEFAULT_ROPE_THETA);
        positive("rope_theta", theta)?;
        let partial = fields
            .and_then(|fields| fields.partial_rotary_factor)
            .or(self.partial_rotary_factor)
            .unwrap_or(1.0);
        if partial != 1.0 {
            return Err(unsupported("partial_rotary_factor", partial.to_string(), "1"));
        }
        let scaling = match fields {
            None => RopeScaling::Default,
            Some(fields) => fields.scaling(self.max_position_embeddings)?,
        };
        Ok(Rope { theta, scaling })
    }

    fn windows(&self, architecture: Architecture) -> Result<Vec<Option<usize>>, ModelError> {
        /// What the classes of transformers take where the field is missing.
        const DEFAULT_WINDOW: usize = 4096;
        const DEFAULT_WINDOWLESS_LAYERS: usize = 28;
        let window = self.sliding_window.unwrap_or(Some(DEFAULT_WINDOW));
        match architecture {
            Architecture::Llama => Ok(vec![None; self.num_hidden_layers]),
            Architecture::Mistral => Ok(vec![window; self.num_hidden_layers]),
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let window = window.filter(|_| self.use_sliding_window);
                if let Some(types) = &self.layer_types {
                    return self.windows_of_types(types, window);
                }
                let windowless = self.max_window_layers.unwrap_or(DEFAULT_WINDOWLESS_LAYERS);
                Ok((0..self.num_hidden_layers)
                    .map(|layer| window.filter(|_| layer >= windowless))
                    .collect())
            }
        }
    }

    fn windows_of_types(
        &self,
        types: &[String],
        window: Option<usize>,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        if types.len() != self.num_hidden_layers {
            return Err(inconsistent(
                "layer_types",
                format!("names {} layers of {}", types.len(), self.num_hidden_layers),
            ));
        }
        types
            .iter()
            .map(|kind| match kind.as_str() {
                "full_attention" => Ok(None),
                "sliding_attention" if window.is_some() => Ok(window),
                "sliding_attention" => Err(inconsistent(
                    "layer_types",
                    "has sliding_attention, but no sliding_window is in use".to_owned(),
                )),
                other => Err(unsupported(
                    "layer_types",
                    other.to_owned(),
                    "full_attention, sliding_attention",
                )),
            })
            .collect()
    }
}

impl RopeFields {
    fn scaling(&self, max_positions: usize) -> Result<RopeScaling, ModelError> {
        if self.full_attention.is_some() || self.sliding_attention.is_some() {
            return Err(unsupported(
                "rope_parameters",
                "one set for each layer type".to_owned(),
                "one set for all layers",
            ));
        }
        let kind = self.rope_type.as_deref().or(self.kind.as_deref());
        match kind.unwrap_or("default") {
            "default" => Ok(RopeScaling::Default),
            "linear" => Ok(RopeScaling::Linear {
                factor: required("rope factor", self.factor)?,
            }),
            "llama3" => {
                let low_freq_factor = required("rope low_freq_factor", self.low_freq_factor)?;
                let high_freq_factor = required("rope high_freq_factor", self.high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    return Err(inconsistent(
                        "rope high_freq_factor",
                        format!("{high_freq_factor} is not above low_freq_factor {low_freq_factor}"),
                    ));
                }
                Ok(RopeScaling::Llama3 {
                    factor: required("rope factor", self.factor)?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: required(
                        "rope original_max_position_embeddings",
                        self.original_max_position_embeddings
                            .or(Some(max_positions as f32)),
                    )?,
                })
            }
            other => Err(unsupported("rope_type", other.to_owned(), SUPPORTED_ROPE)),
        }
    }
}

fn required(field: &'static str, value: Option<f32>) -> Result<f32, ModelError> {
    let value = value.ok_or_else(|| inconsistent(field, "is missing".to_owned()))?;
    positive(field, f64::from(value))?;
    Ok(value)
}

fn positive(field: &'static str, value: f64) -> Result<(), ModelError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(inconsistent(field, format!("{value} is not above 0")))
    }
}

fn unsupported(field: &'static str, found: String, supported: &'static str) -> ModelError {
    ModelError::Unsupported {
        field,
        found,
        supported,
    }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

const fn default_norm_eps() -> f32 {
    1e-6
}

fn default_activation() -> String {
    "silu".to_owned()
}
