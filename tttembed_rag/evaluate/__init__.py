"""The gain of offsets, measured: BEIR folders, nDCG with intervals, baselines, experiments."""
