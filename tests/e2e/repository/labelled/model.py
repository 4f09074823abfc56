"""Scores that are its input, with a label for each."""

from torch import nn


def build() -> nn.Module:
    return nn.Identity()
