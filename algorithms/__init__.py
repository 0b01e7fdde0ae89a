"""The algorithms, each in a file or folder that follows its paper.

`updates`, `layers`, `exact`, `public_coins`, `public_distillation` and `ensembles` hold shared
parts. `baselines` holds the methods that the papers compare with.
"""
