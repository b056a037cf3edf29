"""The gain of offsets, measured: BEIR folders, nDCG with intervals, baselines, experiments.

Private: may change without notice.
"""
