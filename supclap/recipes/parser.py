"""Recipes: a YAML file plus `--key value` overrides, checked against the fields of a few dataclasses."""

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from supclap.errors import RecipeError, SettingsError
from supclap.recipes.validation import convert, convert_part, parts, unknown_key
from supclap.training.arguments import SupClapTrainingArguments


@dataclass
class ModelArguments:
    """The `model` section: which encoders, and what joins them."""

    model: str | None = field(default=None, metadata={"help": "Folder or Hub id of a SupCLAP model to go on from."})
    text_model: str | None = field(
        default=None, metadata={"help": "Folder, Hub id or package:path of a text encoder."}
    )
    text_config: dict | None = field(
        default=None, metadata={"help": "Fields of the text encoder's configuration to change, e.g. its dropout."}
    )
    audio_model: str = field(default="ced-base", metadata={"help": "CED size (random weights), folder or Hub id."})
    audio_config: dict | None = field(default=None, metadata={"help": "Fields of CedConfig for random weights."})
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "Attention of both encoders in training: eager, sdpa, flash_attention_2; the default if null."
        },
    )
    features: dict | None = field(
        default=None, metadata={"help": "Fields of SupClapFeatureExtractor for random weights."}
    )
    projection_dim: int = field(default=1024, metadata={"help": "Size of the joint embedding."})
    logit_scale_init_value: float = field(default=2.6592600369327783, metadata={"help": "Initial log(1/temperature)."})
    logit_bias_init_value: float | None = field(default=None, metadata={"help": "Initial bias, for siglip."})
    freeze_text: bool = field(default=False, metadata={"help": "Train only the projection of the text tower."})
    frozen_text_layers: int | None = field(
        default=None, metadata={"help": "Train the text tower but for its embeddings and first so many layers."}
    )
    freeze_audio: bool = field(default=False, metadata={"help": "Train only the projection of the audio tower."})


@dataclass
class DataArguments:
    """The `data` section: where the clips are, how they are split, what is done to them in training."""

    corpus: str | None = field(
        default=None, metadata={"help": "A corpus by name (audiocaps, clotho, …) in place of tables; in data_dir."}
    )
    corpus_options: dict | None = field(default=None, metadata={"help": "Options of the corpus, by its module."})
    corpora: list | None = field(
        default=None, metadata={"help": "Mixture to train on: corpus, data_dir, splits, weight, options of each."}
    )
    epoch_size: int | None = field(default=None, metadata={"help": "Clips of an epoch of a mixture; all when null."})
    skip_bad: bool = field(
        default=False, metadata={"help": "Leave clips without usable audio or captions out, counted and listed."}
    )
    exclude_leaks_of: list | None = field(
        default=None, metadata={"help": "Evaluation sets (or leak lists) whose recordings are not trained on."}
    )
    leak_lists: str | None = field(
        default=None, metadata={"help": "Folder of published leak lists; data_dir if null."}
    )
    language_weights: dict[str, float] | None = field(
        default=None, metadata={"help": "Weight of each language in the draw of a caption; all alike if null."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read the training clips as they are needed, without end; needs max_steps."}
    )
    shuffle_buffer: int = field(
        default=1000, metadata={"help": "Clips of a stream that the order is drawn from, held in memory; 0 keeps it."}
    )
    content_hashes: bool = field(
        default=True, metadata={"help": "Hash the audio for the manifest, which reads all of it once."}
    )
    data_dir: str | None = field(default=None, metadata={"help": "Folder of the clips and their metadata."})
    train_file: str | None = field(default=None, metadata={"help": "CSV or JSON lines of the training clips."})
    validation_file: str | None = field(default=None, metadata={"help": "The same for validation."})
    test_file: str | None = field(default=None, metadata={"help": "The same for the final test."})
    split_column: str | None = field(default=None, metadata={"help": "Column that assigns clips to splits."})
    train_splits: list | None = field(
        default=None, metadata={"help": "Its values for training; of a corpus, the splits or folds."}
    )
    validation_splits: list | None = field(default=None, metadata={"help": "Its values for validation."})
    test_splits: list | None = field(default=None, metadata={"help": "Its values for the test."})
    audio_column: str = field(default="file_name", metadata={"help": "Column of the file, relative to the metadata."})
    caption_columns: list = field(
        default_factory=lambda: ["captions"], metadata={"help": "Columns of captions; each may hold a list."}
    )
    label_column: str | None = field(default=None, metadata={"help": "Column of the class, for zero-shot evaluation."})
    group_column: str | None = field(
        default=None, metadata={"help": "Recordings of one group must not be split: training drops those that are."}
    )
    label_captions: dict | None = field(default=None, metadata={"help": "Captions of each class, by its label."})
    max_duration: float | None = field(default=None, metadata={"help": "Crop training clips to so many seconds."})
    scenes: dict | None = field(default=None, metadata={"help": "Arguments of SceneMixer for training; none if null."})
    validation_scenes: dict | None = field(
        default=None, metadata={"help": "Arguments of SceneMixer for validation; the clips themselves if null."}
    )
    test_scenes: dict | None = field(default=None, metadata={"help": "The same for the test."})
    waveform_augment: dict | None = field(default=None, metadata={"help": "Arguments of WaveformAugment."})
    spectrogram_augment: dict | None = field(default=None, metadata={"help": "Arguments of SpectrogramAugment."})
    input_statistics_batches: int = field(
        default=16, metadata={"help": "Training batches to set the input normalisation of a random encoder from."}
    )


SECTIONS = {"model": ModelArguments, "data": DataArguments, "training": SupClapTrainingArguments}
T = TypeVar("T")


def _fields() -> dict[str, tuple[str, dataclasses.Field]]:
    """Every key with its section."""
    return {
        item.name: (section, item)
        for section, kind in SECTIONS.items()
        for item in dataclasses.fields(kind)
        if item.init
    }


def _parse(text: str) -> Any:
    """A value of the command line, read as YAML."""
    import yaml

    return yaml.safe_load(text)


def _with_bases(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict]]:
    """The file and what it is based on, each with its sections, in the order in which they apply."""
    import yaml

    asked = f", a base of {above[-1]}" if above else ""
    if not path.is_file():
        raise RecipeError(f"no recipe at {str(path)!r}{asked}; recipes are in configs/.")
    if path.resolve() in [file.resolve() for file in above]:
        raise RecipeError(f"recipes are based on each other: {' -> '.join(map(str, [*above, path]))}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {error}") from None
    if not isinstance(recipe, dict):
        raise RecipeError(f"{path}: expected the sections {', '.join(SECTIONS)}, got {type(recipe).__name__}.")
    bases = recipe.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise RecipeError(f"{path}: base must be a file or a list of files, got {bases!r}.")
    files = [file for base in bases for file in _with_bases(path.parent / base, (*above, path))]
    return [*files, (path, recipe)]


