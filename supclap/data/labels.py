"""Labels of clips: how a cell of a table holds them, and the words and the caption that they become."""

from collections.abc import Sequence
from typing import Any

from supclap.errors import DataError


# The text that a label is put into where a recipe, a corpus or a suite names no other. The pipeline that travels with
# each checkpoint (`processing_supclap.pipeline_supclap`) has the same text as its own default.
LABEL_TEMPLATE = "This is a sound of {}."


def label_words(label: str) -> str:
    """A label as words, as class lists spell it: `clock_alarm` becomes `clock alarm`."""
    return " ".join(label.replace("_", " ").split())


def label_caption(template: str, labels: Sequence[str]) -> list[str]:
    """The caption of a clip that has labels and no captions: its labels as words, in place of the `{}` of the template.

    A clip without labels has none.

    Raises:
        DataError: The template has no `{}`.
    """
    if "{}" not in template:
        raise DataError(f"template {template!r} has no {{}} for the label.")
    words = ", ".join(filter(None, map(label_words, labels)))
    return [template.replace("{}", words)] if words else []


def label_of(cell: Any) -> str | None:
    """The label that a cell holds, as text; `None` where there is none: an empty cell, NaN, or -1."""
    # NaN, which tables have in place of an empty cell, is the one value that does not equal itself;
    # data sets mark a clip without a class by -1
    if cell is None or cell != cell or str(cell).strip() in ("", "-1", "-1.0"):
        return None
    return str(cell).strip()


def split_labels(cell: str) -> list[str]:
    """The labels of a cell that holds them with commas between; an empty cell has none."""
    return [label.strip() for label in cell.split(",") if label.strip()]
