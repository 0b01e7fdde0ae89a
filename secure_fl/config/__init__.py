"""Typed TOML: from a file to one frozen tree of settings, and back."""
