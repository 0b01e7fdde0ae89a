"""NVIDIA FLARE as engine: its CellNet carries our frames between machines."""
