"""Adapters: small trained matrices around a frozen transformer, by `peft`."""

from secure_fl.features.adapters import part as part
