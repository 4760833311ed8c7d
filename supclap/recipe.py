"""From a recipe to a trained, evaluated and saved model: what `train_supclap.py` does, step by step."""

import ctypes
import dataclasses
import itertools
import json
import os
import platform
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.integrations import get_available_reporting_integrations

from modeling_supclap import CED_SIZES, CedConfig, SupClapModel
from processing_supclap import SupClapFeatureExtractor, SupClapProcessor
from supclap.checkpointing import flush
from supclap.config import DataArguments, ModelArguments, RecipeError
from supclap.data.augment import SpectrogramAugment, WaveformAugment
from supclap.data.captions import CaptionedClips
from supclap.data.collator import ContrastiveCollator
from supclap.data.manifest import MANIFEST
from supclap.data.mixing import SceneMixer
from supclap.data.streaming import RowStream, StreamedClips
from supclap.layer_rates import encoder_layers
from supclap.training_args import SupClapTrainingArguments
from supclap.values import check_value, unknown_key


T = TypeVar("T")
RECIPE_FILE = "recipe.json"
TRACKERS = ("tensorboard", "trackio", "wandb")  # of the extra "tracking"
# What may change between a killed run and its continuation without changing its losses.
_FREE_ON_RESUME = {
    "output_dir",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "disable_tqdm",
    "report_to",
    "hub_strategy",
    "dataloader_pin_memory",
    "skip_nonfinite_steps",
    "drift",
    "drift_steps",
    "drift_probe_size",
}


# What may change when the user asks to go on with it: the state of a checkpoint fits all the same.
_CHANGEABLE = {
    "learning_rate",
    "text_learning_rate",
    "radius_learning_rate",
    "muon_learning_rate",
    "weight_decay",
    "max_grad_norm",
    "bf16",
    "fp16",
}


def resolve_model_path(name: str) -> str:
    """A folder, a Hub id, or `package:folder` for weights that an installed Python package carries."""
    if not name.startswith("package:"):
        return name
    package, _, folder = name.removeprefix("package:").partition("/")
    spec = find_spec(package)
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
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise RecipeError(f"{key} {fields!r}: {_first_lines(error)}") from error


def _first_lines(error: Exception) -> str:
    return textwrap.shorten(str(error), 300)


