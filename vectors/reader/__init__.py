"""A second reader of the protocol, written from docs/protocol.md; it imports nothing of secure_fl.

`python -m vectors.reader` verifies all vectors. Numbers like 4.6 are sections of docs/protocol.md.
"""