def parse_recipe(argv: Sequence[str]) -> tuple[ModelArguments, DataArguments, SupClapTrainingArguments]:
    """Reads `recipe.yaml [--key value …]`.

    The file has the sections `model`, `data` and `training`; the keys are unique over all sections, so an override
    needs no section. A value on the command line is read as YAML. `base` names other recipes, relative to the file,
    that this one changes: of several files that set a key the last one counts, and the file itself comes after its
    bases.

    Raises:
        RecipeError: A file is missing, not a mapping or its own base, a key is unknown (the nearest right one is
            named) or in the wrong section, or a value has the wrong type.
    """
    if not argv or argv[0].startswith("--"):
        raise RecipeError(
            "usage: train_supclap.py RECIPE.yaml [--key value …]; recipes are in configs/, -h tells more."
        )
    path = Path(argv[0])
    fields = _fields()
    hints = {section: typing.get_type_hints(kind) for section, kind in SECTIONS.items()}
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}

    def put(key: str, value: Any, where: str) -> None:
        if key not in fields:
            raise unknown_key(key, list(fields), where)
        section = fields[key][0]
        try:
            value = convert(key, value, hints[section][key])
            values[section][key] = convert_part(key, value) if value and key in parts() else value
        except SettingsError as error:
            raise RecipeError(f"{where}: {error}") from None

    for file, recipe in _with_bases(path):
        for section, content in recipe.items():
            if section not in SECTIONS:
                raise unknown_key(section, [*SECTIONS, "base"], str(file))
            if not isinstance(content or {}, dict):
                raise RecipeError(f"{file}: section {section!r} must be a mapping of keys, got {content!r}.")
            for key, value in (content or {}).items():
                if key in fields and fields[key][0] != section:
                    raise RecipeError(f"{file}: {key!r} belongs into the section {fields[key][0]!r}, not {section!r}.")
                put(key, value, f"{file}, section {section}")
    arguments = list(argv[1:])
    while arguments:
        name = arguments.pop(0)
        if not name.startswith("--"):
            raise RecipeError(f"command line: expected --key value, got {name!r}.")
        name, equals, text = name[2:].partition("=")
        if name.replace("-", "_") not in fields:  # before its value is missed
            raise unknown_key(name, [*fields, "dry-run"], "command line")
        if not equals:
            if not arguments:
                raise RecipeError(f"command line: --{name} needs a value.")
            text = arguments.pop(0)
        put(name.replace("-", "_"), _parse(text), "command line")
    return tuple(_build(kind, values[section], path) for section, kind in SECTIONS.items())


def _build(kind: type[T], values: dict[str, Any], path: Path) -> T:
    try:
        return kind(**values)
    except (TypeError, ValueError, ImportError) as error:
        raise RecipeError(f"{path}: {error}") from error
