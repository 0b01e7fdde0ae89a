"""Settings files: TOML and one frozen tree of settings."""
