"""Identity with room for three rows in its queue."""

from torch import nn


def build() -> nn.Module:
    return nn.Identity()
