"""Engines carry frames between the coordinator and the parties."""
