"""Two inputs and two outputs, returned by name and not in their order."""

import torch


class Several:
    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"reversed": b.flip(1), "difference": (a[:, 0] - a[:, 1]).double()}
