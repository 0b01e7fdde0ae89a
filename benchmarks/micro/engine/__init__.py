"""FLARE as engine beside the engine in one process: exchanges, rounds, and a pilot's start."""
