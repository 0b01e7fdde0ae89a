"""Differential privacy: accounting, noise and the ledger of spent budgets."""
