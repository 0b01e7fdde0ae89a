"""The release: the distribution, its dependencies, and documents about both.

Read `distribution` (wheel and sdist, the same bytes each time), `wheelhouse` (for a machine without
network), `sbom` (what is in it), `checksums` (signed, so that a hospital can check before it
installs).
"""
