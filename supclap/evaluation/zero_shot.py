"""Zero-shot classification: label prompts as class embeddings, accuracy and, for several labels a clip, mAP.

Ties are pessimistic as in retrieval: a clip whose own class scores no higher than another counts as the other, so
collapsed label embeddings give an accuracy of 0. Rates are fractions from 0 to 1.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from supclap.errors import SettingsError, name_indices
from supclap.evaluation.inputs import as_embeddings, to_numpy


if TYPE_CHECKING:
    from supclap.evaluation.cache import ClipEncoder

DEFAULT_TEMPLATES = ("This is a sound of {}.",)


def label_text(label: str) -> str:
    """The words of a label as class lists spell it: `dog_bark` becomes `dog bark`."""
    return " ".join(label.replace("_", " ").split())


def embed_labels(
    encoder: "ClipEncoder", labels: Sequence[str], templates: Sequence[str], language: str | None = None
) -> torch.Tensor:
    """Embeds each label as the mean of the unit vectors of its prompts, made a unit vector again.

    Args:
        encoder: What embeds the prompts.
        labels: Class names. Underscores are read as spaces.
        templates: Prompts, each with `{}` where the label goes.
        language: The language of labels and templates, for multilingual encoders.

    Returns:
        `(n_labels, D)` float32 on the CPU, rows of unit length.

    Raises:
        TypeError: `labels` is one string.
        ValueError: No labels or templates, a template without `{}`, labels that are blank or read the same.
    """
    without_slot = [template for template in templates if "{}" not in template]
    if without_slot or not templates:
        raise SettingsError(f"Each template needs {{}} where the label goes; got {without_slot or templates}.")
    prompts = [template.replace("{}", name) for name in check_labels(labels) for template in templates]
    embeds = encoder.embed_texts(prompts, None if language is None else [language] * len(prompts))
    mean = nn.functional.normalize(embeds, dim=-1).unflatten(0, (len(labels), -1)).mean(dim=1)
    return nn.functional.normalize(mean, dim=-1)


def check_labels(labels: Sequence[str]) -> list[str]:
    """The words of the labels; see [`label_text`].

    Raises:
        TypeError: `labels` is one string.
        ValueError: None, or labels that are blank or read the same.
    """
    if isinstance(labels, str):
        raise TypeError(f"`labels` must be a list of class names, got the string {labels!r}.")
    names = [label_text(label) for label in labels]
    if not names or not all(names):
        raise ValueError(f"`labels` must be non-empty class names, got {list(labels)}.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"`labels` has classes that read the same: {twice}. Make them one class, or spell them apart."
        )
    return names


def label_scores(audio_embeds: np.ndarray | torch.Tensor, label_embeds: np.ndarray | torch.Tensor) -> np.ndarray:
    """`(N, C)` dot products, in float64 and rounded to float32 so that equal pairs tie."""
    audio = as_embeddings(audio_embeds, "audio_embeds").cpu()
    label = as_embeddings(label_embeds, "label_embeds").cpu()
    if audio.shape[1] != label.shape[1]:
        raise ValueError(f"Audio embeddings have {audio.shape[1]} dimensions and label embeddings {label.shape[1]}.")
    if len(label) < 2:
        raise ValueError("Classification needs at least two labels, got one.")
    return (audio @ label.T).float().numpy()


def _class_keys(labels: Sequence[str] | None, n_labels: int) -> Sequence[str] | Sequence[int]:
    if labels is None:
        return range(n_labels)
    if len(labels) != n_labels:
        raise ValueError(f"Got {len(labels)} `labels` for {n_labels} label embeddings.")
    return labels


def zero_shot_metrics(
    audio_embeds: np.ndarray | torch.Tensor,
    label_embeds: np.ndarray | torch.Tensor,
    targets: np.ndarray | torch.Tensor | Sequence[int],
    labels: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Accuracy of picking the label with the highest dot product.

    Args:
        audio_embeds: `(N, D)` clips.
        label_embeds: `(C, D)` labels.
        targets: `(N,)` index of each clip's label.
        labels: Names for the keys of `per_class`; the indices by default.

    Returns:
        `accuracy`; `n` clips; `per_class`, the share of each class's clips that are right (classes without a clip are
        left out); `confusion`, int64 `(C, C)` counts with the true class in rows and the predicted one in columns;
        `predicted`, int64 `(N,)`, the label picked for each clip, and `correct`, bool `(N,)`, whether it is right.

    Raises:
        ValueError: Shapes that do not match, values that are not finite, or targets that are not a label's index.
    """
    scores = label_scores(audio_embeds, label_embeds)
    n, n_labels = scores.shape
    targets = to_numpy(targets)
    if targets.shape != (n,) or not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(
            f"`targets` must hold one label index per clip, shape ({n},); got {targets.dtype} {targets.shape}."
        )
    outside = np.flatnonzero((targets < 0) | (targets >= n_labels))
    if outside.size:
        raise ValueError(f"`targets` of clips {name_indices(outside)} are outside 0..{n_labels - 1}.")
    keys = _class_keys(labels, n_labels)

    clips = np.arange(n)
    own = scores[clips, targets]
    scores[clips, targets] = -np.inf
    rival = scores.argmax(axis=1)
    predicted = np.where(own > scores[clips, rival], targets, rival)
    confusion = np.zeros((n_labels, n_labels), dtype=np.int64)
    np.add.at(confusion, (targets, predicted), 1)
    per_class = {keys[c]: float(confusion[c, c] / confusion[c].sum()) for c in range(n_labels) if confusion[c].any()}
    return {
        "accuracy": float(confusion.trace() / n),
        "n": n,
        "per_class": per_class,
        "confusion": confusion,
        "predicted": predicted,
        "correct": predicted == targets,
    }


