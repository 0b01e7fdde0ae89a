"""DP-SGD: whose records count, how they are clipped and noised, and what is spent."""
