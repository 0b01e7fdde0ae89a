"""A folder as a transport: a courier with network at one end, a trainer without at the other."""
