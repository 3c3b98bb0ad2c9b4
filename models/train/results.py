"""Scores the exported models on heldout.jsonl and writes results.json.

Usage: python results.py MODELS_DIR [LOG.jsonl ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

import evaluate
import heldout
import tasks
import tokenizer as tokenizer_training
from export import load_exported
from model import DRAFT, TARGET

AIMS = {"recall <=1000": 95, "recall <=3000": 85, "arithmetic": 95, "story": 90,
        "draft agreement": 85}
SHOWN = ["What is 21 + 34?", "21+34=", "Tell me a short story.", "Tell me a story about a fox.",
         "Hello!", "Who are you?"]


def step_cost(config, parameters: int, context: int) -> dict[str, int]:
    """Bytes read and operations done by one decode step at a context length."""
    vectors = 2 * config.num_hidden_layers * config.num_key_value_heads
    heads = config.num_hidden_layers * config.num_attention_heads
    return {"bytes": 2 * parameters + vectors * config.head_dim * context,
            "operations": 2 * parameters + 4 * heads * config.head_dim * context}


def main(models: Path, logs: list[Path]) -> None:
    tokenizer = Tokenizer.from_file(str(models / "baton-tiny" / "tokenizer.json"))
    target = load_exported(models / "baton-tiny", TARGET)
    draft = load_exported(models / "baton-draft", DRAFT)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target, draft = target.to(device), draft.to(device)
    cases = [json.loads(line) for line in (models / "heldout.jsonl").open()]
    result: dict = {
        "date": "2026-11-21", "trained_on": "one NVIDIA H100",
        "seeds": {"tokenizer": tokenizer_training.SEED, "target": 1, "draft": 2,
                  "heldout": heldout.SEED},
        "parameters": {"baton-tiny": target.parameter_count(),
                       "baton-draft": draft.parameter_count()},
        "aims_percent": AIMS, "heldout_cases": len(cases), "scores_percent": {},
    }
    for name, model in (("baton-tiny", target), ("baton-draft", draft)):
        result["scores_percent"][name] = {
            kv: evaluate.score(model, cases, tokenizer, device, kv == "kv_fp8")
            for kv in ("kv_f32", "kv_fp8")}
    told = [{"task": "free story", "messages": [{"role": "user", "content": text}]}
            for text in tasks.STORY_REQUESTS] + [
        {"task": "free story", "messages": [{"role": "user", "content": f"Tell me a story about "
                                             f"{article_of(animal)}."}]}
        for animal in tasks.ANIMALS]
    result["draft_agreement_percent"] = {
        kv: evaluate.agreement(target, draft, cases + told, tokenizer, device, kv == "kv_fp8")
        for kv in ("kv_f32", "kv_fp8")}
    costs = {}
    for context in (1, 1000, 4096):
        t = step_cost(TARGET, target.parameter_count(), context)
        d = step_cost(DRAFT, draft.parameter_count(), context)
        costs[f"context {context}"] = {k: {"baton-tiny": t[k], "baton-draft": d[k],
                                           "ratio": round(d[k] / t[k], 4)} for k in t}
    result["decode_step_cost"] = costs
    prompts = [heldout.prompt_ids(tokenizer, [{"role": "user", "content": q}]) for q in SHOWN]
    answers = evaluate.greedy(target, prompts, tokenizer, device)
    result["greedy_examples"] = {q: tokenizer.decode(a) for q, a in zip(SHOWN, answers)}
    for path in logs:
        entries = [json.loads(line) for line in path.open()]
        result[path.stem.replace("log-", "loss_curve_")] = entries
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (models / "results.json").write_text(text + "\n")
    shown = {k: v for k, v in result.items() if not k.startswith("loss_curve")}
    print(json.dumps(shown, indent=1, ensure_ascii=False))


def article_of(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])
