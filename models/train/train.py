"""Trains the target, or the draft on the target's choices. See ../README.md for the commands.

The run is timed by the clock: `--seconds` bounds this process, `--schedule` is the training
time over all processes (the learning rate falls to zero over its last part), and a checkpoint
is written before the process ends. Text rows and recall rows share every step.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import evaluate
import heldout
import tasks
from model import DRAFT, TARGET, Llama, document_mask
from optim import make_optimizers
from recall import LEVELS, RecallRows, supervised

PART = 15 * 1024 * 1024


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=["target", "draft"], default="target")
    p.add_argument("--teacher", type=Path, help="checkpoint folder of the target (draft only)")
    p.add_argument("--tokenizer", type=Path, default=Path("models/baton-tiny/tokenizer.json"))
    p.add_argument("--shards", type=Path, default=Path("/tmp/baton-shards"))
    p.add_argument("--shard-count", type=int, default=480)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--resume", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--seconds", type=float, default=560, help="wall time of this process")
    p.add_argument("--schedule", type=float, default=900, help="training time in all")
    p.add_argument("--finish", action="store_true",
                   help="let the schedule end with this process, whatever it resumes from")
    p.add_argument("--decay", type=float, default=0.35, help="share of the schedule that decays")
    p.add_argument("--rows", type=int, default=32)
    p.add_argument("--recall-rows", type=int, default=18)
    p.add_argument("--recall-share", type=float, default=0.5, help="share of the loss")
    p.add_argument("--muon-lr", type=float, default=0.01)
    p.add_argument("--adam-lr", type=float, default=0.003)
    p.add_argument("--fp8-from", type=float, default=0.5,
                   help="share of the schedule after which FP8 keys and values are simulated")
    p.add_argument("--save-every", type=float, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--eval-every", type=float, default=60)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


# --- checkpoints, in parts of at most 15 MiB ---

def save(folder: Path, state: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    blob = buffer.getvalue()
    for old in folder.glob("part-*"):
        old.unlink()
    for n, at in enumerate(range(0, len(blob), PART)):
        (folder / f"part-{n}").write_bytes(blob[at:at + PART])


def load(folder: Path, device) -> dict:
    parts = sorted(folder.glob("part-*"), key=lambda p: int(p.name.split("-")[1]))
    blob = b"".join(p.read_bytes() for p in parts)
    return torch.load(io.BytesIO(blob), map_location=device, weights_only=False)


def slim(state):
    """Momentum is kept in bf16 to halve its size."""
    for entry in state["state"].values():
        if "momentum" in entry:
            entry["momentum"] = entry["momentum"].bfloat16()
    return state


# --- one step ---

def make_loss(model, teacher, kv_fp8: bool):
    """Per-row weighted losses, and per-row counts of right and of all values asked for."""

    def loss(ids, weight, value, mask):
        targets = ids.roll(-1, 1)
        weight, value = weight.roll(-1, 1).clone(), value.roll(-1, 1).clone()
        weight[:, -1] = 0
        value[:, -1] = False
        with torch.autocast(ids.device.type, torch.bfloat16):
            logits = model(ids, mask, kv_fp8)
            if teacher is not None:
                with torch.no_grad():
                    taught = teacher(ids, mask, kv_fp8)
        logits = logits.float()
        if teacher is None:
            each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        else:
            # Half the teacher's greedy choice, half its distribution.
            taught = taught.float()
            logp = F.log_softmax(logits, -1)
            hard = -logp.gather(-1, taught.argmax(-1, keepdim=True)).squeeze(-1)
            soft = -(F.softmax(taught, -1) * logp).sum(-1)
            each = 0.5 * (hard + soft)
        each = each.view_as(weight) * weight
        right = logits.gather(-1, targets[..., None]).squeeze(-1) >= logits.amax(-1)
        return each.sum(1), (right & value).sum(1), value.sum(1)

    return loss


def main():
    args = arguments()
    began = time.time()
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    special = {t: tokenizer.token_to_id(t) for t in tasks.SPECIAL_TOKENS}
    workers = data.start_workers(args.shards, args.tokenizer, args.seed, args.shard_count,
                                 args.workers)
    model = Llama(TARGET if args.model == "target" else DRAFT).to(device)
    optimizers = make_optimizers(model, args.muon_lr, args.adam_lr)
    recall = RecallRows(tokenizer, device, args.seed)
    step, trained = 0, 0.0
    if args.resume and any(args.resume.glob("part-*")):
        state = load(args.resume, device)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        step, trained, recall.levels = state["step"], state["trained"], state["levels"]
        print(f"resumed at step {step}, {trained:.0f} s, levels {recall.levels}", flush=True)
    for optimizer in optimizers:
        for group, lr in zip(optimizer.param_groups, [args.muon_lr] * 99):
            group["base"] = lr if optimizer is optimizers[0] else args.adam_lr
    teacher = None
    if args.model == "draft":
        teacher = Llama(TARGET).to(device).requires_grad_(False)
        teacher.load_state_dict(load(args.teacher, device)["model"])
    cuda = device.type == "cuda"
    losses = [make_loss(model, teacher, fp8) for fp8 in (False, True)]
    build_mask = document_mask
    if cuda:
        losses = [torch.compile(loss, dynamic=False) for loss in losses]
        build_mask = torch.compile(document_mask, dynamic=False)
    text = data.TextRows(args.shards, device, args.seed + step)
    while text.refresh() == 0:
        time.sleep(0.2)
    cases = heldout.all_cases(tokenizer, scale=0.3, seed=99 + args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    log = (args.out / f"log-{args.model}.jsonl").open("a")

    def record(entry):
        log.write(json.dumps(entry) + "\n")
        log.flush()
        print(json.dumps(entry), flush=True)

    def checkpoint():
        save(args.out / f"checkpoint-{args.model}", {
            "model": model.state_dict(), "optimizers": [slim(o.state_dict()) for o in optimizers],
            "step": step, "trained": trained, "levels": recall.levels})

    text_rows = args.rows - args.recall_rows
    third = args.recall_rows // 3
    # Text loss, recall loss; values right and asked in chats at the current size; so in lists.
    sums = torch.zeros(6, device=device)
    window, start, tokens = 0, None, 0
    last_eval = last_save = time.time()
    kv_fp8 = False
    while time.time() - began < args.seconds and (args.finish or trained < args.schedule):
        tick = time.time()
        done = trained / args.schedule
        if args.finish:
            first = start or tick
            done = (tick - first) / max(began + args.seconds - first, 1.0)
        kv_fp8 = done >= args.fp8_from
        rate = min(1.0, (step + 1) / 100, max(0.0, (1 - done) / args.decay))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * rate
        recall_ids, recall_weight, recall_value = recall.batch(args.recall_rows)
        text_ids = text.batch(text_rows)
        learn = supervised(text_ids, special).float()
        ids = torch.cat((recall_ids, text_ids))
        weight = torch.cat((recall_weight * (args.recall_share / args.recall_rows),
                            learn * ((1 - args.recall_share) / learn.sum())))
        value = torch.cat((recall_value, torch.zeros_like(text_ids, dtype=torch.bool)))
        mask = build_mask(ids, special[tasks.BOS]) if cuda else None
        row_loss, right, asked = losses[kv_fp8](ids, weight, value, mask)
        row_loss.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            split = args.recall_rows
            sums += torch.stack([row_loss[split:].sum() / (1 - args.recall_share),
                                 row_loss[:split].sum() / args.recall_share,
                                 *(part.sum().float() for t in (0, third)
                                   for part in (right[t:t + third], asked[t:t + third]))])
        step, window = step + 1, window + 1
        if window == 20:
            text_loss, recall_loss, *counts = sums.tolist()  # waits for the device
            chat_accuracy = counts[0] / max(counts[1], 1)
            list_accuracy = counts[2] / max(counts[3], 1)
            if start is None:  # the first window holds the compilation
                start, tokens = time.time(), 0
            else:
                tokens += window * ids.numel()
            if step % 200 < 20 or (step < 600 and step % 40 < 20):
                record({"step": step, "trained_s": round(trained, 1),
                        "wall_s": round(time.time() - began, 1),
                        "text_loss": round(text_loss / window, 4),
                        "recall_loss": round(recall_loss / window, 4),
                        "recall_pairs": {f: LEVELS[n] for f, n in recall.levels.items()},
                        "chat_acc": round(chat_accuracy, 4), "list_acc": round(list_accuracy, 4),
                        "lr": round(rate, 4), "shards": len(text.shards),
                        "tokens_per_s": round(tokens / max(time.time() - start, 1e-9))})
            recall.report(chat_accuracy, list_accuracy)
            sums.zero_()
            window = 0
            if step % 100 == 0:
                text.refresh()
        if time.time() - last_eval > args.eval_every:
            scores = quick_scores(model, cases, tokenizer, device, kv_fp8)
            record({"step": step, "kv_fp8": kv_fp8, "scores": scores})
            last_eval = time.time()
            tick = last_eval
        if time.time() - last_save > args.save_every:
            checkpoint()
            last_save = time.time()
        spent = time.time() - tick
        trained += spent if spent < 5 else 0.0  # compilation is not training time
    for p in workers:
        p.terminate()
    checkpoint()
    record({"step": step, "final_of_process": True, "trained_s": round(trained, 1),
            "recall_levels": recall.levels, "kv_fp8": kv_fp8,
            "tokens": step * args.rows * data.ROW,
            "scores": quick_scores(model, cases, tokenizer, device, kv_fp8)})


def quick_scores(model, cases, tokenizer, device, kv_fp8):
    with torch.autocast(device.type, torch.bfloat16):
        return evaluate.score(model, cases, tokenizer, device, kv_fp8)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
