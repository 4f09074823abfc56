"""Figures of the simulator: `python -m experiments.simulation` makes each one that README.md and docs quote."""
