# %% [markdown]
# # Reading an audit
# The same small federation runs twice, without protection and with it. Both runs are recorded and
# attacked. Embeddings are trained here: that reveals words, so the attacks have something to find.

# %%
import tempfile
from pathlib import Path

from secure_fl import Federation
from secure_fl.audits.run import audit
from secure_fl.config.load import loads

STUDY = """
run = {{name = "{mode}", record = true}}
task = {{max_length = 32}}
data = {{corpus = "ade", parties = 3, size = 48}}
model = {{layers = 1, freeze_embeddings = false}}
training = {{learning_rate = 2e-3, device = "cpu"}}
protection = {{mode = "{mode}"}}
algorithm = {{name = "fedavg", rounds = 2}}
"""
folder = Path(tempfile.mkdtemp())
audits = {}
for mode in ("none", "he+secagg"):
    Federation.of(loads(STUDY.format(mode=mode)), folder / mode).run()
    audits[mode] = audit(folder / mode, quick=True, code=False)

# %% [markdown]
# The verdict and its reasons. *Within policy* means that no limit of `[policy]` is broken. It does
# not mean that nothing leaks: the report lists everything that a policy does not limit.

# %%
for mode, report in audits.items():
    print(f"{mode}: {report.status}", *(f"  {reason}" for reason in report.reasons), sep="\n")

# %% [markdown]
# The matrix shows what one role can see of one kind of information: here, the coordinator.

# %%
for row in audits["none"].matrix:
    other = next(line for line in audits["he+secagg"].matrix if line.what == row.what)
    seen = [next(c.access for c in line.cells if c.role == "coordinator") for line in (row, other)]
    print(f"{row.what:42} unprotected: {seen[0]:12} protected: {seen[1]}")

# %% [markdown]
# Each cell is the result of trials. A trial counts only if the same attack works on the unprotected
# control and finds nothing in the null, where there is nothing to find. Otherwise it is
# *inconclusive*, which is not the same as *holds*.

# %%
for trial in audits["he+secagg"].trials:
    if trial.role == "coordinator" and trial.deployed is not None:
        scores = (trial.control, trial.deployed, trial.null)
        values = " ".join(
            "-" if score is None or score.value is None else f"{score.value:.2f}"
            for score in scores
        )
        print(f"{trial.attack:24} {trial.verdict:13} control, deployed, null: {values}")

# %% [markdown]
# An audit also lists what it did not test. A quick audit skips attacks that take minutes.

# %%
print(*audits["he+secagg"].untested[:5], sep="\n")
