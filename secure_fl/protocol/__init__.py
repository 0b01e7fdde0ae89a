"""What both ends of a run share: messages, frames, links, and the shape of a sum."""
