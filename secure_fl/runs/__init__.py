"""A run's folder: settings, events, checkpoints, result."""
