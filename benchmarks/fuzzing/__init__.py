"""Fuzzing of every decoder that reads bytes from other machines or people."""