def multi_label_metrics(
    audio_embeds: np.ndarray | torch.Tensor,
    label_embeds: np.ndarray | torch.Tensor,
    targets: np.ndarray | torch.Tensor,
    labels: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Mean average precision over classes, for clips with any number of labels.

    Args:
        audio_embeds: `(N, D)` clips.
        label_embeds: `(C, D)` labels.
        targets: `(N, C)` 1 where the clip has the label, else 0.
        labels: Names for the keys of `per_class`; the indices by default.

    Returns:
        `mAP`, the mean of `per_class`, which holds scikit-learn's average precision of each class that has a clip;
        `n_classes`, the number of those; `n` clips.

    Raises:
        ImportError: scikit-learn is missing.
        ValueError: Shapes that do not match, values that are not finite, targets other than 0 and 1, or all of them 0.
    """
    try:
        from sklearn.metrics import average_precision_score
    except ImportError as error:
        raise ImportError("Multi-label zero-shot needs scikit-learn: `pip install scikit-learn`.") from error

    scores = label_scores(audio_embeds, label_embeds)
    targets = to_numpy(targets)
    if targets.shape != scores.shape or not np.isin(targets, (0, 1)).all():
        raise ValueError(f"`targets` must be a {scores.shape} matrix of 0 and 1, got shape {targets.shape}.")
    keys = _class_keys(labels, scores.shape[1])
    present = np.flatnonzero(targets.any(axis=0))
    if not present.size:
        raise ValueError("`targets` has no clip with any label.")
    per_class = {keys[c]: float(average_precision_score(targets[:, c], scores[:, c])) for c in present}
    return {
        "mAP": float(np.mean(list(per_class.values()))),
        "per_class": per_class,
        "n_classes": len(per_class),
        "n": len(scores),
    }


def row_targets(rows: Sequence[Mapping[str, Any]], column: str, names: list[str]) -> list[list[int]]:
    """Label indices of each row; names match with underscores or spaces, integers are indices already."""
    index_of = {name: index for index, name in enumerate(names)}
    targets = []
    for position, row in enumerate(rows):
        values = row.get(column)
        if values is None:
            raise ValueError(f"Row {row.get('id', position)!r} has no `{column}`: every row needs its own.")
        values = [values] if column == "label" else values
        found = [index_of.get(label_text(value)) if isinstance(value, str) else value for value in values]
        unknown = [
            value
            for value, index in zip(values, found, strict=True)
            if not isinstance(index, Integral) or not 0 <= index < len(names)
        ]
        if unknown:
            raise ValueError(f"Row {row.get('id', position)!r}: `{column}` {unknown} is not one of the labels.")
        targets.append(found)
    return targets
