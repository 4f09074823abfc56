"""Identity: returns its input, in the same memory."""

from torch import nn


def build() -> nn.Module:
    return nn.Identity()
