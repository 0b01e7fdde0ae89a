"""Models: the same from a seed, cut, exported and loaded again, refused with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from secure_fl import FedAvg
from secure_fl.data.examples import Text
from secure_fl.errors import ModelError
from secure_fl.events import Event, TrainingProgress
from secure_fl.learning import anatomy, builtin, exporting, fetching, models
from secure_fl.learning.fetching import quiet
from secure_fl.learning.tasks import Task, make_task
from secure_fl.learning.tasks.heads import AttentiveClassifier
from secure_fl.settings import Kind, ModelSettings, TaskSettings
from secure_fl.testing.hospitals import small
from tests.support.event_documents import into
from tests.support.raising import raises
from tests.support.saved_models import WORDS, save_family, save_headless

TINY = ModelSettings()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return builtin.tiny_tokenizer(WORDS)


def task_of(kind: Kind) -> Task:
    labelled = kind in ("classification", "ner")
    return make_task(TaskSettings(kind=kind, labels=("yes", "no") if labelled else None))


def alike(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_tokenizer_knows_words_parts_and_pairs(tokenizer: Any) -> None:
    assert tokenizer.tokenize("Patient: follow-up") == ["patient", ":", "follow", "-", "up"]
    assert tokenizer.tokenize("doses") == ["dose", "##s"]
    pair = tokenizer("fever", "cough")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[::2] == ["[CLS]", "[SEP]", "[SEP]"]
    assert tokenizer.pad_token_id == 0 and tokenizer.model_max_length == 128
    again = builtin.tiny_tokenizer(tuple(reversed(WORDS)))
    assert again.get_vocab() == tokenizer.get_vocab()  # the order of the list does not matter


@pytest.mark.parametrize("kind", ["classification", "ner", "regression", "ranking"])
def test_equal_seeds_give_equal_weights_and_leave_the_global_state(
    kind: Kind, tokenizer: Any
) -> None:
    task = task_of(kind)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = models.load_model(TINY, task, tokenizer, 7)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert alike(first, models.load_model(TINY, task, tokenizer, 7))
    assert not alike(first, models.load_model(TINY, task, tokenizer, 8))
    assert not first.training


def test_drawn_values_are_exact_and_bell_shaped() -> None:
    values = builtin.bell(torch.Size((200, 500)), "key", 0.05)
    assert float(values.std()) == pytest.approx(0.05, rel=0.01)
    assert abs(float(values.mean())) < 0.001
    units = values.double() / (2 * 0.05 / 65536)  # integers and a half: no platform's rounding
    assert float((units - units.floor() - 0.5).abs().max()) < 0.01


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_cut_keeps_the_first_layers_of_each_family(
    family: str, tmp_path: Path, tokenizer: Any
) -> None:
    spec = save_headless(tmp_path, family)
    task = task_of("classification")
    model: Any = models.load_model(spec, task, tokenizer, 3)
    assert alike(model, models.load_model(spec, task, tokenizer, 3))  # the fresh head, too
    batch = next(task.encode([Text("0", "fever no")], tokenizer, labelled=False).batches(1))
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    with torch.no_grad():
        states = model.base_model(**inputs, output_hidden_states=True).hidden_states
        cut: nn.Module = anatomy.cut(model, 2)
        shallow = model.base_model(**inputs).last_hidden_state
    assert cut is model and torch.allclose(shallow, states[2], atol=1e-6)
    assert len(anatomy.encoder_layers(model)) == 2
    exporting.export(model, tokenizer, tmp_path / "out", task)
    assert anatomy.depth(exporting.load_exported(tmp_path / "out")[0]) == 2


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "tiny"])
@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize("kind", ["classification", "ner", "ranking"])
def test_layers_that_are_never_made_change_no_weight(
    family: str, pretrained: bool, kind: Kind, tmp_path: Path, tokenizer: Any
) -> None:
    fields = {"pretrained": pretrained, "pooling": None if kind == "ner" else "cls"}
    spec = (TINY if family == "tiny" else save_headless(tmp_path, family)).model_copy(update=fields)
    whole = models.load_model(spec, task_of(kind), tokenizer, 3)
    shallow = spec.model_copy(update={"layers": 2})
    assert alike(anatomy.cut(whole, 2), models.load_model(shallow, task_of(kind), tokenizer, 3))


def test_a_cut_and_a_checkpoint_of_means_are_read_by_all_tokens(
    tmp_path: Path, tokenizer: Any
) -> None:
    """Left open, pooling follows the checkpoint; said, it is what is said."""
    whole = save_headless(tmp_path, "bert")

    def pooled(kind: Kind = "classification", **fields: Any) -> bool:
        spec = whole.model_copy(update=fields)
        return isinstance(models.load_model(spec, task_of(kind), tokenizer, 3), AttentiveClassifier)

    assert not pooled() and pooled(layers=2) and not pooled(layers=2, pooling="cls")
    assert not pooled(layers=2, pretrained=False) and not pooled(name="tiny", layers=2)
    assert not pooled("ner", layers=2)
    (tmp_path / "1_Pooling").mkdir()
    says = tmp_path / "1_Pooling" / "config.json"
    for means in (True, False):
        says.write_text(json.dumps({"pooling_mode_mean_tokens": means}))
        assert pooled() == means
    says.write_text("[]")
    assert not pooled()
    began = time.perf_counter()
    assert not fetching.of_means("nobody/has-this")  # no hub is waited for
    assert time.perf_counter() - began < 1


def test_a_cut_that_is_read_by_its_first_token_is_warned_of(tmp_path: Path) -> None:
    spec = save_family(tmp_path, "bert").model_copy(update={"layers": 1, "pooling": "cls"})
    for model, warned in ((spec, 1), (spec.model_copy(update={"pooling": None}), 0)):
        events: list[Any] = []
        small(FedAvg(rounds=1), model=model, listener=into(events)).run()
        assert len([e for e in events if e.get("code") == "cut read by cls"]) == warned * 3


def test_a_cut_deeper_than_the_model_is_refused(tokenizer: Any) -> None:
    with raises(ModelError, "5", "4", field="model.layers"):
        models.load_backbone(ModelSettings(layers=5), tokenizer, 1)
    model = models.load_backbone(TINY, tokenizer, 1)
    with raises(ModelError, "0", "4", field="model.layers"):
        anatomy.cut(model, 0)


def test_embeddings_freeze_and_trainable_names_what_is_left(tokenizer: Any) -> None:
    task = task_of("classification")
    model: Any = models.load_model(TINY, task, tokenizer, 1)
    names = list(anatomy.trainable(model))
    assert names == [n for n, _ in model.named_parameters() if ".embeddings." not in n]
    assert anatomy.embeddings(model) is model.bert.embeddings
    free = models.load_model(ModelSettings(freeze_embeddings=False), task, tokenizer, 1)
    assert len(anatomy.trainable(free)) == len(list(free.parameters()))


@pytest.mark.parametrize(
    ("kind", "pooling", "auto"),
    [
        ("classification", "cls", transformers.AutoModelForSequenceClassification),
        ("regression", "cls", transformers.AutoModelForSequenceClassification),
        ("ner", "cls", transformers.AutoModelForTokenClassification),
        ("classification", "attentive", transformers.AutoModelForSequenceClassification),
        ("ranking", "cls", None),
    ],
)
def test_an_exported_folder_gives_the_same_model(
    kind: Kind,
    pooling: fetching.Pooling,
    auto: Any,
    tmp_path: Path,
    tokenizer: Any,
    code_cache: Path,
) -> None:
    task = task_of(kind)
    model: Any = models.load_model(TINY, task, tokenizer, 4, pooling=pooling)
    exporting.export(model, tokenizer, tmp_path, task)
    again, words, read = exporting.load_exported(tmp_path)
    assert alike(model, again) and read == task
    assert words("follow-up fever")["input_ids"] == tokenizer("follow-up fever")["input_ids"]
    trust = {"trust_remote_code": True} if pooling == "attentive" else {}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, **trust)
    assert theirs("no dose")["input_ids"] == tokenizer("no dose")["input_ids"]
    whole = model if auto else model.backbone
    loaded = (auto or transformers.AutoModel).from_pretrained(tmp_path, **trust).eval()
    inputs = tokenizer(["fever and cough"], return_tensors="pt")
    with torch.no_grad():
        ours, others = whole(**inputs)[0], loaded(**inputs)[0]
    off = 1e-6 if trust else 0.0  # read into other places in memory, sums may round otherwise
    torch.testing.assert_close(ours, others, rtol=0, atol=off)
    if auto and task.labels:
        assert tuple(loaded.config.id2label.values()) == task.labels
    written = "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert str(tmp_path) not in written  # no path of the hospital travels with the model


def test_a_folder_without_its_head_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    task = task_of("classification")
    exporting.export(models.load_model(TINY, task, tokenizer, 4), tokenizer, tmp_path, task)
    models.load_backbone(TINY, tokenizer, 4).save_pretrained(tmp_path)  # type: ignore[operator]
    with raises(ModelError, parameter="bert.pooler.dense.bias"):
        exporting.load_exported(tmp_path)
    (tmp_path / "secure_fl.json").write_text("{}")
    with pytest.raises(ModelError, match="complete exported model"):
        exporting.load_exported(tmp_path)


def test_other_label_sets_get_a_fresh_head(tmp_path: Path, tokenizer: Any) -> None:
    two = task_of("classification")
    exporting.export(models.load_model(TINY, two, tokenizer, 4), tokenizer, tmp_path, two)
    three = make_task(TaskSettings(labels=("a", "b", "c")))
    model: Any = models.load_model(ModelSettings(name=str(tmp_path)), three, tokenizer, 9)
    assert model.classifier.weight.shape[0] == 3
    assert alike(model, models.load_model(ModelSettings(name=str(tmp_path)), three, tokenizer, 9))


def test_a_checkpoint_with_a_missing_layer_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    spec = save_headless(tmp_path, "bert")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.num_hidden_layers = 5
    config.save_pretrained(tmp_path)
    first = "encoder.layer.3.attention.output.LayerNorm.bias"
    with raises(ModelError, "32", parameter=first):  # two layers of 16 tensors
        models.load_backbone(spec, tokenizer, 1)


def test_what_cannot_be_had_fails_fast_and_says_how(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "hub_answers", lambda: False)
    started = time.monotonic()
    for name in ("no-such/model", "/no/such/folder", str(tmp_path)):
        with raises(ModelError, "folder"):
            models.load_model(ModelSettings(name=name), task_of("ner"), tokenizer, 1)
    assert time.monotonic() - started < 5
    with pytest.raises(ModelError, match="no pooling"):
        models.load_model(TINY, task_of("ner"), tokenizer, 1, pooling="attentive")


def test_the_hub_is_not_asked_in_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "ENDPOINT", "nonsense://")  # would fail, were it used
    assert not fetching.hub_answers()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: closed
    assert not fetching.hub_answers()


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    spec = save_headless(tmp_path, "bert")
    large = builtin.tiny_tokenizer(
        [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(99)]
    )
    with pytest.raises(ModelError, match="tokenizer has"):
        models.load_backbone(spec, large, 1)


def test_attention_is_selectable(tokenizer: Any) -> None:
    task = task_of("classification")
    eager = models.load_model(TINY, task, tokenizer, 1, attn_implementation="eager")
    fused = models.load_model(TINY, task, tokenizer, 1)
    batch = next(task.encode([Text("0", "fever no")], tokenizer, labelled=False).batches(1))
    with torch.no_grad():
        out = task.outputs(eager, batch, output_attentions=True, output_hidden_states=True)
        assert len(out.attentions) == 4 and len(out.hidden_states) == 5
        assert torch.allclose(out.logits, task.forward(fused, batch), atol=1e-5)


def test_layers_of_an_unknown_architecture_are_not_guessed() -> None:
    class Odd(nn.Module):
        config = transformers.BertConfig(num_hidden_layers=3)

    with pytest.raises(ModelError):
        anatomy.encoder_layers(Odd())


def test_the_built_in_model_trains_on_one_thread_and_others_as_the_process_does() -> None:
    """On a busy machine of two cores a round took 25 times as long with two."""
    before, seen = torch.get_num_threads(), set[int]()

    def listen(event: Event) -> None:
        if isinstance(event, TrainingProgress):
            seen.add(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        small(FedAvg(rounds=1), listener=listen).run()
        assert seen == {1} and torch.get_num_threads() == 2
        with builtin.few_threads("a/folder"):
            assert torch.get_num_threads() == 2
        with builtin.few_threads("a/folder", threads=1):
            assert torch.get_num_threads() == 1
        with builtin.few_threads("a/folder", threads=10**6):  # a coordinator's plan can ask for it
            assert torch.get_num_threads() <= max(2, os.cpu_count() or 1)
    finally:
        torch.set_num_threads(before)


# --- a weak hospital never holds the large model: measured in processes of their own ------------


MB = 1 << 20
CHILD = """
import json, re, sys
from secure_fl.learning import models
from secure_fl.settings import ModelSettings, TaskSettings
from secure_fl.learning.tasks import make_task

