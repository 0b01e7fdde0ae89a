"""An ordinary script for transformers.Trainer at three hospitals: three lines are added."""

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import secure_fl  # added


def main(cohort):
    draw = torch.Generator().manual_seed(cohort.index)
    words = torch.randint(2, 100, (240, 12), generator=draw)  # this hospital's records
    labels = (words < 12).any(1).long()
    records = Dataset.from_dict({"input_ids": words.tolist(), "labels": labels.tolist()})
    torch.manual_seed(0)  # the same first model everywhere
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir="build/trainer",
        num_train_epochs=6,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=records, eval_dataset=records)
    trainer.add_callback(secure_fl.FederatedCallback(cohort, every="epoch"))  # added
    trainer.train()
    return trainer.evaluate()["eval_loss"]


print(secure_fl.simulate(main, sites=3, rounds=6).results)  # added: instead of main()
