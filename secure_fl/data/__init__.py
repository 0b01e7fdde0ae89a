"""Records from anywhere (tables, CoNLL, BRAT, MIND, `datasets`), and their splits; no torch.

Most programs need only the four names below.
"""

from secure_fl.data.loaders import load as load
from secure_fl.data.splits import Columns as Columns
from secure_fl.data.splits import split as split
from secure_fl.data.splits import write as write
