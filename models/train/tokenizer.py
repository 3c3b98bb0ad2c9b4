"""Trains the byte-level BPE tokenizer and writes the Hugging Face files.

Digits are split one by one, and all 256 bytes are in the alphabet, so any UTF-8 text can be
encoded. The recall words are repeated in the corpus so that each becomes a single token with
its leading space. Usage: python tokenizer.py OUT_DIR
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import chat
import tasks

VOCAB_SIZE = 4096
SEED = 20261121
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<|system|>' + message['content'] + '<|end|>' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' + message['content'] + '<|end|>' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ raise_exception('Unknown role: ' + message['role']) }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def corpus(rng: random.Random, documents: int = 20000):
    strip = {token: " " for token in tasks.SPECIAL_TOKENS}
    for _ in range(documents):
        text = chat.document(rng)
        for token, blank in strip.items():
            text = text.replace(token, blank)
        yield text
    for word in tasks.KEYS + tasks.VALUES:
        yield (" " + word) * 400
        yield ("\n" + word) * 3


def train(seed: int = SEED) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=tasks.SPECIAL_TOKENS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(random.Random(seed)), trainer)
    bos = (tasks.BOS, tokenizer.token_to_id(tasks.BOS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tasks.BOS} $A", pair=f"{tasks.BOS} $A {tasks.BOS} $B", special_tokens=[bos])
    return tokenizer


def check(tokenizer: Tokenizer) -> None:
    for word in tasks.KEYS + tasks.VALUES:
        ids = tokenizer.encode(" " + word, add_special_tokens=False).ids
        assert len(ids) == 1, f"{word!r} is {len(ids)} tokens"
    for text in ["21 + 34 = 55", "naïve café 🙂 日本\n\ttabs", " a  b ", "{\"k\": [1, 2]}"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def write(tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tasks.BOS, "eos_token": tasks.END, "pad_token": tasks.PAD,
        "additional_special_tokens": [tasks.EOT, tasks.SYSTEM, tasks.USER, tasks.ASSISTANT],
        "clean_up_tokenization_spaces": False, "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = {t: tokenizer.token_to_id(t) for t in tasks.SPECIAL_TOKENS}
    generation = {
        "bos_token_id": ids[tasks.BOS], "eos_token_id": [ids[tasks.END], ids[tasks.EOT]],
        "pad_token_id": ids[tasks.PAD], "do_sample": True, "temperature": 0.7, "top_p": 0.95,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


if __name__ == "__main__":
    trained = train()
    check(trained)
    write(trained, Path(sys.argv[1]))
    print("vocabulary", trained.get_vocab_size())
