"""`supclap convert` turns a published checkpoint into a folder that this library and the Auto classes open."""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import ModelCardData
from transformers import AutoTokenizer, PreTrainedModel

from processing_supclap import SupClapEncoderFeatureExtractor, SupClapFeatureExtractor, SupClapProcessor
from supclap.conversion.ced import load_ced_checkpoint
from supclap.conversion.laion_clap import load_laion_clap_checkpoint, own_extractor
from supclap.conversion.ml_clap import load_ml_clap_checkpoint
from supclap.conversion.sonar import load_sonar_checkpoint
from supclap.files import CARD, check_is_new, replacing
from supclap.publishing.licenses import SOURCE_LICENSE, UNKNOWN, is_noncommercial, license_of_model, named_license
from supclap.publishing.model_card import MARKER


KINDS: dict[str, Callable[[str | Path], PreTrainedModel]] = {
    "ced": load_ced_checkpoint,
    "sonar": load_sonar_checkpoint,
    "ml-clap": load_ml_clap_checkpoint,
    "laion-clap": load_laion_clap_checkpoint,
}
# Both contain SONAR's weights, which are not for commercial use, whatever the card of a copy says.
NON_COMMERCIAL = {"sonar": "cc-by-nc-4.0", "ml-clap": "cc-by-nc-4.0"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def convert(kind: str, source: str | Path, out: str | Path, tokenizer: str | None = None) -> PreTrainedModel:
    """Converts a published checkpoint and writes a folder with the model, its feature extractor and its tokenizer.

    The license that the source folder states goes along, into `README.md` and `config.json`.

    Args:
        kind: One of `KINDS`.
        source: The published file or folder.
        out: Folder to write.
        tokenizer: Folder or Hub id of the tokenizer. When omitted, it is that of the source folder, if there is one.

    Returns:
        The converted model.

    Raises:
        FileExistsError: `out` exists and is not an empty folder.
        FileNotFoundError: There is no checkpoint at `source`.
        ConversionError: The checkpoint is not of that kind; the message names the keys.
    """
    out = Path(out)
    check_is_new(out)
    model = KINDS[kind](source)
    license = license_of_model(str(source)) if Path(source).is_dir() else UNKNOWN
    if not is_noncommercial(license):
        license = NON_COMMERCIAL.get(kind, license)
    if license != UNKNOWN:
        setattr(model.config, SOURCE_LICENSE, license)
    parts = _parts_beside(kind, source, tokenizer)
    with replacing(out) as part:
        part.mkdir()
        model.save_pretrained(part)
        if license != UNKNOWN:
            (part / CARD).write_text(_readme(kind, out.name, license), encoding="utf-8")
        for each in parts:
            each.save_pretrained(part)
    return model


def _readme(kind: str, name: str, license: str) -> str:
    """A `README.md` that states the license until a card takes its place."""
    verdict = named_license(license)
    front_matter = ModelCardData(license=verdict.license, license_name=verdict.name).to_yaml()
    return (
        f"---\n{front_matter}\n---\n{MARKER}convert`; `supclap card` replaces it. -->\n\n# {name}\n\n"
        f"Weights converted from a published checkpoint (`supclap convert {kind}`), under its license.\n"
    )


def _parts_beside(kind: str, source: str | Path, tokenizer: str | None) -> list:
    """Returns what is saved beside a model: the feature extractor, the tokenizer, or the processor of both."""
    parts = []
    if kind == "laion-clap":
        parts.append(SupClapEncoderFeatureExtractor(own_extractor(source)))
    elif kind != "sonar":
        parts.append(SupClapFeatureExtractor())
    if kind != "ced":
        if tokenizer is None and any((Path(source) / name).is_file() for name in TOKENIZER_FILES):
            tokenizer = str(source)
        if tokenizer is not None:
            parts.append(AutoTokenizer.from_pretrained(tokenizer))
    return [SupClapProcessor(*parts)] if len(parts) == 2 else parts
