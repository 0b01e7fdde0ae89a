"""A client, as in Flower's NumPy quickstart; the import of ClientApp is its only change."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from sealed_app.task import load_records, train_model
from secure_fl.integrations.flower import SealedClientApp as ClientApp  # changed

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train on this site's records."""
    model = [array.copy() for array in msg.content["arrays"].to_numpy_ndarrays()]
    x, y = load_records(int(context.node_config["partition-id"]))
    loss = train_model(model, x, y)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model),
            "metrics": MetricRecord({"num-examples": len(y), "train_loss": loss}),
        }
    )
    return Message(content=content, reply_to=msg)
