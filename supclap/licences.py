"""Which licence a model may carry, given those of its towers and its training data."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


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


class LicenceError(ValueError):
    """A licence that the towers or the training data do not allow."""


def normalise_licence(name: str | None) -> str:
    """The Hub's identifier of a licence from how corpora and cards write it, e.g. `"CC BY 3.0"` or a deed's address.

    Names it does not know come back in lower case; `None` and empty ones are `"unknown"`.
    """
    text = " ".join((name or "").strip().lower().replace("_", "-").split())
    if text in ("", UNKNOWN, "not stated", "none", "other"):
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
    return bool(_terms(licence) & {"nc", "noncommercial"}) or bool(_RESEARCH_ONLY.search(licence))


def is_identifier(licence: str) -> bool:
    """Whether the Hub takes a (normalised) licence for its `license` field."""
    return licence in _IDENTIFIERS.split() or bool(_HUB_CREATIVE_COMMONS.fullmatch(licence))


def _is_understood(licence: str) -> bool:
    return is_identifier(licence) or licence.startswith("cc-by")


def is_share_alike(licence: str) -> bool:
    return "sa" in _terms(licence) or bool(_terms(licence) & {"gpl", "agpl"})


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


def _single(licence: str, reasons: list[str]) -> LicenceVerdict:
    """One licence taken over, under its identifier or, where the Hub has none, as `"other"` under its name."""
    if is_identifier(licence):
        return LicenceVerdict(licence, reasons=reasons)
    # the Hub's names are of these characters
    name = re.sub(r"[^a-z0-9.]+", "-", licence).strip("-.")
    return LicenceVerdict("other", "unknown-terms" if licence == UNKNOWN else name, reasons)


def propagate(towers: dict[str, str], data: Iterable[str], wanted: str | None = None) -> LicenceVerdict:
    """The licence of a model from those of what it was made of.

    Non-commercial terms of a tower or of data always win. Unknown terms, and terms in words that are no licence known
    here, give `"other"`. Share-alike terms of data are taken over unless another licence is asked for: whether weights
    are an adaptation of the recordings is unsettled, so the card says it either way.

    Args:
        towers: Licence of each pretrained part, by its name.
        data: Licences of the training data.
        wanted: The licence that the publisher asks for.

    Raises:
        LicenceError: `wanted` allows commercial use, or is no identifier, where a part or data does not, or states terms
            that are no licence known here.
    """
    towers = {name: normalise_licence(licence) for name, licence in towers.items()}
    data = sorted({normalise_licence(licence) for licence in data})
    everything = {*towers.values(), *data}
    restricted = {name: licence for name, licence in towers.items() if is_noncommercial(licence)}
    restricted |= {f"training data under {licence}": licence for licence in data if is_noncommercial(licence)}
    named = [*towers.items(), *(("part of the training data", licence) for licence in data)]
    unclear = [
        (name, licence)
        for name, licence in named
        if licence != UNKNOWN and not is_noncommercial(licence) and not _is_understood(licence)
    ]
    reasons = [f"{name} is {licence}, which allows no commercial use." for name, licence in restricted.items()]
    reasons += [f"{name} is under terms that are no licence known here ({licence})." for name, licence in unclear]
    unknown = [name for name, licence in towers.items() if licence == UNKNOWN]
    unknown += ["part of the training data"] if UNKNOWN in data else []
    reasons += [f"The licence of {name} is not known." for name in unknown]
    alike = sorted(licence for licence in everything if is_share_alike(licence))
    if alike:
        reasons.append(
            f"Part of what it was made of is share-alike ({', '.join(alike)}). Whether weights are an adaptation of the "
            "recordings they were trained on is unsettled; the careful reading is that those terms extend to them."
        )
    attribution = sorted(licence for licence in data if licence.startswith("cc-by"))
    if attribution:
        reasons.append(f"Data under {', '.join(attribution)} asks for attribution; see the training data.")

    wanted = None if wanted is None else normalise_licence(wanted)
    if wanted is not None:
        if (restricted or unclear) and not is_noncommercial(wanted):
            raise LicenceError(
                f"The licence {wanted!r} is refused: {' '.join(reasons[: len(restricted) + len(unclear)])} Leave it out, "
                "or name a non-commercial one."
            )
        return _single(wanted, reasons)
    if restricted:
        binding = set(restricted.values()) | set(alike)
        if len(binding) == 1:
            return _single(binding.pop(), reasons)
        return LicenceVerdict("other", "several-licences-noncommercial", reasons)
    if unknown or unclear:
        return LicenceVerdict("other", "unknown-terms", reasons)
    if len(alike) == 1:
        return _single(alike[0], reasons)
    if alike:
        return LicenceVerdict("other", "several-share-alike-licences", reasons)
    permissive = {licence for licence in towers.values() if licence in ("apache-2.0", "mit")}
    if len(permissive) == 1 and len(set(towers.values())) == 1:
        return LicenceVerdict(permissive.pop(), reasons=reasons)
    if set(towers.values()) <= {"apache-2.0", "mit"}:
        return LicenceVerdict("apache-2.0", reasons=reasons)
    return LicenceVerdict("other", "several-licences", reasons)


def licence_of_model(name: str, model_type: str | None = None) -> str:
    """The licence of pretrained weights: what their own card says, else what is known of their architecture.

    Args:
        name: A folder, or a Hub id that is looked up in the local cache only.
        model_type: Architecture, as in its config.

    Returns:
        The Hub's identifier, or `"unknown"`.
    """
    import yaml
    from huggingface_hub import ModelCard, try_to_load_from_cache

    card = Path(name) / "README.md"
    if not Path(name).is_dir():
        try:
            cached = try_to_load_from_cache(name, "README.md")
        except ValueError:  # no valid Hub id
            cached = None
        card = Path(cached if isinstance(cached, str) else name)
    stated = None
    if name and card.is_file():
        try:
            stated = ModelCard.load(card, ignore_metadata_errors=True).data.license
        except (ValueError, yaml.YAMLError):  # broken front matter says nothing
            stated = None
    if isinstance(stated, list):
        stated = next((licence for licence in stated if is_noncommercial(str(licence))), stated[0] if stated else None)
    if stated and normalise_licence(str(stated)) != UNKNOWN:
        return normalise_licence(str(stated))
    return NONCOMMERCIAL_ARCHITECTURES.get(model_type or "", UNKNOWN)
