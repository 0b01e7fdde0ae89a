"""A weak hospital never holds the large model: measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from secure_fl.learning import builtin
from secure_fl.learning.fetching import quiet

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
