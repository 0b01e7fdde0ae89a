"""Scores over the records of all parties: one sealed sum of counts at the end of each round."""
