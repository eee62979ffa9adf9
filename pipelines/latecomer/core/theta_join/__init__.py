"""Theta joins of one window: conditions as ranks, partition plans, kernels, sums."""
