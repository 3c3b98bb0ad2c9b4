"""Key-value recall rows, made on the device, with a curriculum over the number of pairs.

A layout is one real tokenized text with slots for keys and values; rows are drawn by filling
the slots at random, so every step sees fresh tables. There are two families. In a list the
pairs of a table come again and again in the same format, which teaches to look a key up with
a dense signal; in a chat the table is followed by many questions. Only values that can be
known (and, lightly, the rest of the answers) carry weight in the loss. Each family has its own
number of pairs, raised whenever the accuracy at the current one is high enough.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import torch

import tasks

LEVELS = [2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 350, 450, 550, 620, 700]
ROW = 4096
RAISE_AT = 0.9            # accuracy at which a family gets more pairs
KEY_WEIGHT = 0.3          # the key inside the answer
CHAT_TOKEN_WEIGHT = 0.05  # the other answer tokens
CHATS = list(tasks.RECALL_STYLES)
LISTS = ["bare"] + ["list-" + style for style in tasks.RECALL_STYLES]
PAIR_TOKENS = {"bare": 2, "dash": 5, "equals": 4, "inline": 4}
QUERY_TOKENS = 20  # at most, in a chat


@dataclass
class Layout:
    ids: torch.Tensor         # [length]
    weight: torch.Tensor      # [length] loss weight of predicting this token
    table_keys: torch.Tensor  # [pairs] positions
    table_values: torch.Tensor
    query_keys: torch.Tensor  # [queries, repeats] positions
    query_values: torch.Tensor


class RecallRows:
    def __init__(self, tokenizer, device, seed: int):
        self.tokenizer = tokenizer
        self.device = device
        single = lambda w: tokenizer.encode(" " + w, add_special_tokens=False).ids[0]
        self.keys = torch.tensor([single(w) for w in tasks.KEYS], device=device)
        self.values = torch.tensor([single(w) for w in tasks.VALUES], device=device)
        self.special = {t: tokenizer.token_to_id(t) for t in tasks.SPECIAL_TOKENS}
        self.rng = random.Random(seed)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.layout = lru_cache(maxsize=4096)(self._layout)
        self.levels = {"list": 1, "chat": 0}

    # --- layouts ---

    def _layout(self, style: str, pairs: int, queries: int, opening: int, form: int,
                first_inside: bool) -> Layout:
        keys, values = tasks.KEYS[:pairs], tasks.VALUES[:pairs]
        if style in LISTS:
            order = [(keys[i % pairs], values[i % pairs]) for i in range(pairs + queries)]
            if style == "bare":
                text = tasks.BOS + "".join(f" {k} {v}" for k, v in order)
            else:
                text = tasks.BOS + tasks.recall_table(order, style.removeprefix("list-"),
                                                      tasks.RECALL_OPENINGS[opening])
            repeats = 1
        else:
            table = tasks.recall_table(list(zip(keys, values)), style,
                                       tasks.RECALL_OPENINGS[opening])
            question = tasks.RECALL_QUESTIONS[form]
            turns = [tasks.turn(question.format(keys[q % pairs]),
                                tasks.recall_answer(keys[q % pairs], values[q % pairs]))
                     for q in range(queries)]
            if first_inside:
                turns[0][0]["content"] = table + "\n" + turns[0][0]["content"]
            else:
                turns.insert(0, tasks.turn(table, "Okay, I will remember that."))
            text = tasks.render([m for t in turns for m in t])
            repeats = 2  # the key stands in the question and in the answer
        ids = torch.tensor(self.tokenizer.encode(text, add_special_tokens=False).ids,
                           device=self.device)
        key_at = torch.isin(ids, self.keys[:pairs]).nonzero().flatten()
        value_at = torch.isin(ids, self.values[:pairs]).nonzero().flatten()
        assert len(value_at) == pairs + queries, (style, pairs, queries)
        assert len(key_at) == pairs + queries * repeats, (style, pairs, queries)
        weight = torch.zeros(len(ids), device=self.device)
        if style in CHATS:
            weight = CHAT_TOKEN_WEIGHT * supervised(ids[None], self.special)[0].float()
            weight[key_at[pairs + 1::2]] = KEY_WEIGHT
        weight[value_at[pairs:]] = 1.0
        return Layout(ids, weight, key_at[:pairs], value_at[:pairs],
                      key_at[pairs:].view(queries, repeats), value_at[pairs:])

    def random_layout(self, style: str, pairs: int) -> Layout:
        per_pair = PAIR_TOKENS[style.removeprefix("list-")]
        per_query = QUERY_TOKENS if style in CHATS else per_pair
        room = (ROW - 80 - pairs * per_pair) // per_query
        queries = min(room, max(8, pairs // 2) if style in CHATS else max(16, 2 * pairs))
        return self.layout(style, pairs, queries, self.rng.randrange(len(tasks.RECALL_OPENINGS)),
                           self.rng.randrange(len(tasks.RECALL_QUESTIONS)),
                           self.rng.random() < 0.5)

    # --- rows ---

    def fill(self, layout: Layout, rows: int, alphabet: int):
        """`rows` packed rows of the layout: ids, and weights that sum to one in each row."""
        length = len(layout.ids)
        docs = rows * (ROW // length)
        pairs = len(layout.table_keys)
        gen, dev = self.generator, self.device
        ids = layout.ids.repeat(docs, 1)
        pick = torch.rand(docs, alphabet, device=dev, generator=gen).argsort(1)[:, :pairs]
        keys = self.keys[pick]
        drawn = torch.randint(alphabet, (docs, pairs), device=dev, generator=gen)
        values = self.values[drawn]
        ids[:, layout.table_keys] = keys
        ids[:, layout.table_values] = values
        asked = torch.randint(pairs, (docs, len(layout.query_values)), device=dev, generator=gen)
        repeats = layout.query_keys.shape[1]
        ids[:, layout.query_keys.flatten()] = keys.gather(1, asked).repeat_interleave(repeats, 1)
        ids[:, layout.query_values] = values.gather(1, asked)
        weight = layout.weight.repeat(docs, 1)
        pad = ROW - (ROW // length) * length
        ids = torch.nn.functional.pad(ids.view(rows, -1), (0, pad), value=self.special[tasks.PAD])
        weight = torch.nn.functional.pad(weight.view(rows, -1), (0, pad))
        return ids, weight / weight.sum(1, keepdim=True), weight == 1.0

    def alphabet(self, pairs: int) -> int:
        """How many different keys (and values) a table draws from."""
        return len(self.keys) if pairs >= 128 else min(len(self.keys), max(8, 4 * pairs))

    def batch(self, rows: int):
        """Ids, weights, and where the values asked for stand. The first third is chats and the
        second lists, both at their current size; the last third is any family and size so far.
        """
        third = rows // 3
        mixed = self.rng.choice(["list", "chat", "chat"])
        level = self.rng.randint(0, self.levels[mixed])
        second = "list" if self.levels["chat"] < len(LEVELS) - 1 else mixed
        plan = [("chat", self.levels["chat"], third), (second, self.levels[second], third),
                (mixed, level, rows - 2 * third)]
        parts = []
        for family, level, count in plan:
            pairs = LEVELS[level]
            style = self.rng.choice(CHATS if family == "chat" else LISTS)
            parts.append(self.fill(self.random_layout(style, pairs), count, self.alphabet(pairs)))
        return [torch.cat(tensors) for tensors in zip(*parts)]

    def report(self, chat_accuracy: float, list_accuracy: float) -> None:
        """Raises the sizes; takes the accuracies of the last steps' first two thirds."""
        for family, accuracy in (("chat", chat_accuracy), ("list", list_accuracy)):
            if accuracy > RAISE_AT and self.levels[family] < len(LEVELS) - 1:
                self.levels[family] += 1


def supervised(ids: torch.Tensor, special: dict[str, int]) -> torch.Tensor:
    """True where the token is to be learned: plain text, and assistant turns with their end."""
    position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    is_special = torch.zeros_like(ids, dtype=torch.bool)
    for token in tasks.SPECIAL_TOKENS:
        is_special |= ids == special[token]
    last = torch.where(is_special, position, -1).cummax(1).values
    # For a special token itself the state is the one before it.
    before = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), 1)
    role = torch.where(before >= 0, ids.gather(1, before.clamp_min(0)), special[tasks.PAD])
    learn = (role == special[tasks.ASSISTANT]) | (role == special[tasks.BOS])
    opens = (ids == special[tasks.BOS]) | (ids == special[tasks.PAD])
    for token in (tasks.USER, tasks.SYSTEM, tasks.ASSISTANT):
        opens |= ids == special[token]
    return learn & ~opens
