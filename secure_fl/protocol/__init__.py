"""Shared by both ends of a run: messages, frames, links and the interfaces of a sum."""
