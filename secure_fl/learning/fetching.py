"""Getting transformers from a folder, the local cache or the hub, and fresh ones from a seed."""

from __future__ import annotations

import json
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

POOLING = "1_Pooling/config.json"  # where sentence-transformers say it
Attention: TypeAlias = Literal["sdpa", "eager", "maps", "flash_attention_2"]  # maps: `maps`


def instantiate(
    auto: Any,
    spec: ModelSettings,
    tokenizer: Any,
    seed: int,
    attention: Attention,
    fields: dict[str, Any],
) -> tuple[Any, list[str]]:
    """Return the model, and the names of the parameters that no checkpoint gave it."""
    config = configured(spec, tokenizer, fields)
    if attention == "maps":
        from secure_fl.learning import maps

        maps.register()
    options: dict[str, Any] = {
        "attn_implementation": supported(auto, config, attention),
        "dtype": torch.float32,
    }
    if spec.fresh:
        with seeded(seed):
            model = auto.from_config(config, **options)
        fresh = [name for name, _ in model.named_parameters()]
    elif pooled_folder(spec.name):
        with seeded(seed):
            model = auto.from_config(config, **options)
        state = pooled_weights(spec.name, "backbone.")
        prefix = "" if body_of(model) is model else f"{model.base_model_prefix}."
        inside = {f"{prefix}{name}": weight for name, weight in state.items()}
        fresh = model.load_state_dict(inside, strict=False).missing_keys
        require_body(model, fresh, spec.name)
    else:
        # A head of another size is drawn anew; whatever else does not fit is refused below.
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        with seeded(seed):
            model, info = fetch(auto.from_pretrained, spec.name, config=config, **options)
        fresh = sorted({*info["missing_keys"], *(row[0] for row in info["mismatched_keys"])})
        require_body(model, fresh, spec.name)
    if len(tokenizer) > model.config.vocab_size:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} entries, the model {model.config.vocab_size}",
            model=spec.name,
            fix="use the tokenizer that belongs to the model",
        )
    return model, fresh


def pooling_of(spec: ModelSettings, head: str) -> Literal["cls", "attentive"]:
    """How a text's tokens become its vector, where the settings leave it open.

    The first token stands for a text in a checkpoint's last layer only, and only if the checkpoint
    was trained so: a head on a cut, or on a model of means, reads noise there and learns late.
    """
    if spec.pooling is not None:
        return spec.pooling
    trained = not spec.fresh and spec.adapter is None
    if head != "sequence" or not trained:
        return "cls"
    attentive = spec.layers is not None or of_means(spec.name) or pooled_folder(spec.name)
    return "attentive" if attentive else "cls"


def pooled_folder(name: str) -> bool:
    """Whether this is a folder that a run wrote of a model with attentive pooling."""
    try:
        found = json.loads((Path(name).expanduser() / "config.json").read_text(encoding="utf-8"))
        return bool(found["model_type"] == ATTENTIVE)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def pooled_weights(name: str, part: str) -> dict[str, Tensor]:
    """The weights of a part of such a folder's model, by their names in that part."""
    file = Path(name).expanduser() / "model.safetensors"
    try:
        state = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            "the folder does not hold the weights of its model", model=name, fix="copy it again"
        ) from error
    whole = f"model.{part}"
    return {key[len(whole) :]: value for key, value in state.items() if key.startswith(whole)}


