"""Transformers from a folder, the local cache or the hub, and fresh ones from a seed."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import cached_file

from secure_fl.errors import ModelError
from secure_fl.learning import builtin
from secure_fl.learning.anatomy import body_of, require_depth, shorten
from secure_fl.learning.tasks.heads import ATTENTIVE
from secure_fl.settings import ModelSettings

POOLING = "1_Pooling/config.json"  # of sentence-transformers
MAPS = "maps"  # eager attention that returns its maps before dropout
Pooling: TypeAlias = Literal["cls", "attentive", "mean"]
Attention: TypeAlias = Literal["sdpa", "eager", "maps", "flash_attention_2"]


def instantiate(
    auto: Any,
    spec: ModelSettings,
    tokenizer: Any,
    seed: int,
    attention: Attention,
    fields: dict[str, Any],
) -> tuple[Any, list[str]]:
    """The model, and the names of the parameters that no checkpoint gave it."""
    config = configured(spec, tokenizer, fields)
    if attention == MAPS:
        register_maps()
    options: dict[str, Any] = {
        "attn_implementation": supported(auto, config, attention),
        "dtype": torch.float32,
    }
    with seeded(seed):
        if spec.fresh:
            model = auto.from_config(config, **options)
            fresh = [name for name, _ in model.named_parameters()]
        elif pooled_folder(spec.name):
            model = auto.from_config(config, **options)
            fresh = _load_pooled(model, spec.name)
        else:
            # A head of another size is drawn; other differences are refused below.
            # Nothing is unpickled: without the last option a folder's .bin file would be.
            options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
            options["use_safetensors"] = True
            model, info = fetch(auto.from_pretrained, spec.name, config=config, **options)
            fresh = sorted({*info["missing_keys"], *(row[0] for row in info["mismatched_keys"])})
    if not spec.fresh:
        require_body(model, fresh, spec.name)
    if len(tokenizer) > model.config.vocab_size:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} entries, the model {model.config.vocab_size}",
            model=spec.name,
            fix="use the tokenizer that belongs to the model",
        )
    return model, fresh


def _load_pooled(model: Any, name: str) -> list[str]:
    """Load the backbone of a folder with attentive pooling; return the missing parameters."""
    prefix = "" if body_of(model) is model else f"{model.base_model_prefix}."
    state = {f"{prefix}{key}": w for key, w in pooled_weights(name, "backbone.").items()}
    missing: list[str] = model.load_state_dict(state, strict=False).missing_keys
    return missing


def pooling_of(spec: ModelSettings, head: str) -> Pooling:
    """The pooling of a text's tokens by the settings, or the default for this model.

    The first token represents a text only in a checkpoint's last layer, and only if the checkpoint
    was trained that way. After a cut, and in a model trained on means, it carries little
    information, and a head on it learns slowly.
    """
    if spec.pooling is not None:
        return spec.pooling
    trained = not spec.fresh and spec.adapter is None
    if head != "sequence" or not trained:
        return "cls"
    attentive = spec.layers is not None or of_means(spec.name) or pooled_folder(spec.name)
    return "attentive" if attentive else "cls"


def pooled_folder(name: str) -> bool:
    """True for an exported folder of a model with attentive pooling."""
    try:
        config = json.loads((Path(name).expanduser() / "config.json").read_text(encoding="utf-8"))
        return bool(config["model_type"] == ATTENTIVE)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def pooled_weights(name: str, part: str) -> dict[str, Tensor]:
    """The weights of one part of a pooled folder's model, by their names in that part."""
    file = Path(name).expanduser() / "model.safetensors"
    try:
        state = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            "the folder does not hold the weights of its model", model=name, fix="copy it again"
        ) from error
    prefix = f"model.{part}"
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def of_means(name: str) -> bool:
    """True for a checkpoint of sentence-transformers that was trained on means of tokens.

    It looks in a folder or the local cache only; without a network the hub would cause a timeout.
    """
    file = Path(name) / POOLING
    try:
        path = file if file.exists() else cached_file(name, POOLING, local_files_only=True)
        return bool(json.loads(Path(path).read_text())["pooling_mode_mean_tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def configured(spec: ModelSettings, tokenizer: Any, fields: dict[str, Any]) -> Any:
    """The model's configuration at its final depth, so that cut layers are never in memory."""
    if spec.name == "tiny":
        config: Any = builtin.tiny_config(len(tokenizer))
    else:
        pooled = pooled_folder(spec.name)  # read by our class, without its code
        read = _pooled_config() if pooled else transformers.AutoConfig
        config = fetch(read.from_pretrained, spec.name, trust_remote_code=False)
        config = config.inside() if pooled else config
    require_text(config, spec.name)
    config.update(fields)
    if getattr(config, "pad_token_id", None) is None and tokenizer is not None:
        config.pad_token_id = tokenizer.pad_token_id  # decoders read the last token before it
    if spec.layers is not None:
        require_depth(spec.layers, getattr(config, "num_hidden_layers", 0))
        shorten(config, spec.layers)
    return config


def _pooled_config() -> Any:
    """Import the class of pooled folders; it loads modelling code that few commands need."""
    from secure_fl.learning.tasks.attentive_pooling import AttentivePoolingConfig

    return AttentivePoolingConfig


def require_text(config: Any, name: str) -> None:
    """Refuse models that are neither an encoder nor a decoder of texts."""
    parts = config.get_text_config() is not config
    if parts or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            "this model reads images or sounds besides texts"
            if parts
            else "this model has an encoder and a decoder, and no single stack of layers",
            model=name,
            fix="use an encoder (BERT, ModernBERT, DeBERTa) or a decoder (GPT-2, Llama, Qwen) of "
            "texts: docs/models.md names those that are tested",
        )


def supported(auto: Any, config: Any, attention: Attention) -> Attention:
    """The wanted attention, or "eager" for a model without it."""
    known = auto._model_mapping.get(type(config), None)
    if known is None and auto is transformers.AutoModelForCausalLM:
        raise no_writer(config.model_type)
    if known is None:
        does = {
            "AutoModelForTokenClassification": "classifies tokens",
            "AutoModelForMaskedLM": "fills masks",
            "AutoModel": "classifies anything",
        }.get(auto.__name__, "classifies texts")
        raise ModelError(
            f"transformers has no {config.model_type} model that {does}",
            fix="choose another model, or another kind of task: docs/models.md lists what each has",
        )
    has = {"sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}
    kinds = known if isinstance(known, tuple) else (known,)
    every = all(getattr(kind, has[attention]) for kind in kinds) if attention in has else True
    return attention if every else "eager"


def no_writer(model: str) -> ModelError:
    """The error of a model that cannot generate completions."""
    return ModelError(
        "this model cannot write: it reads texts from both sides, or has no head for it",
        model=model,
        fix="use a decoder (GPT-2, Llama, Qwen, Gemma), or another kind of task",
        field="task.kind",
    )


def spread(config: Any) -> float:
    """The standard deviation of fresh weights; families have two names for it."""
    return float(getattr(config, "initializer_range", getattr(config, "init_std", 0.02)))


def require_body(model: nn.Module, fresh: Iterable[str], name: str) -> None:
    """Refuse a checkpoint that lacks weights of the body: training would hide it."""
    body = body_of(model)
    pooler = getattr(body, "pooler", None)
    optional = {id(p) for p in pooler.parameters()} if pooler is not None else set()
    needed = {id(p) for p in body.parameters()} - optional
    names = {key for key, p in model.named_parameters() if id(p) in needed}
    missing = names & set(fresh)
    if missing:
        raise ModelError(
            f"the checkpoint lacks {len(missing)} weights of the encoder, or holds other shapes",
            model=name,
            parameter=min(missing),
            fix="give a complete checkpoint, or set pretrained = false",
        )


def fetch(load: Callable[..., Any], name: str, **options: Any) -> Any:
    """Load from a folder or the local cache, else from the hub if it answers."""
    folder = Path(name).expanduser()
    source = str(folder) if folder.is_dir() else name
    try:
        with quiet():
            return load(source, local_files_only=True, **options)
    except Exception as error:  # each family checks its configuration with errors of its own
        if folder.is_dir():
            raise unusable_folder(folder, name) from error
    if name.count("/") > 1 or name[:1] in "./~":
        raise ModelError(
            "there is no such folder",
            model=name,
            fix="check model.name: a path is relative to the directory where secure-fl is started",
        )
    if not hub_answers():
        raise ModelError(
            "the model is neither a folder nor in the local cache, and the hub does not answer",
            model=name,
            fix='set model.name to a folder that holds the model, or to "tiny" (built in)',
        )
    try:
        with quiet():
            return load(name, **options)
    except Exception as error:
        raise ModelError(
            "the hub does not provide this model",
            model=name,
            fix='check the name, or set model.name to a folder or to "tiny" (built in)',
        ) from error


def unusable_folder(folder: Path, name: str) -> ModelError:
    """The error of a folder without a usable model; weights as a pickle have their own fix."""
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    if pickles and not any(folder.glob("*.safetensors")):
        return ModelError(
            f"the weights are in {pickles[0]}, a pickle, which could run code when it is loaded",
            model=name,
            fix="on a machine without records, load it with transformers and save it again with "
            "save_pretrained: that writes model.safetensors",
        )
    return ModelError(
        "the folder does not hold a usable model of this kind",
        model=name,
        fix="it needs config.json, model.safetensors and tokenizer.json",
    )


def hub_answers(timeout: float = 3.0) -> bool:
    """Check by one request that the hub answers; transformers' own retries would take a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 - the hub's own
    try:
        with urllib.request.urlopen(request, timeout=timeout):  # noqa: S310
            return True
    except urllib.error.HTTPError:
        return True  # a refusal is an answer
    except (OSError, ValueError):
        return False


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and load reports of transformers inside."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU random state inside; restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch the GPUs' too
        yield


def attention_with_maps(
    module: nn.Module, *inputs: Any, dropout: float = 0.0, **options: Any
) -> tuple[Tensor, Tensor]:
    """Compute the family's eager attention; return its maps before dropout.

    `transformers` returns maps after dropout, which in training adds noise to their distances.
    """
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, maps = eager(module, *inputs, dropout=0.0, **options)
    if module.training and dropout:
        output, _ = eager(module, *inputs, dropout=dropout, **options)
    return output, maps


def register_maps() -> None:
    """Register `attention_with_maps` with transformers, whose families look attention up by name.

    Families that do not look it up (DeBERTa, MPNet) return their maps after dropout.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(MAPS, attention_with_maps)
    AttentionMaskInterface.register(MAPS, eager_mask)
