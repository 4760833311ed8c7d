"""The card of a checkpoint, written from the files that a run leaves beside the weights, and `supclap card`."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modeling_supclap.configuration_supclap import PIPELINE_TASK
from supclap.files import CARD, PROCESSOR, TRAINING_CURVES, write_whole
from supclap.publishing.card_facts import Facts
from supclap.publishing.licenses import UNKNOWN, LicenseVerdict, decide_license, part_licenses


if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard
    from transformers import SequenceFeatureExtractor

TEMPLATE = Path(__file__).parent / "model_card_template.md"
MARKER = "<!-- Written by `supclap "  # also of `supclap convert`, whose README a card replaces
CITATION = """@inproceedings{luo2026supclap,
  title     = {{SupCLAP}: Controlling Optimization Trajectory Drift in Audio-Text Contrastive Learning with Support
               Vector Regularization},
  author    = {Luo, Jiehui and Yin, Yuguo and Xie, Yuxin and Ru, Jinghan and Zhuang, Xianwei and He, Minghua and
               Liu, Aofan and Xiong, Zihan and Yang, Dongchao},
  booktitle = {International Conference on Learning Representations},
  year      = {2026},
  note      = {arXiv:2509.21033}
}"""
# In the order of the table; the others of a recipe are in recipe.json.
HYPER_PARAMETERS = (
    "learning_rate",
    "text_learning_rate",
    "radius_learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "weight_decay",
    "max_grad_norm",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_steps",
    "num_train_epochs",
    "bf16",
    "fp16",
    "seed",
    "freeze_text",
    "frozen_text_layers",
    "freeze_audio",
    "max_duration",
    "corpora",
    "epoch_size",
    "language_weights",
    "exclude_leaks_of",
    "choose_checkpoint_on",
    "scenes",
    "waveform_augment",
    "spectrogram_augment",
)


def write_card(
    folder: str | Path, model_id: str | None = None, license: str | None = None, force: bool = False
) -> Path:
    """Writes the card of a checkpoint to its `README.md`.

    Args:
        folder: The checkpoint.
        model_id: What the snippets load: a Hub id; the folder when omitted.
        license: The license of the weights; see [`~supclap.publishing.licenses.decide_license`].
        force: Overwrite a `README.md` that is not a card of ours.

    Returns:
        The path of the card.

    Raises:
        LicenseError: A part or the data is non-commercial, and the license is not.
        FileExistsError: There is a `README.md` that this function did not write.
        FileNotFoundError: The folder holds no checkpoint.
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

    facts = Facts.read(folder)
    name = (model_id or str(facts.folder.resolve())).rstrip("/").rsplit("/", 1)[-1]
    verdict = decide_license(tower_licenses(facts), training_licenses(facts), license)
    results = evaluation_results(facts)
    sigmoid = facts.config.get("logit_bias_init_value") is not None
    extractor = _extractor(facts)
    data = ModelCardData(
        model_name=name,
        license=verdict.license,
        license_name=verdict.name,
        license_link=f"{CARD}#licence" if verdict.name else None,
        library_name="transformers",
        pipeline_tag="zero-shot-audio-classification",
        base_model=_base_models(facts) or None,
        tags=["supclap", "clap", "audio", "contrastive", "custom_code", "feature-extraction", "sentence-transformers"],
        eval_results=results or None,
        co2_eq_emissions=_emissions(facts),
    )
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        model_id=_quoted(model_id or str(folder)),
        summary=_summary(facts),
        pipeline_task=PIPELINE_TASK,
        template=_quoted((facts.recipe.get("zero_shot_templates") or ["This is a sound of {}."])[0]),
        sampling_rate=extractor.sampling_rate,
        architecture=_architecture(facts),
        evaluation=_evaluation(facts, results),
        training=_training(facts),
        data=_data(facts),
        compute=_compute(facts),
        license=_license(verdict),
        probability=", unless asked for with `multi_label=True`" if sigmoid else "",
        text_limit=_text_limit(facts.config["text_config"]),
        window=f"{_window_seconds(facts):g}",
        shortest=f"{1000 * extractor.hop_length / extractor.sampling_rate:g}",
        citation=CITATION,
    )


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
    names = {
        "model": f"The {base}",
        "text_encoder": f"The text encoder ({_shown(recipe.get('text_model') or config['text_config']['model_type'])})",
        "audio_encoder": f"The audio encoder ({_shown(recipe.get('audio_model') or config['audio_config']['model_type'])})",
    }
    found = part_licenses(recipe, config)
    return {
        names[part]: recorded[part] if recorded.get(part, UNKNOWN) != UNKNOWN else license
        for part, license in found.items()
    }


