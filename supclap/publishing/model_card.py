"""The card of a checkpoint, written from the files that a run leaves beside the weights.

This module prepares values; `model_card_template.md` holds the text and the tables. The template escapes every value, so
that what the rows of a data set say (sources, authors, licenses) can neither break the card nor add to it.
"""

import html
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modeling_supclap.configuration_supclap import PIPELINE_TASK
from supclap.errors import DataError
from supclap.files import CARD, PROCESSOR, TRAINING_CURVES, read_json_object, write_whole
from supclap.publishing.licenses import UNKNOWN, decide_license, part_licenses
from supclap.publishing.run_record import Facts


if TYPE_CHECKING:
    from huggingface_hub import ModelCard

TEMPLATE = Path(__file__).parent / "model_card_template.md"
MARKER = "<!-- Written by `supclap "  # `supclap convert` begins its README so too, and a card may replace it
CITATION = """@inproceedings{luo2026supclap,
  title     = {{SupCLAP}: Controlling Optimization Trajectory Drift in Audio-Text Contrastive Learning with Support
               Vector Regularization},
  author    = {Luo, Jiehui and Yin, Yuguo and Xie, Yuxin and Ru, Jinghan and Zhuang, Xianwei and He, Minghua and
               Liu, Aofan and Xiong, Zihan and Yang, Dongchao},
  booktitle = {International Conference on Learning Representations},
  year      = {2026},
  note      = {arXiv:2509.21033}
}"""
# The settings that the card lists, in this order. recipe.json has all of them.
HYPER_PARAMETERS = (
    *("learning_rate", "text_learning_rate", "radius_learning_rate", "lr_scheduler_type", "warmup_steps"),
    *("optim", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "num_train_epochs"),
    *("bf16", "fp16", "seed", "freeze_text", "frozen_text_layers", "freeze_audio"),
    *("max_duration", "corpora", "epoch_size", "language_weights", "exclude_leaks_of", "choose_checkpoint_on"),
    *("scenes", "waveform_augment", "spectrogram_augment"),
)


def write_card(
    folder: str | Path, model_id: str | None = None, license: str | None = None, force: bool = False
) -> Path:
    """Writes the card of a checkpoint to its `README.md`.

    Args:
        folder: The checkpoint.
        model_id: The Hub id that the snippets load; the folder when omitted.
        license: The license of the weights; see [`~supclap.publishing.licenses.decide_license`].
        force: Whether to overwrite a `README.md` that is no card of ours.

    Returns:
        The path of the card.

    Raises:
        LicenseError: A part or the data is non-commercial, and the license is not.
        FileExistsError: There is a `README.md` that this function did not write.
        CheckpointError: The folder holds no checkpoint.
        DataError: A file of the checkpoint is damaged.
    """
    path = Path(folder) / CARD
    card = build_card(folder, model_id, license)
    if path.exists() and not force and MARKER not in path.read_text(encoding="utf-8", errors="replace"):
        raise FileExistsError(
            f"{path} was not written by `supclap card`. Move it away, or pass --force to replace it."
        )
    write_whole(path, str(card))
    return path


def build_card(folder: str | Path, model_id: str | None = None, license: str | None = None) -> "ModelCard":
    """The card of a checkpoint as a [`huggingface_hub.ModelCard`]; see [`write_card`]."""
    from huggingface_hub import ModelCard, ModelCardData

    from supclap.evaluation.results import CHOSEN_ON
    from supclap.evaluation.tables import model_index, size_text, task_title

    facts = Facts.read(folder)
    verdict = decide_license(tower_licenses(facts), training_licenses(facts), license)
    revision = facts.run.get("data", {}).get("test", {}).get("revision")
    entries = [entry for entry in facts.results.get("results", []) if entry.get("metrics")]
    results = model_index(facts.results, revision) if entries else []
    name = (model_id or str(facts.folder.resolve())).rstrip("/").rsplit("/", 1)[-1]
    data = ModelCardData(
        model_name=name,
        license=verdict.license,
        license_name=verdict.name,
        license_link=f"{CARD}#license" if verdict.name else None,
        library_name="transformers",
        pipeline_tag="zero-shot-audio-classification",
        base_model=_base_models(facts) or None,
        tags=["supclap", "clap", "audio", "contrastive", "custom_code", "feature-extraction", "sentence-transformers"],
        eval_results=results or None,
        co2_eq_emissions=_emissions(facts),
    )
    extractor = _extractor(facts)
    text = _template().render(
        facts=facts,
        model_name=name,
        card_data=_Verbatim(data.to_yaml()),
        citation=_Verbatim(CITATION),
        model_id=model_id or str(folder),
        pipeline_task=PIPELINE_TASK,
        objective=_objective(facts.recipe),
        towers=[_tower(facts.config, tower) for tower in ("audio", "text")],
        sampling_rate=extractor.sampling_rate,
        mel_bands=_mel_bands(extractor),
        window=_window_seconds(facts),
        shortest=1000 * extractor.hop_length / extractor.sampling_rate,
        text_limit=_text_limit(facts.folder),
        n_parameters=_parameter_count(facts.folder),
        revision=revision,
        chosen=CHOSEN_ON[facts.results.get("chosen_on")],
        tasks=[(task_title(entry), size_text(entry), entry.get("record", {})) for entry in entries],
        figures=[_figure(result) for result in results],
        settings=_settings(facts.recipe),
        curves=TRAINING_CURVES if (facts.folder / TRAINING_CURVES).exists() else None,
        hardware=_hardware(facts) if facts.run else None,
        verdict=verdict,
    )
    return ModelCard(text)