def highest():  # of this program; getrusage would count the process that started it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))

name, pretrained, layers = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])
task, small = make_task(TaskSettings(labels=("a", "b"))), ModelSettings(layers=1)
tokenizer = models.load_tokenizer(ModelSettings(name=name))
models.load_model(small, task, models.load_tokenizer(small), 0)  # whatever is imported on the way
before = highest()
spec = ModelSettings(name=name, pretrained=pretrained, layers=layers)
model = models.load_model(spec, task, tokenizer, 0)
for parameter in model.parameters():
    parameter.detach().add_(0)  # a mapped file is memory only once it is written to
held = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps({"held": held, "grown": highest() - before}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 12 layers, 12 MB each."""
    folder = tmp_path_factory.mktemp("large")
    tokenizer = builtin.tiny_tokenizer(("fever",))
    config = builtin.tiny_config(len(tokenizer), layers=12)
    config.update({"hidden_size": 512, "intermediate_size": 2048})
    with quiet():
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def measure(folder: Path, pretrained: bool, layers: int) -> dict[str, float]:
    command = [sys.executable, "-c", CHILD, str(folder), str(pretrained), str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("pretrained", [True, False])
def test_loading_two_layers_of_twelve_takes_the_memory_of_two(
    large: Path, pretrained: bool
) -> None:
    weak, strong = measure(large, pretrained, 2), measure(large, pretrained, 12)
    assert 20 * MB < weak["held"] < 32 * MB and strong["held"] > 140 * MB
    assert strong["grown"] > 0.9 * strong["held"]  # what is measured is what is held
    assert weak["grown"] < 2 * weak["held"] + 16 * MB < 0.6 * strong["held"]
