"""Makes the tiny random checkpoints of tests/data and the logits that transformers computes from them in float32.

    python engine/tests/make_golden.py        (needs torch, transformers and safetensors)

Each folder is a checkpoint in the Hugging Face layout plus `golden.safetensors`, which holds for each prompt length N
`tokens.N` (int32, [N]) and `logits.N` (float32, [N, vocab]). Between them the folders cover every architecture, weight
dtype, rope scaling and spelling of config.json that the loader takes. Seeded: a second run gives equal files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
    Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
)

DATA = Path(__file__).parent / "data"
PROMPTS = (5, 50)
SHAPE = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)


def default_rope(theta: float) -> dict:
    return {"rope_type": "default", "rope_theta": theta}


def old_rope_spelling(config: dict, scaling: dict | None) -> None:
    """What releases before transformers 5 wrote: rope_theta at the top, scaling beside it."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")


def cases():
    yield ("llama-f32-tied", LlamaForCausalLM, LlamaConfig(
        **SHAPE, tie_word_embeddings=True, rope_parameters=default_rope(10000.0)), torch.float32, {"drop": ["head_dim"]})
    yield ("llama3-rope-bf16-sharded", LlamaForCausalLM, LlamaConfig(
        **SHAPE, head_dim=32, rope_parameters={
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
        torch.bfloat16, {"max_shard_size": "60KB"})
    yield ("llama-linear-rope-f16-biased", LlamaForCausalLM, LlamaConfig(
        **SHAPE, attention_bias=True, mlp_bias=True, rope_parameters={
            "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
        torch.float16, {"rope": {"type": "linear", "factor": 4.0}})
    yield ("mistral-window-bf16", MistralForCausalLM, MistralConfig(
        **SHAPE, head_dim=32, sliding_window=16, rope_parameters=default_rope(1000.0)), torch.bfloat16, {})
    yield ("qwen2-bias-window-bf16-tied", Qwen2ForCausalLM, Qwen2Config(
        **SHAPE, tie_word_embeddings=True, use_sliding_window=True, sliding_window=12, max_window_layers=1,
        rope_parameters=default_rope(1000000.0)), torch.bfloat16, {"rope": None, "drop": ["layer_types"]})
    yield ("qwen3-qknorm-f32", Qwen3ForCausalLM, Qwen3Config(
        **(SHAPE | {"num_key_value_heads": 1}), head_dim=64, rope_parameters=default_rope(1000000.0)),
        torch.float32, {})


def randomize(model: torch.nn.Module) -> None:
    """Weights wide enough that the logits differ clearly, gains and biases away from 1 and 0."""
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            p.data.uniform_(0.5, 1.5)
        elif name.endswith("bias"):
            p.data.normal_(std=0.3)
        else:
            p.data.normal_(std=0.12)


def make(name, kind, config, dtype, extra) -> None:
    folder = DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(20)
    model = kind(config)
    randomize(model)
    model = model.to(dtype)
    model.save_pretrained(folder, **{k: v for k, v in extra.items() if k == "max_shard_size"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    if "rope" in extra:
        old_rope_spelling(saved, extra["rope"])
    for key in extra.get("drop", []):
        saved.pop(key)
    path.write_text(json.dumps(saved, indent=2) + "\n")

    # Through the files, so that the config is read as the loader under test reads it.
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    golden = {}
    for n in PROMPTS:
        tokens = torch.randint(3, config.vocab_size, (n,))
        with torch.no_grad():
            golden[f"logits.{n}"] = loaded(tokens[None]).logits[0].contiguous()
        golden[f"tokens.{n}"] = tokens.to(torch.int32)
    save_file(golden, folder / "golden.safetensors")


for case in cases():
    make(*case)
    print(case[0])
