"""Tests of the sealed sum inside other engines."""
