"""The papers' tables: cells that are real federations, and what they say of the papers' claims."""
