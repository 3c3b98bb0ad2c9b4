"""Muon for the weight matrices (same-shaped ones in one batch), AdamW for everything else."""

from __future__ import annotations

import torch


def orthogonalize(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration over a batch of matrices, in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        by_shape: dict[tuple, list] = {}
        for p in params:
            by_shape.setdefault(tuple(p.shape), []).append(p)
        groups = [{"params": group} for group in by_shape.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = group["params"]
            state = self.state[params[0]]
            grads = torch.stack([p.grad for p in params])
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grads)
            m = state["momentum"]
            if m.dtype != grads.dtype:
                m = state["momentum"] = m.to(grads.dtype)
            m.lerp_(grads, 1 - group["momentum"])
            update = orthogonalize(grads.lerp(m, group["momentum"])).float()
            rows, cols = update.shape[-2:]
            scale = group["lr"] * max(1.0, rows / cols) ** 0.5
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, list(update.unbind(0)), alpha=-scale)


def make_optimizers(model, muon_lr: float, adam_lr: float):
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), eps=1e-10,
                             weight_decay=0.0, fused=next(model.parameters()).is_cuda)
    return [Muon(matrices, lr=muon_lr), adam]
