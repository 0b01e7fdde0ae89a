"""A search for settings, by short runs that are scored on the dev records of all parties."""
