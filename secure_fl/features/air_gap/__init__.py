"""A folder as a line: a courier with network at one end, a trainer without one at the other."""
