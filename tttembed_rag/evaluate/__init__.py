"""Measure what offsets do: BEIR folders, measures with intervals, baselines, budgets."""
