"""The same job on other systems and here: cost, mishaps and eavesdropping."""
