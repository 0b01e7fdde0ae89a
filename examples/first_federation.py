# %% [markdown]
# # A first federation
# Three hospitals with made-up notes learn to find adverse drug events: README's ten lines, one
# after the other, and what one does with their result.

# %%
from secure_fl import FedAvg, Federation, Local, ModelSettings, Silo
from secure_fl.corpora import make

notes = make("ade", parties=3, seed=0, size=240)
hospitals = [Silo(f"hospital-{n}", x.train, x.dev, x.test) for n, x in enumerate(notes, 1)]
for silo in hospitals:
    print(silo.name, len(silo.train), "to learn from,", len(silo.test), "to be tested on")
print(hospitals[0].train[0])

# %% [markdown]
# With records of your own, `Silo.from_pandas("north", frame, dev=0.2, test=0.2)`, `from_files` and
# `from_dataset` take their place. Then the federation, with sealed sums unless told otherwise. The
# built-in model starts from nothing, so its word embeddings learn, too; those of a pretrained one
# are frozen unless one asks, for they are most of its bytes.

# %%
model = ModelSettings(layers=1, freeze_embeddings=False)
result = Federation(hospitals, FedAvg(), model=model).run()
print(result)

# %% [markdown]
# What it is worth: over all hospitals' test notes, with the interval that so few of them allow; and
# what each hospital reaches by itself, with the same settings.

# %%
low, high = result.intervals("test")["accuracy"]
print(f"together: {result.pooled('test')['accuracy']:.3f}, 95 % interval {low:.3f} to {high:.3f}")
alone = Federation(hospitals, Local(), model=model).run()
print(f"alone: {alone.pooled('test')['accuracy']:.3f}")

# %% [markdown]
# Round by round, as a table (`result.plot()` draws it; in a notebook it is shown).

# %%
frame = result.to_frame()
of_all = frame[frame["pooled"]].drop_duplicates(["round", "split"])
print(of_all.pivot(index="round", columns="split", values=["accuracy", "loss"]).round(3))

# %% [markdown]
# Who could see what, and what it cost to hide it.

# %%
print(result.document["protection"]["statement"])
for party, crossed in result.document["bytes"].items():
    print(f"{party} sent {crossed['up'] / 1e6:.2f} MB and received {crossed['down'] / 1e6:.2f} MB")

# %% [markdown]
# The model is one of `transformers`; `result.save("first")` keeps it, and `Result.load("first")`
# reads it again. `Federation(..., folder="runs/first")` keeps the whole run, with a page of
# pictures.

# %%
texts = ["Rash developed after starting the tablets.", "Started on tablets for hypertension."]
for text, told in zip(texts, result.predict(texts), strict=True):
    print(f"{told['label']} ({told['probabilities'][told['label']]:.2f}): {text}")
