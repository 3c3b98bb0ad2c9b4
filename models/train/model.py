"""A compact Llama in PyTorch whose parameter names and numerics follow Hugging Face's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

FP8_MAX = 448.0  # largest finite E4M3 value


@dataclass
class Config:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 7
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 4096
    rope_theta: float = 1000000.0
    rms_norm_eps: float = 1e-5

    def hugging_face(self, ids: dict[str, int]) -> str:
        """The text of config.json; `ids` maps bos, eos, end and pad to token ids."""
        extra = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
            "attention_dropout": 0.0, "initializer_range": 0.02, "rope_scaling": None,
            "torch_dtype": "bfloat16", "use_cache": True, "bos_token_id": ids["bos"],
            "eos_token_id": [ids["end"], ids["eot"]], "pad_token_id": ids["pad"],
        }
        return json.dumps(dict(sorted((asdict(self) | extra).items())), indent=2) + "\n"


TARGET = Config()
# One attention head of 64 and two layers keep a decode step (weights, KV bytes and operations)
# under a tenth of the target's at every context length.
DRAFT = Config(hidden_size=80, intermediate_size=192, num_hidden_layers=2,
               num_attention_heads=1, num_key_value_heads=1)


def fake_fp8(x: torch.Tensor) -> torch.Tensor:
    """Rounds to E4M3 with one power-of-two scale per vector; gradients pass straight through."""
    y = x.float()
    peak = y.detach().abs().amax(-1, keepdim=True).clamp_min(1e-20)
    scale = torch.exp2(torch.ceil(torch.log2(peak / FP8_MAX)))
    rounded = (y.detach() / scale).to(torch.float8_e4m3fn).float() * scale
    return (y + (rounded - y.detach())).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * y


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        width, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(width, c.hidden_size, bias=False)

    def forward(self, x, cos, sin, mask, kv_fp8):
        b, s, _ = x.shape
        d = self.c.head_dim
        q = self.q_proj(x).view(b, s, -1, d).transpose(1, 2)
        k = self.k_proj(x).view(b, s, -1, d).transpose(1, 2)
        v = self.v_proj(x).view(b, s, -1, d).transpose(1, 2)
        q = rotate(q.float(), cos, sin).to(v.dtype)
        k = rotate(k.float(), cos, sin).to(v.dtype)
        if kv_fp8:
            k, v = fake_fp8(k), fake_fp8(v)
        grouped = self.c.num_attention_heads != self.c.num_key_value_heads
        if mask is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        else:
            y = flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)
        return self.o_proj(y.transpose(1, 2).reshape(b, s, -1))


class MLP(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c)

    def forward(self, x, cos, sin, mask, kv_fp8):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, kv_fp8)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Llama(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        inverse = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angles = torch.outer(torch.arange(c.max_position_embeddings).float(), inverse)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.data /= (2 * c.num_hidden_layers) ** 0.5

    def forward(self, ids, mask=None, kv_fp8: bool = False):
        s = ids.shape[1]
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[:s], self.sin[:s]
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask, kv_fp8)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def document_mask(ids: torch.Tensor, bos: int):
    """Causal attention inside each packed document; documents start at `bos`."""
    doc = (ids == bos).cumsum(1)

    def visible(b, h, q, kv):
        return (q >= kv) & (doc[b, q] == doc[b, kv])

    return create_block_mask(visible, ids.shape[0], None, ids.shape[1], ids.shape[1],
                             device=ids.device)