@contextmanager
def _loading(key: str, name: str) -> Iterator[None]:
    """Raises a [`RecipeError`] when the folder or Hub id that a key names holds no model."""
    rest = {
        "model": "processor_config.json and the files of the tokenizer",
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


@contextmanager
def _changing_text(text_model: str, fields: dict[str, Any] | None) -> Iterator[None]:
    """Raises a [`RecipeError`] when a text encoder has no such fields, or its weights do not fit them."""
    if not fields:
        yield
        return
    known = AutoConfig.from_pretrained(text_model).to_dict()
    for name, value in fields.items():
        if name not in known:
            raise unknown_key(name, list(known), "text_config")
        check_value(f"text_config.{name}", value)
    try:
        yield
    except (TypeError, ValueError, KeyError, RuntimeError, StrictDataclassError) as error:
        there = {name: known[name] for name in fields}
        raise RecipeError(
            f"text_config {fields!r} does not fit the encoder, which has {there!r}: {_first_lines(error)}"
        ) from error


def build_processor(args: ModelArguments) -> SupClapProcessor:
    from transformers import AutoTokenizer

    if args.model is not None:
        with _loading("model", args.model):
            return SupClapProcessor.from_pretrained(args.model)
    if args.text_model is None:
        raise RecipeError("model section: set text_model (a text encoder) or model (a SupCLAP model to go on from).")
    text_model = resolve_model_path(args.text_model)
    with _loading("text_model", text_model):
        tokenizer = AutoTokenizer.from_pretrained(text_model)
    if args.audio_model in CED_SIZES:
        feature_extractor = _make("features", SupClapFeatureExtractor, args.features or {})
        return SupClapProcessor(feature_extractor=feature_extractor, tokenizer=tokenizer)
    if args.features:
        raise RecipeError("model section: features is for random weights; a pretrained encoder brings its own.")
    with _loading("audio_model", args.audio_model):
        return SupClapProcessor.from_text_audio_pretrained(text_model, args.audio_model)


def build_model(args: ModelArguments) -> SupClapModel:
    """The model to train, in fp32 whatever type it was saved in."""
    if args.model is not None:
        _check_alone(args)
        model = SupClapModel.from_pretrained(args.model, dtype=torch.float32)
        if args.logit_bias_init_value is not None and model.logit_bias is None:  # to go on with SigLIP
            model.config.logit_bias_init_value = args.logit_bias_init_value
            model.logit_bias = torch.nn.Parameter(torch.full((1,), float(args.logit_bias_init_value)))
    else:
        fields = args.audio_config or {}
        if args.audio_model in CED_SIZES:
            if Path(args.audio_model).is_dir():
                raise RecipeError(
                    f"audio_model {args.audio_model!r} is a size, of random weights, and a folder here: write "
                    f"./{args.audio_model} for the folder, or rename it."
                )
            print(f"audio encoder: random weights, {args.audio_model}")
            audio = _make("audio_config", partial(CedConfig.from_size, args.audio_model), fields)
        elif args.audio_config:
            raise RecipeError(
                f"model section: audio_config is for random weights of a size ({', '.join(CED_SIZES)}), but "
                f"audio_model is {args.audio_model!r}."
            )
        else:
            audio = args.audio_model
        text_model = resolve_model_path(args.text_model)
        with _changing_text(text_model, args.text_config):
            model = SupClapModel.from_text_audio_pretrained(
                text_model,
                audio,
                text_config=args.text_config,
                projection_dim=args.projection_dim,
                logit_scale_init_value=args.logit_scale_init_value,
                logit_bias_init_value=args.logit_bias_init_value,
            )
    if args.attn_implementation is not None:
        for tower in (getattr(model.audio_model, "encoder", model.audio_model), model.text_model):
            try:
                tower.set_attn_implementation(args.attn_implementation)
            except (ValueError, ImportError) as error:
                raise RecipeError(
                    f"attn_implementation {args.attn_implementation!r}: {_first_lines(error)}"
                ) from error
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


def _check_alone(args: ModelArguments) -> None:
    """Raises a [`RecipeError`] when keys for a new model come with one to go on from, where they mean nothing."""
    defaults = ModelArguments()
    new = (
        "text_model",
        "text_config",
        "audio_model",
        "audio_config",
        "features",
        "projection_dim",
        "logit_scale_init_value",
    )
    ignored = [name for name in new if getattr(args, name) != getattr(defaults, name)]
    if ignored:
        raise RecipeError(
            f"model section: {', '.join(ignored)} would be ignored, as model: {args.model} brings its own; leave out one "
            "or the other."
        )


def freeze_first_layers(encoder: torch.nn.Module, count: int) -> None:
    """Freezes an encoder but for the layers behind its first `count` ones, and what comes after them.

    Raises:
        RecipeError: The encoder has no list of layers, or fewer than `count`.
    """
    layers = encoder_layers(encoder)
    if layers is None or not 0 <= count <= len(layers):
        total = encoder.config.num_hidden_layers
        raise RecipeError(f"frozen_text_layers must lie in 0 … {total}, the layers of the encoder; got {count}.")
    in_layers = [{id(parameter) for parameter in layer.parameters()} for layer in layers]
    trained = set().union(*in_layers[count:])
    behind = False
    for parameter in encoder.parameters():
        behind = behind or id(parameter) in in_layers[-1]
        is_last = behind and id(parameter) not in set().union(*in_layers)
        parameter.requires_grad_(id(parameter) in trained or is_last)


def has_random_audio_encoder(args: ModelArguments) -> bool:
    return args.model is None and args.audio_model in CED_SIZES


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
    """Sets the input normalisation of a random audio encoder to the statistics of training batches."""
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
    """Raises a [`RecipeError`] for arguments of training that count the clips, which a stream does not tell."""
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


def check_recipe(
    output_dir: str | Path,
    model: ModelArguments,
    data: DataArguments,
    training: SupClapTrainingArguments,
    write: bool = True,
    accept_changes: bool = False,
) -> None:
    """Writes the recipe of a new run; refuses to go on from a run with another one.

    Args:
        write: Whether to write it; a dry run only checks.
        accept_changes: Whether to go on with other learning rates, weight decay, clipping or precision than before.

    Raises:
        RecipeError: `output_dir` holds a run with other settings; each is named with both values.
    """
    if training.ignore_data_skip:
        raise RecipeError(
            "ignore_data_skip true would train a resumed run on clips that it has seen in place of the next ones: leave "
            "it out."
        )
    current = {
        **dataclasses.asdict(model),
        **dataclasses.asdict(data),
        **{key: value for key, value in training.to_dict().items() if key in _resumable_keys()},
        "world_size": training.world_size,  # it decides which pairs meet in a batch
    }
    if data.streaming:
        current["dataloader_num_workers"] = training.dataloader_num_workers  # they share the stream
    current = json.loads(json.dumps(current))
    path = Path(output_dir) / RECIPE_FILE
    if path.exists():
        try:
            previous = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(
                f"{path} is damaged ({error}). Delete it to go on with the settings of this command, which have to be "
                "those that the run began with."
            ) from None
        changed = {
            key: f"{key}: {previous.get(key)!r} there, {current.get(key)!r} now"
            for key in sorted(previous.keys() | current.keys())
            if previous.get(key) != current.get(key)
        }
        # null or not decides which parts have rates of their own, by which the optimizer's state is laid out
        changeable = {key for key in changed.keys() & _CHANGEABLE if None not in (previous.get(key), current.get(key))}
        fixed = [told for key, told in changed.items() if key not in changeable or not accept_changes]
        if fixed:
            also = "" if changed.keys() - changeable else ", or add --resume-with-changes to go on with the new ones"
            raise RecipeError(
                f"{output_dir} holds a run with other settings ({'; '.join(fixed)}). Set another --output_dir to "
                f"start anew, or the old settings to go on{also}."
            )
        write = write and bool(changed)
    if not write:
        return
    check_writable(output_dir)
    part = path.with_suffix(f".part{os.getpid()}")  # each rank writes the same
    part.write_text(json.dumps(current, indent=1), encoding="utf-8")
    flush(part)
    part.replace(path)


def check_same_data(checkpoint: str | Path, manifest: dict) -> None:
    """Raises a [`RecipeError`] when the clips or captions of a split are others than a checkpoint was trained with.

    What neither manifest knows, as of a stream, is not compared.
    """
    path = Path(checkpoint) / MANIFEST
    if not path.exists():
        return
    previous = json.loads(path.read_text(encoding="utf-8"))["splits"]
    current = json.loads(json.dumps(manifest))["splits"]
    changed = [
        split
        for split in sorted(previous.keys() | current.keys())
        if any(previous.get(split, {}).get(key) != current.get(split, {}).get(key) for key in ("revision", "clips"))
    ]
    if changed:
        raise RecipeError(
            f"the clips or captions of {', '.join(changed)} are not those that {checkpoint} was trained with, which "
            f"{MANIFEST} in it lists. Restore them to go on, or set another --output_dir to start anew."
        )


def check_writable(output_dir: str | Path, make: bool = True) -> None:
    """Raises a [`RecipeError`] when nothing can be written to the folder of a run.

    Args:
        make: Whether to make it; otherwise the first folder above it that is there is tried.
    """
    try:
        folder = Path(output_dir)
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise RecipeError(f"output_dir {str(output_dir)!r} cannot be written: {error}. Name another one.") from error


def _resumable_keys() -> set[str]:
    own = {item.name for item in dataclasses.fields(SupClapTrainingArguments)}
    changing = {
        "seed",
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_steps",
        "num_train_epochs",
        "warmup_steps",
        "lr_scheduler_type",
        "weight_decay",
        "optim",
        "bf16",
        "fp16",
        "max_grad_norm",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "optim_args",
        "lr_scheduler_kwargs",
        "data_seed",
        "train_sampling_strategy",
    }
    objective = set(SupClapTrainingArguments.__annotations__)
    return (own & (changing | objective)) - _FREE_ON_RESUME


def quiet_libraries() -> None:
    """Turns off the bars of loading and saving files, so that what is left on the screen is training's own."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def keep_freed_memory() -> None:
    """Lets training on a CPU use freed memory again; glibc gives what a step frees back to the system.

    Each step would have all its pages mapped and zeroed anew.
    """
    if platform.libc_ver()[0] == "glibc" and not torch.cuda.is_available():
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**25)  # the largest it takes


def use_all_cores(workers: int = 0) -> None:
    """Lets one CPU process use every core that its data workers leave; `accelerate launch` sets one thread.

    On a core that a worker needs too, the threads of each operation wait for the one that was interrupted.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max((cores or 1) - workers, 1))
