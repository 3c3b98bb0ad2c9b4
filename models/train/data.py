"""Packs documents into rows of 4096 tokens, in parallel, as numpy shards."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
from pathlib import Path

import numpy as np

import chat
import tasks

ROW = 4096
SHARD_ROWS = 512


def shard(seed: int, tokenizer, rows: int = SHARD_ROWS) -> np.ndarray:
    """Whole documents only; a few rows stay open so that little is lost to padding."""
    rng = random.Random(seed)
    pad = tokenizer.token_to_id(tasks.PAD)
    open_rows: list[list[int]] = [[] for _ in range(8)]
    closed: list[list[int]] = []
    while len(closed) < rows:
        texts = [chat.document(rng) for _ in range(256)]
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            ids = encoding.ids[:ROW]
            fits = next((r for r in open_rows if len(r) + len(ids) <= ROW), None)
            if fits is None:
                fullest = max(range(len(open_rows)), key=lambda i: len(open_rows[i]))
                closed.append(open_rows[fullest])
                fits = open_rows[fullest] = []
            fits += ids
    return np.array([r + [pad] * (ROW - len(r)) for r in closed[:rows]], dtype=np.uint16)


def _work(folder: str, tokenizer_file: str, seed: int, numbers: list[int]) -> None:
    os.nice(15)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(tokenizer_file)
    for n in numbers:
        path = Path(folder) / f"shard-{n:04d}.npy"
        if path.exists():
            continue
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as f:
            np.save(f, shard(seed * 100_003 + n, tokenizer))
        temporary.rename(path)


def start_workers(folder: Path, tokenizer_file: Path, seed: int, shards: int, workers: int):
    """Starts the processes that write `shards` shards; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    processes = []
    for w in range(workers):
        numbers = list(range(w, shards, workers))
        p = context.Process(target=_work, daemon=True,
                            args=(str(folder), str(tokenizer_file), seed, numbers))
        p.start()
        processes.append(p)
    return processes


class TextRows:
    """Random rows out of the shards written so far, kept on the device."""

    def __init__(self, folder: Path, device, seed: int):
        import torch
        self.torch = torch
        self.folder, self.device = folder, device
        self.seen: set[str] = set()
        self.shards: list = []
        self.rng = random.Random(seed)
        self.queue: list[tuple[int, int]] = []

    def refresh(self) -> int:
        for path in sorted(self.folder.glob("shard-*.npy")):
            if path.name not in self.seen:
                self.seen.add(path.name)
                rows = self.torch.from_numpy(np.load(path).astype(np.int16)).to(self.device)
                self.shards.append(rows)
                fresh = [(len(self.shards) - 1, r) for r in range(0, len(rows) - 1, 2)]
                self.queue += fresh
                self.rng.shuffle(self.queue)
        return len(self.shards)

    def batch(self, rows: int):
        """`rows` rows in pairs of neighbours; every row is used once before any is reused."""
        taken = []
        for _ in range((rows + 1) // 2):
            if not self.queue:
                self.queue = [(s, r) for s in range(len(self.shards))
                              for r in range(0, len(self.shards[s]) - 1, 2)]
                self.rng.shuffle(self.queue)
            s, r = self.queue.pop()
            taken.append(self.shards[s][r:r + 2])
        return self.torch.cat(taken)[:rows].long()
