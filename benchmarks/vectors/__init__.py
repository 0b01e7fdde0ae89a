"""Test vectors of the protocol: made by the product, verified by it and by the second reader."""
