"""Personal models: each hospital compares them with the shared model and with training alone."""
