"""Storms of kills and lies in pilots of processes."""