# ---- The template ----


class _Verbatim(str):
    """Text that the template writes as it is."""


def _template() -> Any:
    """The template, in which every value that is not [`_Verbatim`] is escaped."""
    import jinja2

    environment = jinja2.Environment(
        finalize=_escape, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"code": _code, "python": _python, "counted": _counted, "shown": _shown}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _escape(value: Any) -> str:
    """A value in one line, with the characters escaped that HTML or Markdown would read as more than text."""
    if isinstance(value, _Verbatim):
        return value
    text = html.escape(" ".join(str(value).split()), quote=False)
    # a bracket after a bracket makes a link or an image of both
    return re.sub(r"[\\*|]|(?<=\])[(\[]", r"\\\g<0>", text)


def _code(value: Any) -> str:
    """A value as code within a line, in which no character but the backtick has a meaning."""
    return _Verbatim(f"`{' '.join(str(value).split()).replace('`', chr(39))}`")


def _python(value: str) -> str:
    """A string as Python code writes it, in double quotes."""
    return _Verbatim(json.dumps(value, ensure_ascii=False))


def _counted(counts: dict[str, int | None]) -> str:
    """`CC0 1.0 (120), CC BY 3.0 (17)`."""
    return ", ".join(name if count is None else f"{name} ({count:,})" for name, count in counts.items())


# ---- Licenses ----


def tower_licenses(facts: Facts) -> dict[str, str]:
    """The license of each pretrained part, by a name for the card: as recorded when the run ended, else as found now."""
    recipe, config = facts.recipe, facts.config
    recorded = facts.run.get("licences", {})
    base = (
        f"model that training went on from ({_shown(recipe['checkpoint'])})"
        if recipe.get("checkpoint")
        else "published checkpoint that was converted"
    )
    names = {"model": f"The {base}"}
    for tower in ("text", "audio"):
        name = _shown(recipe.get(f"{tower}_model") or config[f"{tower}_config"]["model_type"])
        names[f"{tower}_encoder"] = f"The {tower} encoder ({name})"
    return {
        names[part]: recorded[part] if recorded.get(part, UNKNOWN) != UNKNOWN else license
        for part, license in part_licenses(recipe, config).items()
    }


def training_licenses(facts: Facts) -> set[str]:
    """The licenses that the rows of the training data state."""
    return set(facts.run["data"]["train"]["licences"]) if facts.run else {UNKNOWN}


# ---- The model ----


def _objective(recipe: dict[str, Any]) -> str:
    """A sentence about the loss; empty without a recipe."""
    if not recipe:
        return ""
    base = {"infonce": "InfoNCE in both directions, summed", "siglip": "the sigmoid loss"}[recipe["objective"]]
    if recipe.get("svr") is None:
        return f"Trained with {base}, without support vector regularization."
    radius = {"static": "one learned radius", "dynamic": "a radius predicted for each pair"}[recipe["svr"]]
    direction = {"bi": "in both directions", "uni": "from text to audio"}[recipe["svr_direction"]]
    beta = f", beta {recipe['constraint_weight']:g} on its constraint" if recipe["svr"] == "dynamic" else ""
    return (
        f"Trained with {base}, and support vector regularization {direction} with {radius} "
        f"(alpha {recipe['svr_weight']:g}{beta}, initial radius {recipe['radius_init']:g})."
    )


