"""Evaluation without training: sealed sums of counts compare models on all test records."""
