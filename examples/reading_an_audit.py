# %% [markdown]
# # Reading an audit
# The same small federation twice, in the clear and sealed, recorded and attacked. What does an
# audit say, what does it not say, and where does it stand?

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
place = Path(tempfile.mkdtemp())
audits = {}
for mode in ("none", "he+secagg"):
    Federation.of(loads(STUDY.format(mode=mode)), place / mode).run()
    audits[mode] = audit(place / mode, quick=True, code=False)

# %% [markdown]
# The verdict first, and why. *Within policy* means that no limit of `[policy]` is broken, not that
# nothing leaks: what a policy does not limit is listed and not judged.

# %%
for mode, found in audits.items():
    print(f"{mode}: {found.status}", *(f"  {reason}" for reason in found.reasons), sep="\n")

# %% [markdown]
# The matrix: what one role can see of one kind of information. Here, the coordinator's column.

# %%
for row in audits["none"].matrix:
    other = next(line for line in audits["he+secagg"].matrix if line.what == row.what)
    seen = [next(c.access for c in line.cells if c.role == "coordinator") for line in (row, other)]
    print(f"{row.what:42} in the clear: {seen[0]:12} sealed: {seen[1]}")

# %% [markdown]
# Each cell rests on trials. One counts only if the same attack works on the unprotected control and
# finds nothing where there is nothing (the null); else it is *inconclusive*, which is not *holds*.

# %%
for trial in audits["he+secagg"].trials:
    if trial.role == "coordinator" and trial.deployed is not None:
        tried = (trial.control, trial.deployed, trial.null)
        figures = " ".join(
            "-" if one is None or one.value is None else f"{one.value:.2f}" for one in tried
        )
        print(f"{trial.attack:24} {trial.verdict:13} control, deployed, null: {figures}")

# %% [markdown]
# What was not tested stands there as well; a quick audit leaves out what takes minutes.

# %%
print(*audits["he+secagg"].untested[:5], sep="\n")
