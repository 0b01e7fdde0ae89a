"""The privacy layer: vectors go in, sealed bytes come out.

This package exports nothing on purpose. Import `crypto.public` for what anyone may do and
`crypto.secret` for what key holders may do, so that entitlement shows in the import line.
"""
