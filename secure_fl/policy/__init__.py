"""A hospital's own rules: what a coordinator may ask of it."""
