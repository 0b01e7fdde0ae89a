"""Sealed sums: masks, encryption, tags and shares, at both ends of a sum."""
