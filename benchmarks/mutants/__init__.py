"""Random changes of the trusted core, against its tests."""
