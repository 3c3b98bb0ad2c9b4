"""Greedy continuations by `transformers` in float32, for testing other implementations.

Only prompts whose best two logits stay at least MARGIN apart on the way are kept, so that a
different order of summation cannot change the output. Usage: python golden.py MODELS_DIR
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import chat
import heldout
import tasks

SEED = 40_007
TOKENS = 48
MARGIN = 0.01
WANTED = 24


def prompts(tokenizer, rng: random.Random) -> list[tuple[str, list[int]]]:
    """Named prompts as token ids: chats and plain text, short and long."""
    def chat_ids(messages):
        return heldout.prompt_ids(tokenizer, messages)

    def plain_ids(text):
        return tokenizer.encode(tasks.BOS + text, add_special_tokens=False).ids

    user = lambda text: [{"role": "user", "content": text}]
    out = [("chat", chat_ids(user(q))) for q in
           ["What is 21 + 34?", "Tell me a short story.", "Tell me a story about a fox.",
            "Hello!", "Who are you?", "Write a story about a bear."]]
    out += [("plain", plain_ids(t)) for t in
            ["Once upon a time", "Once upon a time, there was a little fox named Mila.",
             "Long ago, there was", "12 + 13 = 25.\n40 + 41 =", "One day,", "The"]]
    for steps in (2, 3, 5):
        messages = chat.mixed_conversation(rng, steps)
        out.append(("conversation", chat_ids(messages[:-1])))
    for steps in (16, 20, 26, 34):
        messages = chat.mixed_conversation(rng, steps)
        out.append(("long conversation", chat_ids(messages[:-1])))
    for pairs, style in ((20, "dash"), (140, "equals"), (200, "inline"), (300, "dash"),
                         (520, "inline")):
        messages = tasks.recall_turns(rng, pairs, 1, style)
        out.append(("recall", chat_ids(messages[:-1])))
    for _ in range(6):
        out.append(("story question", chat_ids(tasks.story_questions(rng)[:-1])))
    return out


@torch.no_grad()
def continuation(model, ids: list[int]) -> tuple[list[int], float]:
    """`TOKENS` greedy tokens, going on past the end of a turn, and the smallest margin."""
    cache, fed, out, margin = None, torch.tensor([ids]), [], float("inf")
    for _ in range(TOKENS):
        step = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        best = step.logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        out.append(int(best.indices[0]))
        fed = best.indices[:1][None]
    return out, margin


def main(models: Path) -> None:
    result = {"margin": MARGIN, "tokens": TOKENS, "dtype": "float32 (bf16 weights upcast)",
              "stops": "none: the continuation goes on past end tokens"}
    for name in ("baton-tiny", "baton-draft"):
        tokenizer = Tokenizer.from_file(str(models / name / "tokenizer.json"))
        model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32).eval()
        cases = []
        for kind, ids in prompts(tokenizer, random.Random(SEED)):
            output, margin = continuation(model, ids)
            if margin > MARGIN and len(cases) < WANTED:
                cases.append({"kind": kind, "prompt_ids": ids, "output_ids": output,
                              "min_margin": round(margin, 4)})
        print(name, len(cases), "prompts,", sum(len(c["prompt_ids"]) > 600 for c in cases),
              "longer than 600 tokens")
        result[name] = cases
    text = json.dumps(result, separators=(",", ":"))
    (models / "golden.json").write_text(text.replace('{"kind"', '\n{"kind"') + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
