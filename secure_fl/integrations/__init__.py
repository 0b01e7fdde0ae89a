"""The sealed sum inside other engines: Flower and NVIDIA FLARE carry its messages."""
