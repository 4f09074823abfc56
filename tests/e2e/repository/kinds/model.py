"""Identity on one tensor of every datatype that JSON can carry but BYTES."""

import torch


class Kinds:
    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors
