"""The algorithms: one paper, one file; shared equations beside them."""
