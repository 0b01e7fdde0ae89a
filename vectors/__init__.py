"""Test vectors of docs/protocol.md, and a second reader of them."""
