"""The job of the comparison, as a Flower app."""
