"""Writes a training checkpoint as a Hugging Face folder with bf16 weights.

Usage: python export.py CHECKPOINT_FOLDER target|draft OUT_DIR [TOKENIZER_DIR]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import tasks
from model import DRAFT, TARGET, Llama

FILES = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def export(state: dict, config, out: Path, tokenizer_dir: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if tokenizer_dir != out:
            shutil.copy(tokenizer_dir / name, out / name)
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config.vocab_size
    ids = {"bos": tokenizer.token_to_id(tasks.BOS), "end": tokenizer.token_to_id(tasks.END),
           "eot": tokenizer.token_to_id(tasks.EOT), "pad": tokenizer.token_to_id(tasks.PAD)}
    (out / "config.json").write_text(config.hugging_face(ids))
    tensors = {name: t.detach().cpu().to(torch.bfloat16).contiguous()
               for name, t in state.items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})


def load_exported(folder: Path, config) -> Llama:
    """The exported bf16 weights in float32."""
    model = Llama(config)
    tensors = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name: t.float() for name, t in tensors.items()})
    return model.eval()


if __name__ == "__main__":
    from train import load
    chosen = {"target": TARGET, "draft": DRAFT}[sys.argv[2]]
    destination = Path(sys.argv[3])
    source = Path(sys.argv[4]) if len(sys.argv) > 4 else destination
    export(load(Path(sys.argv[1]), "cpu")["model"], chosen, destination, source)
