# Train on your own records, from a CSV file with the columns hospital, patient, text and label:
#     python examples/own_data.py notes.csv
# Without a file, the made-up notes next to this program are used. Needs the extra `adapters`.
import sys
from pathlib import Path

import pandas

from secure_fl import AdapterSettings, Columns, FedAvg, Federation, ModelSettings, Silo

file = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "notes.csv"
columns = Columns(patient="patient", text="text", label="label")  # the names of your columns
hospitals = [  # a patient's notes are never divided between training, dev and test records
    Silo.from_pandas(str(name), rows, dev=0.1, test=0.2, columns=columns)
    for name, rows in pandas.read_csv(file).groupby("hospital")
]
model = ModelSettings(
    name="tiny",  # or a hub name or folder, such as "emilyalsentzer/Bio_ClinicalBERT"
    adapter=AdapterSettings(kind="exact"),  # only adapters are trained and sent
)
result = Federation(hospitals, FedAvg(rounds=6, epochs=2), model=model).run()
low, high = result.intervals("test")["accuracy"]
print(f"accuracy {result.pooled('test')['accuracy']:.3f}, 95 % interval {low:.3f} to {high:.3f}")
print(result.predict(["Rash developed after starting the tablets."])[0]["label"])