def training_licenses(facts: Facts) -> set[str]:
    if not facts.run:
        return {"unknown"}
    return set(facts.run["data"]["train"]["licences"])


def _is_random_audio(facts: Facts) -> bool:
    return (facts.recipe.get("audio_model") or "").startswith("random:")


def _shown(name: str | None) -> str:
    """A Hub id or relative folder as it is; of an absolute path, which may tell who trained where, the last part."""
    return Path(name).name if name and Path(name).is_absolute() else str(name)


def _base_models(facts: Facts) -> list[str]:
    """Hub ids among the models that the recipe names; folders and packages are none."""
    names = [facts.recipe.get(key) for key in ("checkpoint", "text_model", "audio_model")]
    return [name for name in names if name and name.count("/") == 1 and ":" not in name and not Path(name).exists()]


# ---- Figures ----


def evaluation_results(facts: Facts) -> list["EvalResult"]:
    """The entries of `model-index`: each metric with its interval, number of queries, data, revision and protocol."""
    from supclap.evaluation.tables import eval_result

    results = facts.results
    test = facts.run.get("data", {}).get("test", {})
    common = {
        "dataset_name": facts.data_name,
        "dataset_type": facts.data_name,
        "dataset_split": "test",
        "dataset_revision": test.get("revision"),
    }
    pool = results.get("pool_size")
    retrieval = {"n_clips": results.get("n_clips"), "pool_size": pool or results.get("n_clips")}
    if facts.recipe.get("test_scenes"):
        retrieval["scenes"] = dict(facts.recipe["test_scenes"])
    chosen_on = results.get("chosen_on")
    if len(results.get("languages") or ()) > 1:
        retrieval["mean_over_languages"] = results["languages"]
    entries = [
        eval_result("retrieval", name, metric, chosen_on, dataset_args=retrieval, **common)
        for name, metric in (results.get("retrieval") or {}).items()
    ]
    zero_shot = results.get("zero_shot")
    if zero_shot:
        protocol = {"n_labels": zero_shot["n_labels"], "templates": zero_shot["templates"]}
        entries.append(
            eval_result("zero_shot", "accuracy", zero_shot["accuracy"], chosen_on, dataset_args=protocol, **common)
        )
    return entries


def _evaluation(facts: Facts, results: list["EvalResult"]) -> str:
    if not results:
        return "Not evaluated."
    from supclap.evaluation.tables import CHOSEN_ON

    lines = []
    chosen = CHOSEN_ON[facts.results.get("chosen_on")]
    revision = facts.run.get("data", {}).get("test", {}).get("revision")
    lines.append(
        f"Measured at the end of the run on the test split of `{facts.data_name}`"
        + (f" (hash of ids and captions {revision})" if revision else "")
        + f", one run, seed {facts.results.get('seed')}; {chosen}. Intervals are 95 % bootstrap intervals over clips."
    )
    args = next((entry.dataset_args for entry in results if entry.task_type == "audio-text-retrieval"), None)
    if args:
        scenes = f" of scenes mixed from the clips ({_inline(args['scenes'])})" if "scenes" in args else ""
        lines.append(f"Retrieval{scenes}: {args['n_clips']} clips in pools of {args['pool_size']}, all captions.")
        if "mean_over_languages" in args:
            languages = ", ".join(args["mean_over_languages"])
            lines.append(f"Each metric of it is the unweighted mean over {languages}, each language on its own.")
    zero_shot = facts.results.get("zero_shot")
    if zero_shot:
        templates = ", ".join(f"`{template}`" for template in zero_shot["templates"])
        lines.append(f"Zero-shot classification: {zero_shot['n_labels']} classes, templates {templates}.")
    table = ["| metric | % | 95 % interval | n |", "| --- | ---: | --- | ---: |"]
    for entry in results:
        interval = " to ".join(f"{end:.1f}" for end in entry.metric_args.get("interval_95", [])) or "none"
        name = f"{entry.task_name.lower()}: {entry.metric_name}"
        table.append(f"| {name} | {entry.metric_value:.1f} | {interval} | {entry.metric_args['n']:,} |")
    return "\n".join(lines) + "\n\n" + "\n".join(table)


