"""Held-out scores. A case passes when every token of the expected answer, and the end of the
turn after it, is the greedy choice; that is the same as greedy decoding giving exactly it.
"""

from __future__ import annotations

from collections import defaultdict

import torch

import tasks
from heldout import prompt_ids


@torch.no_grad()
def forward(model, rows: list[list[int]], device, kv_fp8: bool, batch_tokens: int = 65536):
    """Greedy next tokens for every position of every row, longest rows first."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    out: list = [None] * len(rows)
    at = 0
    while at < len(order):
        width = len(rows[order[at]])
        group = order[at:at + max(1, batch_tokens // width)]
        ids = torch.zeros(len(group), width, dtype=torch.long)
        for j, i in enumerate(group):
            ids[j, :len(rows[i])] = torch.tensor(rows[i])
        choice = model(ids.to(device), None, kv_fp8).argmax(-1).cpu()
        for j, i in enumerate(group):
            out[i] = choice[j, :len(rows[i])]
        at += len(group)
    return out


def encode_cases(cases, tokenizer):
    end = tokenizer.token_to_id(tasks.END)
    rows, starts = [], []
    for c in cases:
        prompt = prompt_ids(tokenizer, c["messages"])
        answer = tokenizer.encode(c["answer"], add_special_tokens=False).ids + [end]
        rows.append(prompt + answer)
        starts.append(len(prompt))
    return rows, starts


def score(model, cases, tokenizer, device, kv_fp8: bool) -> dict[str, float]:
    """The share of exact answers by task (and by bucket for recall)."""
    rows, starts = encode_cases(cases, tokenizer)
    choices = forward(model, rows, device, kv_fp8)
    passed = defaultdict(list)
    for c, row, start, choice in zip(cases, rows, starts, choices):
        good = choice[start - 1:len(row) - 1].tolist() == row[start:]
        name = c["task"] + (" " + c["bucket"] if "bucket" in c else "")
        passed[name].append(good)
    return {name: round(100 * sum(v) / len(v), 2) for name, v in passed.items()}


@torch.no_grad()
def greedy(model, prompts: list[list[int]], tokenizer, device, most: int = 160,
           kv_fp8: bool = False) -> list[list[int]]:
    """Greedy continuations, recomputing the whole sequence (small models, short answers)."""
    stops = {tokenizer.token_to_id(tasks.END), tokenizer.token_to_id(tasks.EOT)}
    rows = [list(p) for p in prompts]
    live = set(range(len(rows)))
    for _ in range(most):
        if not live:
            break
        active = sorted(live)
        choices = forward(model, [rows[i] for i in active], device, kv_fp8)
        for i, choice in zip(active, choices):
            token = int(choice[-1])
            rows[i].append(token)
            if token in stops or len(rows[i]) >= 4096:
                live.discard(i)
    return [row[len(p):] for row, p in zip(rows, prompts)]


def agreement(target, draft, cases, tokenizer, device, kv_fp8: bool = False) -> dict[str, float]:
    """How often the draft's choice equals the target's on the target's greedy answers."""
    prompts = [prompt_ids(tokenizer, c["messages"]) for c in cases]
    answers = greedy(target, prompts, tokenizer, device, kv_fp8=kv_fp8)
    rows = [p + a for p, a in zip(prompts, answers)]
    guesses = forward(draft, rows, device, kv_fp8)
    same, total = defaultdict(int), defaultdict(int)
    for c, p, row, guess in zip(cases, prompts, rows, guesses):
        hits = sum(int(guess[i - 1]) == row[i] for i in range(len(p), len(row)))
        for name in (c["task"], "all"):
            same[name] += hits
            total[name] += len(row) - len(p)
    return {name: round(100 * same[name] / total[name], 2) for name in total}
