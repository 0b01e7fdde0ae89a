"""What the project claims, measured: each benchmark prints a table and writes JSON."""
