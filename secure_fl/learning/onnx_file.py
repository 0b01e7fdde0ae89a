"""A model as one ONNX file, for runtimes without PyTorch: token ids in, logits out.

The file is kept only if a runtime answers as the model does, for numbers and lengths of texts that
it was not traced with.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secure_fl.errors import ModelError
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.fetching import quiet
from secure_fl.learning.tasks import Task
from secure_fl.learning.tasks.base import MODEL_INPUTS

FILE = "model.onnx"
HEADS = ("sequence", "token")
CLOSE = 1e-3  # between the two's logits
TRACED, OTHER = (2, 7), (3, 19)  # texts, tokens


class Logits(nn.Module):
    """A model that takes tensors in the order of their names, and gives logits alone."""

    def __init__(self, model: nn.Module, task: Task, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self._task, self._names = model, task, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits of texts, or of each token."""
        return self._task.forward(self.model, dict(zip(self._names, inputs, strict=True)))


def write(folder: Path) -> Path:
    """Write the model of a folder that `export` wrote into that folder, as ONNX."""
    runtime, file = _runtime(), folder / FILE
    model, tokenizer, task = load_exported(folder)
    if task.head not in HEADS:
        raise ModelError(
            f"a model of the kind {task.kind!r} gives more than logits of texts or tokens, which "
            "is all that an ONNX file of ours answers",
            folder=folder,
            fix="hand it on as it is",
        )
    takes = inspect.signature(getattr(model, "backbone", model).forward).parameters
    names = tuple(n for n in MODEL_INPUTS if n in tokenizer.model_input_names and n in takes)
    logits, words = Logits(model.eval(), task, names), len(tokenizer)
    try:
        _trace(logits, names, words, file)
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        apart = max(_apart(session, logits, names, words, shape) for shape in (TRACED, OTHER))
    except Exception as error:  # the exporter and the runtime have no common class of errors
        raise _refused(folder, f"{type(error).__name__} from the exporter") from error
    if not apart < CLOSE:
        raise _refused(folder, f"its logits would be off by {apart:.1g}")
    return file


def _trace(logits: Logits, names: tuple[str, ...], words: int, file: Path) -> None:
    size = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    with _silent(), torch.no_grad():
        program = torch.onnx.export(
            logits,
            _batch(names, words, TRACED),
            dynamo=True,
            input_names=list(names),
            output_names=["logits"],
            dynamic_shapes=(tuple(size for _ in names),),  # of the only parameter, *inputs
        )
    assert program is not None  # noqa: S101 - with dynamo there is one
    program.save(str(file))


def _batch(names: tuple[str, ...], words: int, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """Some tokens, the last text padded."""
    ids = torch.randint(0, words, shape, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(shape, dtype=torch.int64)
    mask[-1, shape[1] // 2 :] = 0
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return tuple(made[name] for name in names)


def _apart(
    session: Any, logits: Logits, names: tuple[str, ...], words: int, shape: tuple[int, int]
) -> float:
    """The largest difference of the runtime's logits and the model's; padding does not count."""
    batch = _batch(names, words, shape)
    with torch.no_grad():
        ours = logits(*batch)
    given = {name: column.numpy() for name, column in zip(names, batch, strict=True)}
    theirs = torch.from_numpy(session.run(None, given)[0])
    off = (ours - theirs).abs()
    if off.ndim > len(shape):
        off = off[batch[names.index("attention_mask")].bool()]
    return float(off.max())


def _refused(folder: Path, why: str) -> ModelError:
    for file in folder.glob(f"{FILE}*"):
        file.unlink()
    return ModelError(
        f"this model cannot be written as ONNX ({why})",
        folder=folder,
        fix="hand it on without; the folder is whole as it is",
    )


def _runtime() -> Any:
    """The library that checks, with those that the exporter needs: an extra."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModelError(
            "ONNX files need the libraries onnx, onnxscript and onnxruntime",
            fix="from a checkout: pip install --constraint constraints.txt '.[onnx]'",
        ) from error
    return onnxruntime


@contextmanager
def _silent() -> Iterator[None]:
    """The exporter tells of each of its steps, and of libraries that it could use."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), quiet():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
