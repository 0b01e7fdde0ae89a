"""Models, tasks and local training at one site: the only part that computes with torch."""
