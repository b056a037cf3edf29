"""The gain of offsets, measured: BEIR folders, nDCG, baselines, experiments. Private: may change without notice."""
