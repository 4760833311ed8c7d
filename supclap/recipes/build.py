"""The parts that a recipe describes: processor, model, training data, batches; `supclap.training.run` puts them together."""

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.integrations import get_available_reporting_integrations

from modeling_supclap import CedConfig, SupClapModel
from processing_supclap import SupClapFeatureExtractor, SupClapProcessor
from supclap.data.arguments import DataArguments
from supclap.data.augment import SpectrogramAugment, WaveformAugment
from supclap.data.collator import ContrastiveCollator
from supclap.data.dataset import CaptionedClips
from supclap.data.scenes import SceneMixer
from supclap.data.streaming import RowStream, StreamedClips
from supclap.errors import RecipeError, did_you_mean
from supclap.recipes.arguments import RANDOM, ModelArguments
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.towers import layer_of_parameters


T = TypeVar("T")
TRACKERS = ("tensorboard", "trackio", "wandb")  # of the extra "tracking"


def resolve_model_path(name: str) -> str:
    """The folder that `package:folder` means, where an installed Python package carries weights; other names as they are.

    Raises:
        RecipeError: The package is not installed, or the path leads out of it.
    """
    if not name.startswith("package:"):
        return name
    package, _, folder = name.removeprefix("package:").partition("/")
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # the package around a nested one is missing, or there is no name at all
        spec = None
    if spec is None or spec.origin is None:
        raise RecipeError(
            f"text_model {name!r}: the package {package!r} is not installed. The quickstart needs "
            "`pip install 'supclap[quickstart]'`; any Hub id or folder works in its place."
        )
    root = Path(spec.origin).parent.resolve()
    path = (root / folder).resolve()
    if not path.is_relative_to(root):
        raise RecipeError(f"text_model {name!r} leads out of the package {package!r}; name a folder inside it.")
    return str(path)


def _make(key: str, kind: Callable[..., T], fields: dict[str, Any]) -> T:
    """An object from the fields that a recipe gives under a key, each of which is allowed by itself."""
    try:
        return kind(**fields)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise RecipeError(f"{key} {fields!r}: {_shortened(error)}") from error


def _shortened(error: Exception) -> str:
    return textwrap.shorten(str(error), 300)


@contextmanager
def _loading(key: str, name: str) -> Iterator[None]:
    """Raises a [`RecipeError`] when the folder or Hub id that a key names holds no model."""
    rest = {
        "checkpoint": "processor_config.json and the files of the tokenizer",
        "text_model": "the files of its tokenizer",
        "audio_model": "preprocessor_config.json",
    }
    holds = f"config.json, model.safetensors and {rest[key]}"
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        inside = sorted(str(file.parent) for file in folder.glob("*/config.json"))
        hint = f" There is one in {inside[0]!r}." if inside else ""
        raise RecipeError(
            f"{key} {name!r} is a folder without config.json. A model's folder, as the end of a training run or "
            f"save_pretrained writes it, holds {holds}.{hint}"
        )
    try:
        yield
    except (OSError, ValueError) as error:
        told = str(error).splitlines()[0]
        told = "" if told.startswith("Can't load") else f" ({told})"  # it names a file that we do not write
        where = (
            "is a folder that does not load" if folder.is_dir() else "is no folder, and as a Hub id it does not load"
        )
        raise RecipeError(f"{key} {name!r} {where}{told}. A model's folder holds {holds}.") from error


def _text_fields(text_model: str, names: Iterable[str]) -> dict[str, Any]:
    """Fields of the configuration of a text encoder; one that it lacks raises a [`RecipeError`]."""
    known = AutoConfig.from_pretrained(text_model).to_dict()
    for name in names:
        if name not in known:
            raise RecipeError(f"text_config: unknown key {name!r}; {did_you_mean(name, list(known))}")
    return {name: known[name] for name in names}


def build_processor(args: ModelArguments) -> SupClapProcessor:
    """The tokenizer and the feature extractor of the model to train."""
    from transformers import AutoTokenizer

    check_start(args)
    if args.checkpoint is not None:
        with _loading("checkpoint", args.checkpoint):
            return SupClapProcessor.from_pretrained(args.checkpoint)
    text_model = resolve_model_path(args.text_model)
    with _loading("text_model", text_model):
        tokenizer = AutoTokenizer.from_pretrained(text_model)
    if has_random_audio_encoder(args):
        feature_extractor = _make("feature_extractor", SupClapFeatureExtractor, args.feature_extractor or {})
        return SupClapProcessor(feature_extractor=feature_extractor, tokenizer=tokenizer)
    with _loading("audio_model", args.audio_model):
        return SupClapProcessor.from_text_audio_pretrained(text_model, args.audio_model)


