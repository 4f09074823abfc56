"""Experiments of published papers, mostly simulated: our figures beside theirs, with all assumptions stated.

`python -m experiments.papers.ebird`, `...adaptive_batching` and `...stages` write figures into docs/bench/.
"""
