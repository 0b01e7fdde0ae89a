"""A second implementation of the wire specification; it imports nothing of secure_fl.

`python -m vectors.reader` verifies all vectors. Numbers like 4.6 are sections of
docs/protocol.md and docs/protocol-bytes.md.
"""