def _join_encoders(args: ModelArguments) -> SupClapModel:
    """A new model of two encoders; fields of the recipe that do not fit them raise a [`RecipeError`]."""
    text_model = resolve_model_path(args.text_model)
    audio: str | CedConfig = args.audio_model
    there = _text_fields(text_model, args.text_config) if args.text_config else {}
    try:
        if has_random_audio_encoder(args):
            size = args.audio_model.removeprefix(RANDOM)
            print(f"audio encoder: random weights, {size}")
            audio = CedConfig.from_size(size, **args.audio_config or {})
        return SupClapModel.from_text_audio_pretrained(
            text_model,
            audio,
            text_config=args.text_config,
            projection_dim=args.projection_dim,
            logit_scale_init_value=args.logit_scale_init_value,
            logit_bias_init_value=args.logit_bias_init_value,
        )
    except (TypeError, ValueError, KeyError, RuntimeError, ArithmeticError, StrictDataclassError) as error:
        fields = {"text_config": args.text_config, "audio_config": args.audio_config}
        given = ", ".join(f"{key} {value!r}" for key, value in fields.items() if value)
        if not given:
            raise
        has = f", which has {there!r}" if there else ""
        reason = f"it knows no {error}" if isinstance(error, KeyError) else _shortened(error)
        raise RecipeError(f"{given} does not fit the encoder{has}: {reason}") from error


def build_model(args: ModelArguments) -> SupClapModel:
    """The model to train, in fp32 whatever type it was saved in."""
    check_start(args)
    if args.checkpoint is not None:
        model = SupClapModel.from_pretrained(args.checkpoint, dtype=torch.float32)
        if args.logit_bias_init_value is not None and model.logit_bias is None:  # to go on with SigLIP
            model.config.logit_bias_init_value = args.logit_bias_init_value
            model.logit_bias = torch.nn.Parameter(torch.full((1,), float(args.logit_bias_init_value)))
    else:
        model = _join_encoders(args)
    if args.attn_implementation is not None:
        for tower in (getattr(model.audio_model, "encoder", model.audio_model), model.text_model):
            try:
                tower.set_attn_implementation(args.attn_implementation)
            except (ValueError, ImportError) as error:
                raise RecipeError(f"attn_implementation {args.attn_implementation!r}: {_shortened(error)}") from error
            if tower.config._attn_implementation != args.attn_implementation:
                raise RecipeError(
                    f"attn_implementation {args.attn_implementation!r}: {type(tower).__name__} has attention of its own "
                    "and takes no other; leave the key out."
                )
    # never set to True: Whisper's positions are fixed
    if args.freeze_text:
        model.text_model.requires_grad_(False)
    if args.freeze_audio:
        model.audio_model.requires_grad_(False)
    if args.frozen_text_layers is not None:
        freeze_first_layers(model.text_model, args.frozen_text_layers)
    return model


def check_start(args: ModelArguments) -> None:
    """Raises a [`RecipeError`] when the model section does not say what training starts from, or says it twice."""
    if args.checkpoint is not None:
        defaults = ModelArguments()
        new = ("text_model", "text_config", "audio_model", "audio_config", "feature_extractor", "projection_dim")
        ignored = [name for name in (*new, "logit_scale_init_value") if getattr(args, name) != getattr(defaults, name)]
        if ignored:
            raise RecipeError(
                f"model section: {', '.join(ignored)} would be ignored, as checkpoint: {args.checkpoint} brings its own; "
                "leave out one or the other."
            )
        return
    for key, example in (
        ("text_model", "a folder or Hub id"),
        ("audio_model", f"{RANDOM}ced-base, a folder or Hub id"),
    ):
        if getattr(args, key) is None:
            raise RecipeError(f"model section: set {key} ({example}), or checkpoint (a SupCLAP model to go on from).")
    for key in ("audio_config", "feature_extractor"):
        if getattr(args, key) and not has_random_audio_encoder(args):
            raise RecipeError(
                f"model section: {key} is for random weights ({RANDOM}ced-base), but audio_model is {args.audio_model!r}, "
                "which brings its own."
            )


def freeze_first_layers(encoder: torch.nn.Module, count: int) -> None:
    """Freezes an encoder but for the layers behind its first `count` ones, and what comes after them.

    Raises:
        RecipeError: The encoder has no list of layers, or fewer than `count`.
    """
    layers = layer_of_parameters(encoder)
    total = encoder.config.num_hidden_layers
    if layers is None or not 0 <= count <= total:
        raise RecipeError(f"frozen_text_layers must lie in 0 … {total}, the layers of the encoder; got {count}.")
    for parameter, layer in layers.items():
        parameter.requires_grad_(layer >= count)


