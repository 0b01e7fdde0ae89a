"""DP-SGD: protected units, clipping, noise, and the spent budget."""
