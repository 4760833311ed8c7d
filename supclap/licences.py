"""Which licence a model may carry, given those of its towers and its training data."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


UNKNOWN = "unknown"
# Encoders whose published weights have only non-commercial terms: SONAR and NLLB share this architecture.
NONCOMMERCIAL_ARCHITECTURES = {"m2m_100": "cc-by-nc-4.0"}
_CREATIVE_COMMONS_URL = re.compile(r"creativecommons\.org/(?:licenses/([a-z-]+)|publicdomain/(zero))/(\d\.\d)")
_CREATIVE_COMMONS = re.compile(r"^cc[\s-]*(0|by(?:[\s-]+(?:nc|sa|nd))*)(?:[\s-]+v?(\d\.\d))?(?:[\s-].*)?$")
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
    if text in ("", UNKNOWN, "none", "other"):
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
    return bool(_terms(licence) & {"nc", "noncommercial"}) or "non-commercial" in licence


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
    """One licence taken over; the Hub has identifiers of Creative Commons licences with their version only."""
    if licence.startswith("cc-") and not licence[-1].isdigit():
        return LicenceVerdict("other", licence, reasons)
    return LicenceVerdict(licence, reasons=reasons)


def propagate(towers: dict[str, str], data: Iterable[str], wanted: str | None = None) -> LicenceVerdict:
    """The licence of a model from those of what it was made of.

    Non-commercial terms of a tower or of data always win. Unknown terms give `"other"`. Share-alike terms of data are
    taken over unless another licence is asked for: whether weights are an adaptation of the recordings is unsettled,
    so the card says it either way.

    Args:
        towers: Licence of each pretrained part, by its name.
        data: Licences of the training data.
        wanted: The licence that the publisher asks for.

    Raises:
        LicenceError: `wanted` allows commercial use, or is no identifier, where a part or data does not.
    """
    towers = {name: normalise_licence(licence) for name, licence in towers.items()}
    data = sorted({normalise_licence(licence) for licence in data})
    everything = {*towers.values(), *data}
    restricted = {name: licence for name, licence in towers.items() if is_noncommercial(licence)}
    restricted |= {f"training data under {licence}": licence for licence in data if is_noncommercial(licence)}
    reasons = [f"{name} is {licence}, which allows no commercial use." for name, licence in restricted.items()]
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
        if restricted and not is_noncommercial(wanted):
            raise LicenceError(
                f"The licence {wanted!r} is refused: {' '.join(reasons[: len(restricted)])} Leave it out, or name a "
                "non-commercial one."
            )
        return LicenceVerdict(wanted, reasons=reasons)
    if restricted:
        binding = set(restricted.values()) | set(alike)
        if len(binding) == 1:
            return _single(binding.pop(), reasons)
        return LicenceVerdict("other", "several-licences-noncommercial", reasons)
    if unknown:
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
