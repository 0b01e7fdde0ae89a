"""The same job on every system that a hospital could pick instead, side by side.

`inside` runs in each system's own environment and imports nothing of ours but `inside.job`; all
other modules run here. `python -m benchmarks.peers` is the command.
"""