def has_random_audio_encoder(args: ModelArguments) -> bool:
    """Whether the audio encoder starts from random weights."""
    return args.checkpoint is None and args.audio_model.startswith(RANDOM)


def build_training_data(
    rows: Sequence[dict] | RowStream,
    args: DataArguments,
    seed: int,
    sampling_rate: int,
    rank: int = 0,
    world_size: int = 1,
) -> CaptionedClips | StreamedClips:
    """Samples of the rows; of a stream those of one rank."""
    augment = _make("waveform_augment", WaveformAugment, args.waveform_augment) if args.waveform_augment else None
    if isinstance(rows, RowStream):
        return StreamedClips(
            rows.rows,
            rank,
            world_size,
            args.shuffle_buffer,
            args.skip_bad,
            sampling_rate=sampling_rate,
            max_duration=args.max_duration,
            augment=augment,
            seed=seed,
            language_weights=args.language_weights,
        )
    if args.scenes is not None:
        # recordings are augmented one by one, before they are mixed
        mixer = partial(SceneMixer, rows, augment=augment, seed=seed, sampling_rate=sampling_rate)
        rows = _make("scenes", mixer, args.scenes)
        augment = None
    return CaptionedClips(rows, sampling_rate, args.max_duration, augment, seed, args.language_weights)


def build_evaluation_data(rows: list[dict], scenes: dict | None, sampling_rate: int, key: str) -> Sequence[dict]:
    """Rows with all their captions: scenes of them, the same for every training seed, or the clips themselves."""
    if scenes is None:
        return rows
    return _make(key, partial(SceneMixer, rows, sampling_rate=sampling_rate, distinct=True), scenes)


def build_collator(
    processor: SupClapProcessor, args: DataArguments, seed: int, positives: str = "clip"
) -> ContrastiveCollator:
    augment = None
    if args.spectrogram_augment:
        augment = _make("spectrogram_augment", SpectrogramAugment, args.spectrogram_augment)
    return ContrastiveCollator(processor, augment, seed, positives)


def fit_input_statistics(
    model: SupClapModel,
    data: CaptionedClips | StreamedClips,
    collator: ContrastiveCollator,
    batches: int,
    batch_size: int,
) -> None:
    """Sets the input normalization of a random audio encoder to the statistics of training batches."""
    total = square = 0.0
    count = 0
    samples = (
        iter(data) if isinstance(data, StreamedClips) else (data[index % len(data)] for index in itertools.count())
    )
    for _ in range(batches):
        inputs = collator(list(itertools.islice(samples, batch_size)))
        frames = inputs["input_features"][inputs["input_features_mask"].bool()].double()
        total, square, count = total + frames.sum(0), square + frames.square().sum(0), count + len(frames)
    mean = total / count
    model.audio_model.set_input_statistics(mean, square / count - mean.square())


def check_trackers(names: Sequence[str]) -> None:
    """Raises a [`RecipeError`] for a tracker whose package is not installed, before a dry run drops it."""
    present = {*get_available_reporting_integrations(), "flyte"}  # which the list leaves out
    for name in names:
        if name not in present:
            how = "`pip install 'supclap[tracking]'`" if name in TRACKERS else f"install the package of {name}"
            there = ", ".join(sorted(present - {"flyte"})) or "none"
            raise RecipeError(
                f"report_to {name!r}: its package is not installed: {how}, or name one that is: {there}."
            )


def check_stream_arguments(args: SupClapTrainingArguments) -> None:
    """Raises a [`RecipeError`] for arguments that need the number of clips, which is unknown for a stream."""
    if args.max_steps <= 0:
        raise RecipeError("streaming reads without end, so epochs do not count the steps: set max_steps.")
    for name in ("eval_strategy", "save_strategy", "logging_strategy"):
        if str(getattr(args, name).value) == "epoch":
            raise RecipeError(f"{name}: epoch never comes in streaming, which reads without end: set it to steps.")
    if args.train_sampling_strategy == "group_by_length":
        raise RecipeError(
            "train_sampling_strategy group_by_length needs to know all lengths: leave it out in streaming."
        )


def check_batch_size(data: CaptionedClips | StreamedClips, args: SupClapTrainingArguments) -> None:
    """Raises a [`RecipeError`] when the clips do not fill one batch, which would train nothing."""
    pairs = args.train_batch_size * args.world_size
    if pairs < 2:
        raise RecipeError(f"per_device_train_batch_size {args.per_device_train_batch_size}: a pair needs negatives.")
    if not isinstance(data, StreamedClips) and len(data) < pairs:
        raise RecipeError(
            f"{len(data)} clips do not fill one step of {pairs} pairs: set per_device_train_batch_size to at most "
            f"{len(data) // args.world_size}."
        )
