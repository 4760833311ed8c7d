"""Which license the weights of a model may carry, given those of the parts and the data that it was made of.

The rule: where a part or the training data is non-commercial, the model is non-commercial too, and a license that allows
commercial use is refused. Everywhere else the publisher chooses; until then the card says that no license is chosen.
What the other terms of the parts and the data ask for (attribution, share-alike) is for the publisher to judge; the
card names the parts, and the license of each group of training clips.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supclap.errors import LicenseError
from supclap.files import CARD


UNKNOWN = "unknown"
# The names that our cards give to a license without one identifier. A card of a model derived from ours reads them again.
UNKNOWN_TERMS = "unknown-terms"
SEVERAL_NONCOMMERCIAL = "several-licenses-noncommercial"
# The field of a converted model's config.json that holds the license of what it was converted from. The spelling stays,
# because saved checkpoints have it.
SOURCE_LICENSE = "source_licence"
# Encoders whose published weights are all non-commercial. SONAR and NLLB share this architecture.
NONCOMMERCIAL_ARCHITECTURES = {"m2m_100": "cc-by-nc-4.0"}

_UNSTATED = ("", UNKNOWN, UNKNOWN_TERMS, "not-stated", "none", "other")
_CREATIVE_COMMONS = re.compile(
    r"(?:cc|creative-commons|https?-(?:www\.)?creativecommons\.org-licenses)-(by(?:-nc)?(?:-sa|-nd)?)-(\d\.\d)"
    r"(?:-international|-unported|-deed(?:\.[a-z]{2})?|-legalcode)*"
)
# The last three are identifiers of the Hub whose texts, though not their names, allow research alone.
_NONCOMMERCIAL = re.compile(
    r"(?<![a-z])(?:nc|non?-?commercial|not-for-commercial|(?:academic|research)(?:-[a-z]+){0,2}-only|"
    r"apple-amlr|intel-research|deepfloyd)(?![a-z])"
)
# The identifiers that are written as they are. The Hub knows more, but any other stands well as the name of an "other".
_HUB_IDENTIFIER = re.compile(
    r"apache-2\.0|mit|bsd-[23]-clause|[al]?gpl-3\.0|mpl-2\.0|unlicense|cc0-1\.0|cc-by(?:-nc)?(?:-sa|-nd)?-\d\.\d"
)


# ---- The rule ----


@dataclass
class LicenseVerdict:
    """What a card says about the license of the weights.

    Attributes:
        license: Identifier of the Hub, or `"other"`.
        name: Name of an `"other"` license; `None` beside an identifier.
        reasons: Why it is this one: one sentence each.
    """

    license: str
    name: str | None = None
    reasons: list[str] = field(default_factory=list)


def decide_license(parts: Mapping[str, str], data: Iterable[str], wanted: str | None = None) -> LicenseVerdict:
    """The license of a model.

    Args:
        parts: License of each pretrained part, by the name that messages call it.
        data: Licenses of the training data, as its rows state them.
        wanted: The license that the publisher asks for.

    Returns:
        `wanted`; when it is omitted, the license that the non-commercial parts and data share, or an `"other"` whose name
        says that there are several of them, or that no license is chosen.

    Raises:
        LicenseError: A part or the data is non-commercial and `wanted` is not.
    """
    terms = [*parts.items(), *(("Part of the training data", text) for text in sorted({text or "" for text in data}))]
    noncommercial = [(name, text) for name, text in terms if is_noncommercial(text)]
    reasons = [f"{name} is {text}, which allows no commercial use." for name, text in noncommercial]
    if wanted is not None and noncommercial and not is_noncommercial(wanted):
        raise LicenseError(
            f"The license {wanted!r} is refused: {' '.join(reasons)} Leave it out, or name a non-commercial one."
        )
    reasons += [f"{name} states no license." for name, text in terms if normalize_license(text) == UNKNOWN]
    if wanted is not None:
        return named_license(wanted, reasons)
    shared = {normalize_license(text) for _, text in noncommercial}
    if not shared:
        reasons.append("No license was chosen; `--license` of `supclap card` and `supclap push` states one.")
        return named_license(UNKNOWN, reasons)
    return named_license(shared.pop() if len(shared) == 1 else SEVERAL_NONCOMMERCIAL, reasons)


def named_license(license: str, reasons: Iterable[str] = ()) -> LicenseVerdict:
    """A license under its identifier or, where it is no common identifier of the Hub, as `"other"` under its name."""
    license = normalize_license(license)
    if _HUB_IDENTIFIER.fullmatch(license):
        return LicenseVerdict(license, reasons=list(reasons))
    return LicenseVerdict("other", UNKNOWN_TERMS if license == UNKNOWN else license, list(reasons))


def normalize_license(text: str | None) -> str:
    """One spelling for the many in which corpora and cards write a license.

    Returns:
        `"cc-by-nc-3.0"` for `"CC BY-NC 3.0"` or the address of its deed, other words in lower case and joined by
        hyphens, and `"unknown"` where nothing is stated.
    """
    words = re.sub(r"[^a-z0-9.+]+", "-", str(text or "").lower()).strip("-.")
    if words in _UNSTATED:
        return UNKNOWN
    match = _CREATIVE_COMMONS.fullmatch(words)
    return f"cc-{match[1]}-{match[2]}" if match else words


def is_noncommercial(license: str) -> bool:
    """Whether the words of a license say that it allows non-commercial, academic or research use alone."""
    return bool(_NONCOMMERCIAL.search(normalize_license(license)))


# ---- What parts and cards state ----


def part_licenses(recipe: Mapping, config: Mapping) -> dict[str, str]:
    """The license of each pretrained part of a model; parts that started from random weights have none.

    Args:
        recipe: The recipe of the training run; empty when the model was converted or saved by hand.
        config: The model's configuration, which names where its encoders were loaded from.

    Returns:
        Licenses of `model` (what training went on from, or what was converted), or of `text_encoder` and
        `audio_encoder`.
    """
    base = recipe.get("checkpoint") or recipe.get("model")  # "model" is the key's name in older recipes
    if base:
        return {"model": license_of_model(base, config["text_config"].get("model_type"))}
    if not recipe and config.get(SOURCE_LICENSE):
        return {"model": config[SOURCE_LICENSE]}
    licenses = {}
    for tower in ("text", "audio"):
        encoder = config[f"{tower}_config"]
        name = encoder.get("_name_or_path") or ""
        license = license_of_model(name, encoder.get("model_type"))
        if license == UNKNOWN:
            license = encoder.get(SOURCE_LICENSE, UNKNOWN)
        if name or license != UNKNOWN:
            licenses[f"{tower}_encoder"] = license
    return licenses


def license_of_model(name: str, model_type: str | None = None) -> str:
    """The license of pretrained weights: what their own card says, else what is known of their architecture.

    Args:
        name: A folder, or a Hub id, whose card is looked up in the local cache alone.
        model_type: The architecture, as its config names it.

    Returns:
        A license in the spelling of [`normalize_license`]; of several that a card states, a non-commercial one.
    """
    from huggingface_hub import try_to_load_from_cache

    card = Path(name) / CARD
    if not Path(name).is_dir():
        try:
            cached = try_to_load_from_cache(name, CARD)
        except ValueError:  # the name is no valid Hub id
            cached = None
        card = Path(cached if isinstance(cached, str) else name)
    known = stated_licenses(card) if name and card.is_file() else []
    if known:
        return next(filter(is_noncommercial, known), known[0])
    return NONCOMMERCIAL_ARCHITECTURES.get(model_type or "", UNKNOWN)


def stated_licenses(card: Path) -> list[str]:
    """The licenses that the front matter of a card states: none, one or several, of `other` its name."""
    import yaml
    from huggingface_hub import ModelCard

    try:
        data = ModelCard.load(card, ignore_metadata_errors=True).data
    except (ValueError, yaml.YAMLError):  # a broken front matter states nothing
        return []
    stated = data.license if isinstance(data.license, list) else [data.license]
    names = [data.get("license_name") if license == "other" else license for license in stated]
    return [license for license in map(normalize_license, names) if license != UNKNOWN]
