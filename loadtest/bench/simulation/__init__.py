"""Figures of the simulator: `python -m loadtest.bench.simulation` makes each one that README.md and docs quote."""