def _tower(config: dict[str, Any], tower: str) -> tuple[str, str, str]:
    """The name of an encoder, its type and its size in words."""
    encoder = config[f"{tower}_config"]
    # the num_hidden_layers of an HTS-AT counts its stages
    layers = (
        sum(encoder["depths"]) if encoder["model_type"] == "clap_audio_model" else encoder.get("num_hidden_layers")
    )
    layers, width = layers or encoder.get("encoder_layers"), encoder.get("hidden_size") or encoder.get("d_model")
    size = [f"{number} {unit}" for number, unit in ((layers, "layers"), (width, "wide")) if number]
    return tower, encoder["model_type"], ", ".join(size)


def _extractor(facts: Facts) -> Any:
    import processing_supclap

    fields = facts.processor["feature_extractor"]
    kinds = ("SupClapFeatureExtractor", "SupClapEncoderFeatureExtractor")
    if fields["feature_extractor_type"] not in kinds:
        raise DataError(
            f"{facts.folder / PROCESSOR}: feature_extractor_type is {fields['feature_extractor_type']!r}, not one of "
            f"{', '.join(kinds)}. Save the processor again."
        )
    return getattr(processing_supclap, fields["feature_extractor_type"]).from_dict(fields)


def _window_seconds(facts: Facts) -> float:
    """Length of the clip that the audio encoder takes at once."""
    extractor, audio = _extractor(facts), facts.config["audio_config"]
    if audio["model_type"] == "supclap_ced":
        return audio["target_length"] * extractor.hop_length / extractor.sampling_rate
    # encoders of waveforms leave the windows to the model, which counts samples
    return (extractor.window_samples or facts.config["audio_window"]) / extractor.sampling_rate


def _mel_bands(extractor: Any) -> int | None:
    """The mel bands of the features; `None` where the encoder takes the waveform itself."""
    features = getattr(extractor, "encoder_feature_extractor", extractor)
    bands = getattr(features, "num_mel_bins", features.feature_size)  # that of AST has the first name
    return None if bands == 1 else bands


def _parameter_count(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    return total


def _text_limit(folder: Path) -> int | None:
    """The tokens of a text that the model reads; `None` where it has no limit."""
    from modeling_supclap import SupClapConfig
    from processing_supclap.text_supclap import known_limit

    file = folder / "tokenizer_config.json"
    of_tokenizer = read_json_object(file).get("model_max_length") if file.is_file() else None
    limit = None if of_tokenizer is None else known_limit(of_tokenizer)
    return SupClapConfig.from_pretrained(folder).text_limit(limit)


# ---- Figures, settings, machine ----


def _figure(result: Any) -> tuple[str, str, str, int]:
    """A row of the table of figures: name, value, interval and number of queries of an entry of the `model-index`."""
    task = result.task_name.lower() + (f" ({result.dataset_config})" if result.dataset_config else "")
    unit = "rank " if result.metric_args["unit"] == "rank" else ""
    interval = " to ".join(f"{end:.1f}" for end in result.metric_args.get("interval_95", [])) or "none"
    value = f"{unit}{result.metric_value:.1f}"
    return f"{task}: {result.metric_name}", value, interval, result.metric_args["n"]


def _settings(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    """The hyper-parameters that were set, and their values as text."""
    overridden = {"num_train_epochs"} if (recipe.get("max_steps") or 0) > 0 else set()
    names = [name for name in HYPER_PARAMETERS if name not in overridden and recipe.get(name) not in (None, False)]
    return [(name, _shown(recipe[name])) for name in names]


def _base_models(facts: Facts) -> list[str]:
    """The Hub ids among the models that the recipe names; folders and packages are none."""
    names = [facts.recipe.get(key) for key in ("checkpoint", "text_model", "audio_model")]
    return [name for name in names if name and name.count("/") == 1 and ":" not in name and not Path(name).exists()]


def _hardware(facts: Facts) -> str:
    machine = facts.run["machine"]
    accelerators = machine["accelerators"]
    return f"{len(accelerators)} x {accelerators[0]}" if accelerators else machine["processor"]


def _emissions(facts: Facts) -> dict[str, Any] | None:
    """The emissions for the metadata of the card, which the Hub counts in grams."""
    if not (facts.run and facts.emissions):
        return None
    return {
        "emissions": float(f"{1000 * sum(facts.emissions):.4g}"),
        "source": "codecarbon",
        "training_type": "fine-tuning" if facts.recipe.get("checkpoint") else "pre-training",
        "hardware_used": _hardware(facts),
    }


def _shown(value: Any) -> str:
    """A value of a recipe as text. Of an absolute path, which may tell who trained where, it shows the last part."""

    def without_folders(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: without_folders(each) for key, each in item.items()}
        if isinstance(item, list):
            return [without_folders(each) for each in item]
        return Path(item).name if isinstance(item, str) and Path(item).is_absolute() else item

    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(without_folders(value)) if isinstance(value, dict | list) else str(without_folders(value))
