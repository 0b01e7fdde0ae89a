"""Arguments of `Federation` in the forms that programs have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import finalize

from secure_fl.errors import ModelError, SettingsError
from secure_fl.settings import ModelSettings, Section

if TYPE_CHECKING:
    from transformers import PreTrainedModel

S = TypeVar("S", bound=Section)
Model: TypeAlias = "ModelSettings | Mapping[str, Any] | str | Path | PreTrainedModel"


def section_of(cls: type[S], given: object, name: str) -> S:
    """Return the settings of an argument, which may be a dictionary; None: the defaults."""
    if isinstance(given, cls):
        return given
    if given is None or isinstance(given, Mapping):
        return cls(**(given or {}))
    raise SettingsError(
        f"found {type(given).__name__}",
        fix=f"give {cls.__name__}(...), or a dictionary of its fields",
        field=name,
    )


def model_of(given: object, owner: object) -> ModelSettings:
    """Return the settings of a model.

    A model in memory is saved into a temporary folder, which is removed with its `owner`.
    """
    if isinstance(given, str | Path):
        return ModelSettings(name=str(given))
    if hasattr(given, "save_pretrained") and hasattr(given, "config"):
        folder = mkdtemp(prefix="secure-fl-model-")
        finalize(owner, rmtree, folder, ignore_errors=True)
        return ModelSettings(name=_saved(given, Path(folder)))
    if given is None or isinstance(given, ModelSettings | Mapping):
        return section_of(ModelSettings, given, "model")
    raise SettingsError(
        f"found {type(given).__name__}",
        fix="give a name or folder, a transformers model, or ModelSettings(name=..., layers=...)",
        field="model",
    )


def _saved(model: Any, folder: Path) -> str:
    """Save a model with the tokenizer of the checkpoint that it was loaded from."""
    from transformers import AutoTokenizer

    from secure_fl.learning.fetching import quiet

    source = str(getattr(model, "name_or_path", ""))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(
            "the tokenizer of this model was not found",
            model=source or type(model).__name__,
            fix="save model and tokenizer into one folder by save_pretrained, and give the folder",
        ) from error
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