# ---- Sections ----


def _summary(facts: Facts) -> str:
    return (
        "An audio-text dual encoder (CLAP): it embeds sounds and texts into one space"
        f" of {facts.config['projection_dim']} dimensions. {_objective(facts)}"
    ).strip()


def _objective(facts: Facts) -> str:
    recipe = facts.recipe
    if not recipe:
        return ""
    base = {"infonce": "InfoNCE in both directions, summed", "siglip": "the sigmoid loss"}[recipe["objective"]]
    if recipe.get("svr") is None:
        return f"Trained with {base}, without support vector regularisation."
    radius = {"static": "one learned radius", "dynamic": "a radius predicted for each pair"}[recipe["svr"]]
    direction = {"bi": "in both directions", "uni": "from text to audio"}[recipe["svr_direction"]]
    beta = f", beta {recipe['constraint_weight']:g} on its constraint" if recipe["svr"] == "dynamic" else ""
    return (
        f"Trained with {base}, and support vector regularisation {direction} with {radius} "
        f"(alpha {recipe['svr_weight']:g}{beta}, initial radius {recipe['radius_init']:g})."
    )


def _architecture(facts: Facts) -> str:
    rows = []
    for tower in ("audio", "text"):
        config = facts.config[f"{tower}_config"]
        if config["model_type"] == "clap_audio_model":  # whose num_hidden_layers counts its stages
            config = {**config, "num_hidden_layers": sum(config["depths"])}
        size = ", ".join(
            f"{config[key]} {unit}"
            for key, unit in (
                ("num_hidden_layers", "layers"),
                ("encoder_layers", "layers"),
                ("hidden_size", "wide"),
                ("d_model", "wide"),
            )
            if config.get(key)
        )
        rows.append(f"- {tower} encoder: `{config['model_type']}`, {size}")
    layers = facts.config.get("projection_num_layers")
    rows.append(
        f"- projections: {layers} linear layer{'s' if layers != 1 else ''} each, to {facts.config['projection_dim']}"
    )
    extractor = _extractor(facts)
    features = getattr(extractor, "encoder_feature_extractor", extractor)
    bands = getattr(features, "num_mel_bins", features.feature_size)  # the first is AST's name
    rows.append(
        f"- input: {extractor.sampling_rate} Hz mono (other rates and channels are converted), "
        + ("the waveform itself" if bands == 1 else f"{bands} mel bands")
    )
    count = _parameter_count(facts.folder)
    if count:
        rows.append(f"- parameters: {count / 1e6:.1f} million")
    return "\n".join(rows)


