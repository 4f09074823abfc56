"""Experiments of published papers, mostly simulated: our figures beside theirs, with all assumptions stated.

`python -m experiments.papers.ebird`, `...adaptive_batching` and `...steps` write pages into docs/bench/.
"""