def of_means(name: str) -> bool:
    """Whether a checkpoint says, as sentence-transformers do, that it was trained on means.

    Only a folder or the local cache is asked: the hub would be waited for wherever there is none.
    """
    file = Path(name) / POOLING
    try:
        found = file if file.exists() else cached_file(name, POOLING, local_files_only=True)
        return bool(json.loads(Path(found).read_text())["pooling_mode_mean_tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def configured(spec: ModelSettings, tokenizer: Any, fields: dict[str, Any]) -> Any:
    """The model's configuration, already at its depth: layers that are cut are never in memory."""
    if spec.name == "tiny":
        config: Any = builtin.tiny_config(len(tokenizer))
    else:
        own = pooled_folder(spec.name)  # whose class is ours: nothing in the folder is run
        read = _pooled_config() if own else transformers.AutoConfig
        config = fetch(read.from_pretrained, spec.name, trust_remote_code=False)
        config = config.inside() if own else config
    require_text(config, spec.name)
    config.update(fields)
    if getattr(config, "pad_token_id", None) is None and tokenizer is not None:
        config.pad_token_id = tokenizer.pad_token_id  # decoders read the last token before it
    if spec.layers is not None:
        require_depth(spec.layers, getattr(config, "num_hidden_layers", 0))
        shorten(config, spec.layers)
    return config


def _pooled_config() -> Any:
    """The class of such folders. It loads the modelling code, which most commands never need."""
    from secure_fl.learning.tasks.attentive_pooling import AttentivePoolingConfig

    return AttentivePoolingConfig


def require_text(config: Any, name: str) -> None:
    """Refuse what is neither an encoder nor a decoder of texts."""
    parts = config.get_text_config() is not config
    if parts or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            "this model has images or sounds beside its texts"
            if parts
            else "this model is an encoder and a decoder, and has no one stack of layers to share",
            model=name,
            fix="use an encoder (BERT, ModernBERT, DeBERTa) or a decoder (GPT-2, Llama, Qwen) of "
            "texts: docs/models.md names those that are tested",
        )


def supported(auto: Any, config: Any, attention: Attention) -> Attention:
    """The attention that is wished for, or the plain one of a model that has no other."""
    known = auto._model_mapping.get(type(config), None)
    if known is None and auto is transformers.AutoModelForCausalLM:
        raise no_writer(config.model_type)
    if known is None:
        heads = {"AutoModelForTokenClassification": "tokens", "AutoModel": "anything"}
        raise ModelError(
            f"transformers has no {config.model_type} model that classifies "
            f"{heads.get(auto.__name__, 'texts')}",
            fix="choose another model, or another kind of task: docs/models.md says what each has",
        )
    has = {"sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}
    kinds = known if isinstance(known, tuple) else (known,)
    every = all(getattr(kind, has[attention]) for kind in kinds) if attention in has else True
    return attention if every else "eager"


def no_writer(model: str) -> ModelError:
    """The error of a model that no completion can be had from."""
    return ModelError(
        "this model cannot write: it reads texts from both sides, or has no head for it",
        model=model,
        fix="use a decoder (GPT-2, Llama, Qwen, Gemma), or another kind of task",
        field="task.kind",
    )


def spread(config: Any) -> float:
    """The standard deviation of fresh weights, which not every family calls alike."""
    return float(getattr(config, "initializer_range", getattr(config, "init_std", 0.02)))


def require_body(model: nn.Module, fresh: Iterable[str], name: str) -> None:
    """Refuse a checkpoint without any weight of the body: training would hide it."""
    body = body_of(model)
    pooler = getattr(body, "pooler", None)
    aside = {id(p) for p in pooler.parameters()} if pooler is not None else set()
    needed = {id(p) for p in body.parameters()} - aside
    names = {key for key, p in model.named_parameters() if id(p) in needed}
    lost = names & set(fresh)
    if lost:
        raise ModelError(
            f"the checkpoint lacks {len(lost)} weights of the encoder, or holds other shapes",
            model=name,
            parameter=min(lost),
            fix="give a complete checkpoint, or set pretrained = false",
        )


def fetch(load: Callable[..., Any], name: str, **options: Any) -> Any:
    """Load from a folder or the local cache; only then, and only if it answers, from the hub."""
    folder = Path(name).expanduser()
    known = str(folder) if folder.is_dir() else name
    failures = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)
    try:
        with quiet():
            return load(known, local_files_only=True, **options)
    except failures as error:
        if folder.is_dir():
            raise ModelError(
                "the folder does not hold a usable model of this kind",
                model=name,
                fix="it needs config.json, model.safetensors and tokenizer.json",
            ) from error
    if name.count("/") > 1 or name[:1] in "./~":
        raise ModelError(
            "there is no such folder",
            model=name,
            fix="check model.name: a path counts from where secure-fl is started",
        )
    if not hub_answers():
        raise ModelError(
            "the model is neither a folder nor in the local cache, and the hub cannot be asked",
            model=name,
            fix='set model.name to a folder that holds the model, or to "tiny" (built in)',
        )
    try:
        with quiet():
            return load(name, **options)
    except failures as error:
        raise ModelError(
            "the hub does not give this model",
            model=name,
            fix='check the name, or set model.name to a folder or to "tiny" (built in)',
        ) from error


def hub_answers(timeout: float = 3.0) -> bool:
    """Whether one request reaches the hub; transformers' own retries would take a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 - the hub's own
    try:
        with urllib.request.urlopen(request, timeout=timeout):  # noqa: S310
            return True
    except urllib.error.HTTPError:
        return True  # it answered, if only to refuse
    except (OSError, ValueError):
        return False


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers inside."""
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
    """Set torch's CPU random state to `seed` inside; it is as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch the GPUs' too
        yield
