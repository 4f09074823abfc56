"""Benchmarks. `make bench` measures the cost of serving against the least that could serve the same thing.

`python -m loadtest.bench` runs the cases of `cases.py`. The servers that are compared are child processes on loopback
and take turns within one run.
"""
