"""Records from anywhere (tables, CoNLL, BRAT, MIND, `datasets`), split for good; no torch.

The four names below are what most programs need of it.
"""

from secure_fl.data.loaders import load as load
from secure_fl.data.splits import Columns as Columns
from secure_fl.data.splits import split as split
from secure_fl.data.splits import write as write
