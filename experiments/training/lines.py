"""What the models that continue a line are trained by: the symbol behind each, of lines that are padded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

IGNORED = -100  # what cross_entropy leaves out: positions beyond a line's end


def fit(
    net: nn.Module,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    batch: Callable[[], torch.Tensor],
    *,
    steps: int,
    rate: float,
    decay: float,
) -> None:
    """Train `net` in place. `batch` gives rows of symbols, padded with IGNORED; `logits_of` calls the net with some."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(ignore_index=IGNORED)
    for step in range(steps):
        rows = batch()
        loss = loss_of(logits_of(rows[:, :-1].clamp(min=0)).flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d} of {steps}: loss {loss.item():.3f} a character", flush=True)
    net.eval()
