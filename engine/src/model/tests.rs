use std::path::Path;

use baton_kernels::rotary::RopeScaling;
use serde_json::{Value, json};

use super::{Architecture, ModelConfig, ModelError};

fn base(architecture: &str) -> Value {
    json!({
        "architectures": [architecture],
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "eos_token_id": 2,
        "a_field_of_next_year": true,
    })
}

fn with(architecture: &str, changes: &Value) -> Value {
    let mut config = base(architecture);
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

fn parse(config: &Value) -> Result<ModelConfig, ModelError> {
    ModelConfig::parse(&config.to_string(), Path::new("config.json"))
}

fn error(config: &Value) -> String {
    parse(config).expect_err("must be refused").to_string()
}

#[test]
fn llama_in_its_plainest_form() {
    let mut config = base("LlamaForCausalLM");
    config
        .as_object_mut()
        .expect("an object")
        .remove("num_key_value_heads");
    let model = parse(&config).unwrap();
    assert_eq!(model.architecture, Architecture::Llama);
    assert_eq!((model.heads, model.kv_heads, model.head_dim), (4, 4, 16));
    assert_eq!(model.rope.theta, 10_000.0);
    assert_eq!(model.rope.scaling, RopeScaling::Default);
    assert_eq!(model.eos, [2]);
    assert_eq!(model.windows, [None; 3]);
    assert!(
        !model.qkv_bias && !model.output_bias && !model.mlp_bias && !model.qk_norm && !model.tied_embeddings
    );
}

#[test]
fn old_and_new_spellings_of_rope_mean_the_same() {
    let llama3 = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128,
    });
    let mut old_fields = llama3.clone();
    old_fields["rope_type"] = json!("llama3");
    let old = with(
        "LlamaForCausalLM",
        &json!({"rope_theta": 500_000, "rope_scaling": old_fields}),
    );
    let mut new_fields = llama3;
    new_fields["rope_type"] = json!("llama3");
    new_fields["rope_theta"] = json!(500_000.0);
    let new = with("LlamaForCausalLM", &json!({ "rope_parameters": new_fields }));

    let model = parse(&old).unwrap();
    assert_eq!(model, parse(&new).unwrap());
    assert_eq!(model.rope.theta, 500_000.0);
    assert_eq!(
        model.rope.scaling,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 128.0
        }
    );

    let oldest = with(
        "LlamaForCausalLM",
        &json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
    );
    assert_eq!(
        parse(&oldest).unwrap().rope.scaling,
        RopeScaling::Linear { factor: 2.0 }
    );
}

#[test]
fn windows_follow_each_architecture() {
    let mistral = |fields| parse(&with("MistralForCausalLM", &fields)).unwrap().windows;
    assert_eq!(mistral(json!({"sliding_window": 100})), [Some(100); 3]);
    assert_eq!(mistral(json!({"sliding_window": null})), [None; 3]);
    assert_eq!(mistral(json!({})), [Some(4096); 3]);

    let qwen = |fields| parse(&with("Qwen2ForCausalLM", &fields)).unwrap().windows;
    assert_eq!(
        qwen(json!({"sliding_window": 100, "use_sliding_window": false, "max_window_layers": 0})),
        [None; 3]
    );
    assert_eq!(
        qwen(json!({"sliding_window": 100, "use_sliding_window": true, "max_window_layers": 2})),
        [None, None, Some(100)]
    );
    assert_eq!(
        qwen(json!({
            "sliding_window": 100, "use_sliding_window": true, "max_window_layers": 2,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        })),
        [Some(100), None, Some(100)]
    );
}

#[test]
fn biases_and_norms_follow_each_architecture() {
    let parts = |architecture, fields| {
        let model = parse(&with(architecture, &fields)).unwrap();
        (model.qkv_bias, model.output_bias, model.mlp_bias, model.qk_norm)
    };
    let on = json!({"attention_bias": true, "mlp_bias": true});
    assert_eq!(parts("LlamaForCausalLM", on.clone()), (true, true, true, false));
    assert_eq!(
        parts("MistralForCausalLM", on.clone()),
        (false, false, false, false)
    );
    assert_eq!(parts("Qwen2ForCausalLM", json!({})), (true, false, false, false));
    assert_eq!(parts("Qwen3ForCausalLM", json!({})), (false, false, false, true));
    assert_eq!(parts("Qwen3ForCausalLM", on), (true, true, false, true));
    assert_eq!(parse(&base("Qwen3ForCausalLM")).unwrap().head_dim, 128);
}

#[test]
fn several_eos_tokens() {
    let config = with("LlamaForCausalLM", &json!({"eos_token_id": [2, 7]}));
    assert_eq!(parse(&config).unwrap().eos, [2, 7]);
}

#[test]
fn what_is_not_supported_is_named_beside_what_is() {
    for (architecture, fields, parts) in [
        (
            "MixtralForCausalLM",
            json!({}),
            ["MixtralForCausalLM", "Qwen3ForCausalLM"],
        ),
        (
            "LlamaForCausalLM",
            json!({"hidden_act": "gelu"}),
            ["gelu", "silu"],
        ),
        (
            "LlamaForCausalLM",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
            ["yarn", "llama3"],
        ),
        (
            "LlamaForCausalLM",
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            ["gptq", "bf16"],
        ),
        (
            "LlamaForCausalLM",
            json!({"partial_rotary_factor": 0.5}),
            ["partial_rotary_factor", "0.5"],
        ),
        (
            "Qwen3ForCausalLM",
            json!({"layer_types": ["full_attention", "linear_attention", "full_attention"]}),
            ["linear_attention", "full_attention"],
        ),
        (
            "Qwen3ForCausalLM",
            json!({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}),
            ["rope_parameters", "one set for all layers"],
        ),
    ] {
        let message = error(&with(architecture, &fields));
        for part in parts {
            assert!(message.contains(part), "{message:?} does not name {part}");
        }
    }
    // Another family's file is refused for its architecture, not for the fields that it lacks.
    let message = error(&json!({"architectures": ["GPT2LMHeadModel"], "n_embd": 768}));
    assert!(message.contains("GPT2LMHeadModel"), "{message}");
    let message = error(&json!({"vocab_size": 5}));
    assert!(message.contains("architectures is []"), "{message}");
}

#[test]
fn contradictions_are_named() {
    for (fields, named) in [
        (json!({"num_key_value_heads": 3}), "num_attention_heads"),
        (json!({"hidden_size": 66}), "head_dim"),
        (json!({"head_dim": 15}), "head_dim"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers"),
        (json!({"hidden_size": 1u64 << 40}), "hidden_size"),
        (json!({"rms_norm_eps": 0.0}), "rms_norm_eps"),
        (json!({"rope_theta": -1.0}), "rope_theta"),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "factor"),
        (json!({"eos_token_id": 256}), "eos_token_id"),
        (json!({"vocab_size": "many"}), "is not a config.json"),
    ] {
        let message = error(&with("LlamaForCausalLM", &fields));
        assert!(message.contains(named), "{message:?} does not name {named}");
    }
    let message = error(&with("MistralForCausalLM", &json!({"sliding_window": 0})));
    assert!(message.contains("sliding_window"), "{message}");
    let types = json!({"layer_types": ["full_attention"]});
    assert!(error(&with("Qwen2ForCausalLM", &types)).contains("layer_types"));
}
