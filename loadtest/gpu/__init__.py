"""Measurements that need a GPU: Ebird's Figures 6, 8, 9 and 11, and the effect of each part of the engine.

`python -m loadtest.gpu` on a machine with CUDA; see `__main__`.
"""
