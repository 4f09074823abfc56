"""Routers, which choose the replica of each request.

`random` and `round_robin` do not look at the replicas: they choose for a whole chunk of requests at once, and the
replicas can be simulated separately. `least_waiting` and `power_of_two` look at each replica's unanswered requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .node import Node

BLIND = ("random", "round_robin")
ROUTERS = (*BLIND, "least_waiting", "power_of_two")

_DRAWN = 4096  # choices drawn at a time


class Blind:
    """The choices of `random` or `round_robin`, chunk by chunk."""

    def __init__(self, router: str, replicas: int, seed: list[int]) -> None:
        self._replicas = replicas
        self._random = np.random.default_rng(seed) if router == "random" else None
        self._next = 0

    def choose(self, count: int) -> NDArray[np.int64]:
        """Replicas of the next `count` requests."""
        if self._random is not None:
            return self._random.integers(0, self._replicas, count)
        chosen = (np.arange(count) + self._next) % self._replicas
        self._next = (self._next + count) % self._replicas
        return chosen

    def parts(self, count: int, replicas: range) -> list[NDArray[np.int64]]:
        """For each of these replicas: which of the next `count` requests it gets."""
        chosen = self.choose(count)
        order = np.argsort(chosen, kind="stable")
        bounds = np.searchsorted(chosen[order], [*replicas, replicas.stop]).tolist()
        return [order[low:high] for low, high in pairwise(bounds)]


class LeastWaiting:
    """Chooses the replica with the fewest unanswered requests, at random among equals, in constant time.

    There is a list of replicas for each count. A replica that leaves its list is replaced by the last one of the list.
    """

    def __init__(self, nodes: Sequence[Node], seed: list[int]) -> None:
        self._random = np.random.default_rng(seed)
        self._drawn: list[float] = []
        self._at: list[list[int]] = [list(range(len(nodes)))]  # by count
        self._count = [0] * len(nodes)
        self._place = list(range(len(nodes)))  # the index of each replica in its list
        self._least = 0

    def route(self) -> int:
        if not self._drawn:
            self._drawn = self._random.random(_DRAWN).tolist()
        among = self._at[self._least]
        return among[int(self._drawn.pop() * len(among))]

    def moved(self, node: Node) -> None:
        index, new = node.index, node.unanswered
        old = self._count[index]
        if new == old:
            return
        among, place = self._at[old], self._place[index]
        last = among.pop()
        if last != index:
            among[place] = last
            self._place[last] = place
        while len(self._at) <= new:
            self._at.append([])
        self._place[index] = len(self._at[new])
        self._at[new].append(index)
        self._count[index] = new
        self._least = min(self._least, new)
        while not self._at[self._least]:
            self._least += 1


class PowerOfTwo:
    """Draws two replicas and chooses the one with fewer unanswered requests (Mitzenmacher, 2001)."""

    def __init__(self, nodes: Sequence[Node], seed: list[int]) -> None:
        self._nodes = nodes
        self._random = np.random.default_rng(seed)
        self._drawn: list[tuple[int, int]] = []

    def route(self) -> int:
        if not self._drawn:
            first = self._random.integers(0, len(self._nodes), _DRAWN)
            other = self._random.integers(0, len(self._nodes) - 1, _DRAWN)
            self._drawn = list(zip(first.tolist(), (other + (other >= first)).tolist(), strict=True))
        one, two = self._drawn.pop()
        return two if self._nodes[two].unanswered < self._nodes[one].unanswered else one

    def moved(self, node: Node) -> None:
        """Nothing to do: counts are read when a request arrives."""


def make(router: str, nodes: Sequence[Node], seed: list[int]) -> LeastWaiting | PowerOfTwo:
    """A router that looks at the nodes."""
    return LeastWaiting(nodes, seed) if router == "least_waiting" else PowerOfTwo(nodes, seed)
