"""Optional features, each a folder."""