def _extractor(facts: Facts) -> "SequenceFeatureExtractor":
    import processing_supclap

    fields = facts.processor["feature_extractor"]
    kinds = ("SupClapFeatureExtractor", "SupClapEncoderFeatureExtractor")
    if fields["feature_extractor_type"] not in kinds:
        raise ValueError(
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


def _parameter_count(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    return total


def _training(facts: Facts) -> str:
    if not facts.recipe:
        return "Nothing is recorded about the training."
    text = _shown(facts.recipe.get("text_model") or facts.recipe.get("checkpoint"))
    audio = "random weights" if _is_random_audio(facts) else f"`{_shown(facts.recipe.get('audio_model'))}`"
    start = f"Started from `{text}`" + ("." if facts.recipe.get("checkpoint") else f" (text) and {audio} (audio).")
    rows = ["| hyper-parameter | value |", "| --- | --- |"]
    overridden = {"num_train_epochs"} if (facts.recipe.get("max_steps") or 0) > 0 else set()
    rows += [
        f"| {key} | {_inline(_without_folders(facts.recipe[key]))} |"
        for key in HYPER_PARAMETERS
        if key not in overridden and facts.recipe.get(key) not in (None, False)
    ]
    curves = (
        f"\n\n![Loss, radius and retrieval over the steps]({TRAINING_CURVES})"
        if (facts.folder / TRAINING_CURVES).exists()
        else ""
    )
    return f"{start} {_objective(facts)}\n\n" + "\n".join(rows) + curves


def _data(facts: Facts) -> str:
    if not facts.run:
        return "Nothing is recorded about the training data."
    rows = ["| split | clips | hours | licences | hash |", "| --- | ---: | ---: | --- | --- |"]
    for split, data in facts.run["data"].items():
        hours = "unknown" if data["hours"] is None else f"{data['hours']:.3g}"
        clips = "a stream" if data["n_clips"] is None else f"{data['n_clips']:,}"
        revision = data["revision"] or data["streamed"]
        rows.append(f"| {split} | {clips} | {hours} | {_counted(data['licences'])} | {revision} |")
    train = facts.run["data"]["train"]
    sources = _counted(train["sources"])
    authors = f"\n\nAuthors named by the training rows: {', '.join(train['authors'])}." if train["authors"] else ""
    mixture = ""
    if train.get("mixture"):
        mixture = f"\n\nAn epoch of the mixture takes so many clips of each: {_counted(train['mixture'])}."
    return (
        f"`{facts.data_name}`.\n\n"
        + "\n".join(rows)
        + f"{mixture}\n\nSources of the training clips: {sources}.{authors}"
    )


def _counted(counts: dict[str, int | None]) -> str:
    return ", ".join(name if count is None else f"{name} ({count:,})" for name, count in counts.items())


def _compute(facts: Facts) -> str:
    if not facts.run:
        return "Nothing is recorded about the hardware or the time."
    run, machine = facts.run, facts.run["machine"]
    resumed = f" (this part of a resumed run; the time before step {run['first_step']} is not recorded)"
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{_hardware(facts)}, {machine['processes']} process(es) of {machine['threads']} thread(s). Steps {run['first_step']} to "
        f"{run['last_step']} with their validation took {run['seconds'] / 60:.1f} minutes"
        f"{resumed if run['first_step'] else ''}. Python {machine['python']}, {versions}. {_emissions_text(facts)}"
    )


def _hardware(facts: Facts) -> str:
    machine = facts.run["machine"]
    accelerators = machine["accelerators"]
    return f"{len(accelerators)} x {accelerators[0]}" if accelerators else machine["processor"]


def _emissions(facts: Facts) -> dict | None:
    """The entry of the card's metadata, in the Hub's unit."""
    if not (facts.run and facts.emissions):
        return None
    return {
        "emissions": float(f"{1000 * sum(facts.emissions):.4g}"),  # g
        "source": "codecarbon",
        "training_type": "fine-tuning" if facts.recipe.get("checkpoint") else "pre-training",
        "hardware_used": _hardware(facts),
    }


def _emissions_text(facts: Facts) -> str:
    if not facts.emissions:
        return (
            "Energy and CO2 were not measured; with `pip install codecarbon` and `report_to: codecarbon` in the "
            "`training` section a run measures them."
        )
    processes = len(facts.emissions)
    parts = (
        f" in the {processes} of its parts that were not killed" if processes > 1 or facts.run["first_step"] else ""
    )
    return f"By codecarbon's estimate, training emitted {sum(facts.emissions):.3g} kg of CO2 equivalents{parts}."


def _license(verdict: LicenseVerdict) -> str:
    name = verdict.name or verdict.license
    reasons = "\n".join(f"- {reason}" for reason in verdict.reasons)
    return f"Weights: {name}. The code that travels with them: Apache-2.0." + (f"\n\n{reasons}" if reasons else "")


def _text_limit(config: dict) -> str:
    limit = config.get("max_position_embeddings")
    return f"up to {limit} tokens" if limit else "as many tokens as its tokenizer allows"


def _quoted(text: str) -> str:
    """A string as Python code writes it, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _without_folders(value: Any) -> Any:
    """A value of a recipe with absolute paths as [`_shown`] writes them."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return _shown(value) if isinstance(value, str) else value


def _inline(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else json.dumps(value)
        if isinstance(value, dict | list)
        else str(value)
    )
