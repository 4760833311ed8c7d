"""`supclap convert`: a published checkpoint to a folder that everything here, and the Auto classes, open."""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import ModelCardData
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from processing_supclap import SupClapFeatureExtractor, SupClapProcessor
from supclap.conversion.ced import load_ced_checkpoint
from supclap.conversion.laion_clap import laion_clap_feature_extractor, load_laion_clap_checkpoint
from supclap.conversion.ml_clap import load_ml_clap_checkpoint
from supclap.conversion.sonar import load_sonar_checkpoint
from supclap.files import CARD, replacing
from supclap.publishing.licenses import SOURCE_LICENSE, UNKNOWN, is_noncommercial, license_of_model, named_license
from supclap.publishing.model_card import MARKER


# kind -> (loader, feature extractor of the source or None for a text encoder)
KINDS: dict[str, tuple[Callable, Callable | None]] = {
    "ced": (load_ced_checkpoint, lambda source: SupClapFeatureExtractor()),
    "sonar": (load_sonar_checkpoint, None),
    "ml-clap": (load_ml_clap_checkpoint, lambda source: SupClapFeatureExtractor()),
    "laion-clap": (load_laion_clap_checkpoint, laion_clap_feature_extractor),
}
NON_COMMERCIAL = {"sonar": "cc-by-nc-4.0", "ml-clap": "cc-by-nc-4.0"}  # whatever a copy of them says
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def convert(kind: str, source: str | Path, out: str | Path, tokenizer: str | None = None) -> PreTrainedModel:
    """Converts a published checkpoint and writes the whole folder at once: model, feature extractor, tokenizer.

    The license that the source folder states goes along, into `README.md` and `config.json`.

    Args:
        kind: One of `KINDS`.
        source: The published file or folder.
        out: Folder to write.
        tokenizer: Folder or Hub id of the tokenizer; that of the source folder, if it has one, when omitted.

    Returns:
        The converted model.

    Raises:
        FileExistsError: `out` exists and is not an empty folder.
        FileNotFoundError: There is no checkpoint at `source`.
        ValueError: The checkpoint is not of that kind; the message names the keys.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists already; choose another folder or remove it.")
    load, feature_extractor = KINDS[kind]
    model = load(source)
    license = license_of_source(kind, source)
    if license != UNKNOWN:
        setattr(model.config, SOURCE_LICENSE, license)
    words = None if kind == "ced" else _tokenizer(source, tokenizer)
    with replacing(out) as part:
        part.mkdir()
        model.save_pretrained(part)
        if license != UNKNOWN:
            (part / CARD).write_text(_readme(kind, out.name, license), encoding="utf-8")
        if feature_extractor is None or words is None:
            for saved in (words, feature_extractor and feature_extractor(source)):
                if saved is not None:
                    saved.save_pretrained(part)
        else:
            SupClapProcessor(feature_extractor(source), words).save_pretrained(part)
    return model


def license_of_source(kind: str, source: str | Path) -> str:
    """The license of a published checkpoint: that of its folder's card, but non-commercial where its kind is."""
    stated = license_of_model(str(source)) if Path(source).is_dir() else UNKNOWN
    return stated if is_noncommercial(stated) else NON_COMMERCIAL.get(kind, stated)


def _readme(kind: str, name: str, license: str) -> str:
    """A `README.md` that states the license until a card takes its place."""
    verdict = named_license(license)
    front_matter = ModelCardData(license=verdict.license, license_name=verdict.name).to_yaml()
    return (
        f"---\n{front_matter}\n---\n{MARKER}convert`; `supclap card` replaces it. -->\n\n# {name}\n\n"
        f"Weights converted from a published checkpoint (`supclap convert {kind}`), under its license.\n"
    )


def _tokenizer(source: str | Path, tokenizer: str | None) -> PreTrainedTokenizerBase | None:
    if tokenizer is None and not any((Path(source) / name).is_file() for name in TOKENIZER_FILES):
        return None
    return AutoTokenizer.from_pretrained(str(source) if tokenizer is None else tokenizer)
