"""The held-out cases: other seeds than the training data, and sums that are never trained on.

Usage: python heldout.py OUT.jsonl TOKENIZER.json
"""

from __future__ import annotations

import json
import random
import sys

import chat
import tasks
from tasks import ASSISTANT, render

SEED = 7_000_003
COUNTS = {"arithmetic": 200, "story": 200, "json": 100, "list": 100, "chat": 60}
# (bucket, tables, questions per table, fewest and most prompt tokens)
RECALL = [("<=1000", 20, 5, 60, 1000), ("<=3000", 12, 5, 1001, 3000)]


def case(task: str, messages: list[dict], bucket: str | None = None) -> dict:
    """The last message is the expected answer; what stands before it is the prompt."""
    out = {"task": task}
    if bucket:
        out["bucket"] = bucket
    return out | {"messages": messages[:-1], "answer": messages[-1]["content"], "match": "exact"}


def single(task: str, rng: random.Random) -> dict:
    if task == "arithmetic":
        return case(task, tasks.arithmetic_turn(rng, heldout=True))
    if task == "story":
        # One question straight after the story, or one in a later turn.
        messages = tasks.story_questions(rng, most=2)
        return case(task, messages)
    if task == "json":
        return case(task, tasks.json_turn(rng))
    if task == "list":
        return case(task, tasks.list_turn(rng))
    return case(task, chat.with_system(rng, chat.small_talk_turn(rng)))


def recall_cases(tokenizer, rng: random.Random, scale: float = 1.0):
    for bucket, tables, questions, low, high in RECALL:
        for n in range(max(1, int(tables * scale))):
            # Lengths are spread evenly over the bucket.
            aim = low + (high - low) * (n + 1) / max(1, int(tables * scale))
            style = list(tasks.RECALL_STYLES)[n % 3]
            per_pair = 5 if style == "dash" else 4
            pairs = int((aim - 45) / per_pair)
            messages = tasks.recall_turns(rng, max(2, min(pairs, 700)), 1, style)
            # Ask about several entries of the same table, each in its own case.
            table = table_of(messages[0]["content"], style)
            inside = len(messages) == 2
            for key, value in rng.sample(table, min(questions, len(table))):
                question = rng.choice(tasks.RECALL_QUESTIONS).format(key)
                if inside:
                    text = messages[0]["content"].rsplit("\n", 1)[0] + "\n" + question
                    prompt = tasks.turn(text, tasks.recall_answer(key, value))
                else:
                    prompt = messages[:2] + tasks.turn(question, tasks.recall_answer(key, value))
                length = len(prompt_ids(tokenizer, prompt[:-1]))
                assert low <= length <= high, (length, low, high)
                yield case("recall", prompt, bucket)


def table_of(text: str, style: str) -> list[tuple[str, str]]:
    before, between, after = tasks.RECALL_STYLES[style]
    words = set(tasks.KEYS), set(tasks.VALUES)
    pairs = []
    for part in text.replace(",", "\n").replace(":\n", ":\n").split("\n"):
        tokens = part.replace(":", " ").replace("=", " ").replace("-", " ").split()
        keys = [t for t in tokens if t in words[0]]
        values = [t for t in tokens if t in words[1]]
        if len(keys) == 1 and len(values) == 1:
            pairs.append((keys[0], values[0]))
    return pairs


def prompt_ids(tokenizer, messages: list[dict]) -> list[int]:
    return tokenizer.encode(render(messages) + ASSISTANT, add_special_tokens=False).ids


def all_cases(tokenizer, scale: float = 1.0, seed: int = SEED) -> list[dict]:
    rng = random.Random(seed)
    cases = []
    for task, count in COUNTS.items():
        cases += [single(task, rng) for _ in range(max(4, int(count * scale)))]
    return cases + list(recall_cases(tokenizer, rng, scale))


if __name__ == "__main__":
    from tokenizers import Tokenizer
    with open(sys.argv[1], "w") as f:
        for item in all_cases(Tokenizer.from_file(sys.argv[2])):
            f.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
