# %% [markdown]
# # A first federation
# Three hospitals with made-up notes learn to find adverse drug events.

# %%
from secure_fl import FedAvg, Federation, Local, ModelSettings, Silo
from secure_fl.corpora import make

notes = make("ade", parties=3, seed=0, size=240)
hospitals = [Silo(f"hospital-{n}", x.train, x.dev, x.test) for n, x in enumerate(notes, 1)]
for silo in hospitals:
    print(silo.name, len(silo.train), "training notes,", len(silo.test), "test notes")
print(hospitals[0].train[0])

# %% [markdown]
# For your own records, use `Silo.from_pandas("north", frame, dev=0.2, test=0.2)`, `from_files` or
# `from_dataset`. The federation protects sums by default. Word embeddings are frozen: trained
# ones would show which words the hospitals use.

# %%
model = ModelSettings(layers=1)
result = Federation(hospitals, FedAvg(epochs=2), model=model).run()
print(result)

# %% [markdown]
# The score on the test notes of all hospitals, with its interval, and the score of hospitals that
# train alone with the same settings.

# %%
low, high = result.intervals("test")["accuracy"]
print(f"together: {result.pooled('test')['accuracy']:.3f}, 95 % interval {low:.3f} to {high:.3f}")
alone = Federation(hospitals, Local(epochs=2), model=model).run()
print(f"alone: {alone.pooled('test')['accuracy']:.3f}")

# %% [markdown]
# The scores of each round as a table. `result.plot()` draws them.

# %%
frame = result.to_frame()
pooled = frame[frame["pooled"]].drop_duplicates(["round", "split"])
print(pooled.pivot(index="round", columns="split", values=["accuracy", "loss"]).round(3))

# %% [markdown]
# Who could see what, and the traffic.

# %%
print(result.document["protection"]["statement"])
for party, traffic in result.document["bytes"].items():
    print(f"{party} sent {traffic['up'] / 1e6:.2f} MB and received {traffic['down'] / 1e6:.2f} MB")

# %% [markdown]
# `result.save("first")` writes the model in the format of `transformers`, and
# `Result.load("first")` reads it. `Federation(..., folder="runs/first")` keeps the complete run
# with its report.

# %%
texts = ["Rash developed after starting the tablets.", "Started on tablets for hypertension."]
for text, answer in zip(texts, result.predict(texts), strict=True):
    print(f"{answer['label']} ({answer['probabilities'][answer['label']]:.2f}): {text}")
