"""Queues solved the plain way, to hold other solutions against: a transition matrix and its stationary chances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def mean_ns(batch_ns: Sequence[int], rate: float, serve: Callable[[int], int], states: int = 300) -> float:
    """Mean latency of one device, Poisson arrivals, constant batch times; `serve(n)` says how many of n rows run, or 0.

    The chain of decision instants gives the mean time and the mean area under the number in the system between two of
    them; Little's law does the rest. What would lie beyond the last state is put on it, so `states` must be generous.
    """
    arrivals, came = rate / 1e9, np.arange(states)
    factorials = np.r_[0.0, np.cumsum(np.log(came[1:]))]  # their logarithms
    matrix = np.zeros((states, states))
    time = np.zeros(states)
    area = np.zeros(states)
    for waiting in range(states):
        rows = serve(waiting)
        if not rows:
            matrix[waiting, min(waiting + 1, states - 1)] = 1
            time[waiting] = 1 / arrivals
            area[waiting] = waiting / arrivals
            continue
        time[waiting] = batch_ns[rows - 1]
        expected = arrivals * time[waiting]
        area[waiting] = (waiting + expected / 2) * time[waiting]
        chances = np.exp(came * np.log(expected) - expected - factorials)
        np.add.at(matrix[waiting], np.minimum(waiting - rows + came, states - 1), chances)
    system = np.vstack([(matrix.T - np.eye(states))[:-1], np.ones(states)])
    chances = np.linalg.solve(system, np.r_[np.zeros(states - 1), 1.0])
    return float(chances @ area / (chances @ time) / arrivals)
