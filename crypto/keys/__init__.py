"""Long-term keys of a site: identity, roster, key ceremony and encrypted key files."""
