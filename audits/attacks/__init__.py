"""Attacks on what a role saw: a view, and what is known beforehand, in; a finding out."""
