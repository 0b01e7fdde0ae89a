"""Export of finished runs: a card for each model, and copies in folders and on hubs."""
