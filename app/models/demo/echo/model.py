"""Identity: what comes out is what went in, in the very memory it came in."""

from torch import nn


def build() -> nn.Module:
    return nn.Identity()
