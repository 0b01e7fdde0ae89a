"""Adapters: small trained matrices around a frozen transformer, by `peft`."""
