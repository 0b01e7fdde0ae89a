"""What the papers compare with, over the same door."""
