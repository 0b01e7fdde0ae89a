"""The guard: all parties test each round on their dev records, vote, and undo a refused round."""
