"""Baselines: the methods that FedKD, FedID and InclusiveFL are compared with."""
