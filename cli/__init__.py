"""The `secure-fl` program, one file per command."""
