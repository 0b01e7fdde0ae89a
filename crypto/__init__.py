"""The privacy layer: sealed sums, long-term keys, differential privacy, and evidence of misconduct.

This package exports nothing on purpose. Import `crypto.sealing.public` for operations that anyone
may do and `crypto.sealing.secret` for those of key holders: the import line shows the entitlement.
"""
