"""Which licence a model may carry, given those of its towers and its training data."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supclap.errors import LicenseError, RecipeError


UNKNOWN = "unknown"
# Encoders whose published weights have only non-commercial terms: SONAR and NLLB share this architecture.
NONCOMMERCIAL_ARCHITECTURES = {"m2m_100": "cc-by-nc-4.0"}
_CREATIVE_COMMONS_URL = re.compile(r"creativecommons\.org/(?:licenses/([a-z-]+)|publicdomain/(zero))/(\d\.\d)")
# A country or edition may follow; other words would restrict what stands before them.
_CREATIVE_COMMONS = re.compile(
    r"^cc[\s-]*(0|by(?:[\s-]+(?:nc|sa|nd))*)(?:[\s-]+v?(\d\.\d))?"
    r"(?:[\s-]+(?:international|unported|generic|universal|public domain dedication|licen[cs]e|deed|[a-z]{2}))*$"
)
# The Hub's identifiers beside Creative Commons.
_IDENTIFIERS = (
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 "
    "etalab-2.0 eupl-1.1 eupl-1.2 gemma gfdl gpl gpl-2.0 gpl-3.0 intel-research isc lgpl lgpl-2.1 lgpl-3.0 "
    "lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 "
    "openmdw-1.0 openrail openrail++ osl-3.0 pddl postgresql unlicense wtfpl zlib"
)
_HUB_CREATIVE_COMMONS = re.compile(r"cc|cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-\d\.\d")
# Those whose holders let others publish what is derived from their work under terms of their own, if they are named.
_PERMISSIVE = (
    "afl-3.0 apache-2.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cdla-permissive-1.0 "
    "cdla-permissive-2.0 ecl-2.0 etalab-2.0 isc mit ncsa odc-by openmdw-1.0 pddl postgresql unlicense wtfpl zlib"
)
_PERMISSIVE_CREATIVE_COMMONS = re.compile(r"cc0-\d\.\d|cc-by(-\d\.\d)?")
# Identifiers whose texts allow research or non-commercial use alone, though their names do not say so.
_NONCOMMERCIAL = {"apple-amlr", "deepfloyd-if-license", "intel-research"}
_SHARE_ALIKE_TERMS = {"sa", "gpl", "agpl", "lgpl", "gfdl", "odbl", "osl", "eupl", "mpl", "epl", "sharing"}
# Where the configuration of a converted model keeps the licence of what it was converted from.
SOURCE_LICENCE = "source_licence"
# The names under "other" of our own cards, which a card of a model derived from ours reads again.
UNKNOWN_TERMS = "unknown-terms"
SEVERAL_NONCOMMERCIAL = "several-licences-noncommercial"
_RESEARCH_ONLY = re.compile(
    r"non[\s-]commercial|\bacademic\b(?! free)|\bresearch[\s-]+(?:(?:use|purposes?)[\s-]+)?only"
)
_NAMES = {
    "apache 2.0": "apache-2.0",
    "apache-2.0": "apache-2.0",
    "apache license 2.0": "apache-2.0",
    "mit": "mit",
    "attribution": "cc-by",
    "attribution noncommercial": "cc-by-nc",
    "creative commons 0": "cc0-1.0",
    "public domain": "cc0-1.0",
}


def normalise_licence(name: str | None) -> str:
    """The Hub's identifier of a licence from how corpora and cards write it, e.g. `"CC BY 3.0"` or a deed's address.

    Names it does not know come back in lower case; `None` and empty ones are `"unknown"`.
    """
    text = " ".join((name or "").strip().lower().replace("_", "-").split())
    if text in ("", UNKNOWN, UNKNOWN_TERMS, "not stated", "none", "other"):
        return UNKNOWN
    if match := _CREATIVE_COMMONS_URL.search(text):
        kind, zero, version = match.groups()
        return f"cc0-{version}" if zero else f"cc-{kind}-{version}"
    if match := _CREATIVE_COMMONS.match(text):
        kind, version = match.groups()
        if kind == "0":
            return "cc0-1.0"
        kind = re.sub(r"\s+", "-", kind)
        return f"cc-{kind}-{version}" if version else f"cc-{kind}"
    return _NAMES.get(text, text)


def _terms(licence: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", licence))


def is_noncommercial(licence: str) -> bool:
    """Whether terms, of an identifier or in words, keep to non-commercial, academic or research use."""
    if licence in _NONCOMMERCIAL:
        return True
    return bool(_terms(licence) & {"nc", "noncommercial"}) or bool(_RESEARCH_ONLY.search(licence))


def is_permissive(licence: str) -> bool:
    """Whether a (normalised) licence is known to let what is derived carry another one."""
    return licence in _PERMISSIVE.split() or bool(_PERMISSIVE_CREATIVE_COMMONS.fullmatch(licence))


def is_identifier(licence: str) -> bool:
    """Whether the Hub takes a (normalised) licence for its `license` field."""
    return licence in _IDENTIFIERS.split() or bool(_HUB_CREATIVE_COMMONS.fullmatch(licence))


def _is_understood(licence: str) -> bool:
    return is_identifier(licence) or licence.startswith("cc-by")


def is_share_alike(licence: str) -> bool:
    return bool(_terms(licence) & _SHARE_ALIKE_TERMS)


@dataclass
class LicenceVerdict:
    """What a card may say.

    Attributes:
        licence: The Hub's identifier of the model's licence, `"other"` where none fits.
        name: Name of an `"other"` licence.
        reasons: Why, one sentence each, for the card.
    """

    licence: str
    name: str | None = None
    reasons: list[str] = field(default_factory=list)


def single_licence(licence: str, reasons: list[str]) -> LicenceVerdict:
    """One licence taken over, under its identifier or, where the Hub has none, as `"other"` under its name."""
    if is_identifier(licence):
        return LicenceVerdict(licence, reasons=reasons)
    # the Hub's names are of these characters
    name = re.sub(r"[^a-z0-9.]+", "-", licence).strip("-.")
    return LicenceVerdict("other", UNKNOWN_TERMS if licence == UNKNOWN else name, reasons)


def propagate(towers: dict[str, str], data: Iterable[str], wanted: str | None = None) -> LicenceVerdict:
    """The licence of a model from those of what it was made of.

    Non-commercial terms of a tower or of data always win. Other terms that are not known to be permissive (copyleft, no
    derivatives, use restrictions, words that are no licence known here) stay what they are. Share-alike terms of data are
    taken over unless another licence is asked for: whether weights are an adaptation of the recordings is unsettled, so
    the card says it either way. Unknown terms give `"other"`, and forbid nothing that is asked for.

    Args:
        towers: Licence of each pretrained part, by its name.
        data: Licences of the training data.
        wanted: The licence that the publisher asks for.

    Raises:
        LicenseError: A part or the data forbids `wanted`: it is non-commercial and `wanted` is not, or its terms are not
            known to be permissive and `wanted` is another licence.
    """
    towers = {name: normalise_licence(licence) for name, licence in towers.items()}
    data = sorted({normalise_licence(licence) for licence in data})
    parts = [(name, licence, False) for name, licence in towers.items()]
    parts += [("Part of the training data", licence, True) for licence in data]
    restricted = [(name, licence) for name, licence, _ in parts if is_noncommercial(licence)]
    others = [part for part in parts if part[1] != UNKNOWN and not is_noncommercial(part[1])]
    unclear = [(name, licence) for name, licence, _ in others if not _is_understood(licence)]
    bound = [
        (name, licence)
        for name, licence, is_data in others
        if _is_understood(licence) and not is_permissive(licence) and not (is_data and is_share_alike(licence))
    ]
    forbidding = [
        *(f"{name} is {licence}, which allows no commercial use." for name, licence in restricted),
        *(f"{name} is under terms that are no licence known here ({licence})." for name, licence in unclear),
        *(f"{name} is {licence}, which is not known to allow another licence." for name, licence in bound),
    ]
    unknown = [name for name, licence in towers.items() if licence == UNKNOWN]
    unknown += ["part of the training data"] if UNKNOWN in data else []
    reasons = forbidding + [f"The licence of {name} is not known." for name in unknown]
    alike = sorted({licence for _, licence, _ in parts if is_share_alike(licence)})
    if alike:
        reasons.append(
            f"Part of what it was made of is share-alike ({', '.join(alike)}). Whether weights are an adaptation of the "
            "recordings they were trained on is unsettled; the careful reading is that those terms extend to them."
        )
    attribution = sorted(licence for licence in data if licence.startswith("cc-by"))
    if attribution:
        reasons.append(f"Data under {', '.join(attribution)} asks for attribution; see the training data.")

    if wanted is not None:
        wanted = normalise_licence(wanted)
        stays = {licence for _, licence in (bound if is_noncommercial(wanted) else [*bound, *unclear])}
        if (restricted and not is_noncommercial(wanted)) or stays - {wanted}:
            fix = "Leave it out" if bound else "Leave it out, or name a non-commercial one"
            raise LicenseError(f"The licence {wanted!r} is refused: {' '.join(forbidding)} {fix}.")
        return single_licence(wanted, reasons)
    binding = sorted({*(licence for _, licence in [*restricted, *bound]), *alike})
    if restricted:
        return single_licence(binding[0], reasons) if len(binding) == 1 else _several(SEVERAL_NONCOMMERCIAL, reasons)
    if unclear:
        return _several("terms-of-their-own", reasons)
    if unknown:
        return _several(UNKNOWN_TERMS, reasons)
    if binding:
        shared = "several-share-alike-licences" if binding == alike else "several-licences"
        return single_licence(binding[0], reasons) if len(binding) == 1 else _several(shared, reasons)
    if len(set(towers.values())) == 1:
        return single_licence(next(iter(towers.values())), reasons)
    if set(towers.values()) <= {"apache-2.0", "mit"}:
        return LicenceVerdict("apache-2.0", reasons=reasons)
    return _several("several-licences", reasons)


def _several(name: str, reasons: list[str]) -> LicenceVerdict:
    return LicenceVerdict("other", name, reasons)


def licence_of_model(name: str, model_type: str | None = None) -> str:
    """The licence of pretrained weights: what their own card says, else what is known of their architecture.

    Args:
        name: A folder, or a Hub id that is looked up in the local cache only.
        model_type: Architecture, as in its config.

    Returns:
        The Hub's identifier, or `"unknown"`.
    """
    from huggingface_hub import try_to_load_from_cache

    card = Path(name) / "README.md"
    if not Path(name).is_dir():
        try:
            cached = try_to_load_from_cache(name, "README.md")
        except ValueError:  # no valid Hub id
            cached = None
        card = Path(cached if isinstance(cached, str) else name)
    stated = [] if not (name and card.is_file()) else stated_licences(card)
    known = [licence for licence in map(normalise_licence, stated) if licence != UNKNOWN]
    if known:  # of several, the one that restricts most
        return min(known, key=lambda licence: (not is_noncommercial(licence), is_permissive(licence)))
    return NONCOMMERCIAL_ARCHITECTURES.get(model_type or "", UNKNOWN)


def stated_licences(card: Path) -> list[str]:
    """What the front matter of a card says: one licence or several, of `other` the name."""
    import yaml
    from huggingface_hub import ModelCard

    try:
        data = ModelCard.load(card, ignore_metadata_errors=True).data
    except (ValueError, yaml.YAMLError):  # broken front matter says nothing
        return []
    stated = data.license if isinstance(data.license, list) else [data.license]
    return [str(data.get("license_name") or "") if licence == "other" else str(licence or "") for licence in stated]


# ---- The parts of a model ----


def part_licences(recipe: Mapping, config: Mapping) -> dict[str, str]:
    """The licence of each pretrained part of a model; parts from random weights have none.

    Args:
        recipe: That of the training run; empty when the model was converted or saved by hand.
        config: The model's configuration.

    Returns:
        Licences of `model` (what training went on from, or what was converted), or of `text_encoder` and
        `audio_encoder`.
    """
    text_type = config["text_config"].get("model_type")
    if recipe.get("checkpoint"):
        return {"model": licence_of_model(recipe["checkpoint"], text_type)}
    if not recipe and config.get(SOURCE_LICENCE):
        return {"model": config[SOURCE_LICENCE]}
    if not recipe:
        return {f"{tower}_encoder": _licence_of_tower(config[f"{tower}_config"]) for tower in ("text", "audio")}
    licences = {"text_encoder": licence_of_model(_resolve(recipe.get("text_model") or ""), text_type)}
    audio = recipe.get("audio_model")
    if audio and not audio.startswith("random:"):
        licences["audio_encoder"] = licence_of_model(audio)
    return licences


def _licence_of_tower(config: Mapping) -> str:
    found = licence_of_model(config.get("_name_or_path") or "", config.get("model_type"))
    return config.get(SOURCE_LICENCE, UNKNOWN) if found == UNKNOWN else found


def _resolve(name: str) -> str:
    from supclap.files import resolve_model_path

    try:
        return resolve_model_path(name)
    except RecipeError:  # a package that this machine lacks: nothing is known of it here
        return name
