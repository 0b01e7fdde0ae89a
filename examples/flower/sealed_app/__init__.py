"""Logistic regression in Flower, over sealed sums."""
