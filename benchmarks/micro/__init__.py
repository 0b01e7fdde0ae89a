"""One part at a time: a sum, a message, a process, a training step."""
