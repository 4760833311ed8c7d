"""Retrieval with captions in several languages: each on its own, and their unweighted mean, as the paper reports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from supclap.data.languages import nllb_code
from supclap.data.rows import caption_languages
from supclap.evaluation.intervals import metrics_with_intervals, value_with_interval
from supclap.evaluation.queries import mean_over_languages, metric_queries, retrieval_queries
from supclap.evaluation.retrieval import pooled_retrieval_ranks


NOT_STATED = "not stated"


@dataclass(frozen=True)
class LanguagePart:
    """The captions in one language, and the clips that have one.

    Attributes:
        audio: `(n, D)` embeddings of the clips.
        text: `(m, D)` embeddings of the captions.
        text_to_audio: `(m,)` row of `audio` that each caption describes.
        clips: `(n,)` index of each clip in the whole set.
        captions: `(m,)` index of each caption in the whole set.
    """

    audio: torch.Tensor
    text: torch.Tensor
    text_to_audio: torch.Tensor
    clips: np.ndarray
    captions: np.ndarray


def split_by_language(
    audio: torch.Tensor, text: torch.Tensor, text_to_audio: torch.Tensor, rows: Sequence[Mapping[str, Any]]
) -> dict[str, LanguagePart]:
    """The parts of an embedded set by language; one part where all captions are in one, or state none.

    Args:
        audio: `(N, D)` embeddings of the rows' clips.
        text: `(M, D)` embeddings of all their captions.
        text_to_audio: `(M,)` row of each caption.
        rows: The rows, with `captions` and, where known, `language`.
    """
    languages = np.array([nllb_code(code) or NOT_STATED for row in rows for code in caption_languages(row)])
    parts = {}
    for language in sorted(set(languages.tolist())):
        captions = np.flatnonzero(languages == language)
        clips, index = np.unique(np.asarray(text_to_audio)[captions], return_inverse=True)
        parts[language] = LanguagePart(audio[clips], text[captions], torch.from_numpy(index), clips, captions)
    return parts


def mean_metrics(metrics: Sequence[Mapping[str, float | int]]) -> dict[str, float | int]:
    """The unweighted mean of each metric over languages; captions are counted together, clips once."""
    if len(metrics) == 1:
        return dict(metrics[0])
    mean = {}
    for name in metrics[0]:
        values = [each[name] for each in metrics]
        mean[name] = float(np.mean(values)) if "/" in name else sum(values) if name == "n_text" else max(values)
    return mean


@dataclass(frozen=True)
class LanguageScores:
    """Scores of a set.

    Attributes:
        metrics: Each metric as `{"value", "low", "high", "n"}`; of several languages their unweighted mean, with
            intervals that resample a clip in all its languages.
        by_language: The same for each language.
        queries: The arrays of [`~supclap.evaluation.queries.retrieval_queries`] of each language.
    """

    metrics: dict[str, dict[str, float | int | None]]
    by_language: dict[str, dict[str, dict[str, float | int | None]]]
    queries: dict[str, dict[str, np.ndarray]]


def scores_by_language(
    parts: Mapping[str, LanguagePart], rows: Sequence[Mapping[str, Any]], pool_size: int | None
) -> LanguageScores:
    """Retrieval metrics with 95 % intervals.

    Args:
        parts: See [`split_by_language`].
        rows: The rows of the whole set, with `id` and `captions`.
        pool_size: Clips of a pool; all in one when `None`.
    """
    texts = [caption for row in rows for caption in row["captions"]]
    scores, queries = {}, {}
    for language, part in parts.items():
        size = min(pool_size or len(part.clips), len(part.clips))
        ranks = pooled_retrieval_ranks(part.audio, part.text, part.text_to_audio, pool_size=size)
        scores[language] = metrics_with_intervals(ranks)
        ids = [rows[clip]["id"] for clip in part.clips]
        queries[language] = retrieval_queries(ranks, ids, [texts[caption] for caption in part.captions])
    mean = next(iter(scores.values())) if len(scores) == 1 else _mean_of_queries(queries)
    return LanguageScores(mean, scores, queries)


def _mean_of_queries(queries: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, float | int | None]]:
    values = {language: metric_queries(arrays) for language, arrays in queries.items()}
    mean = {}
    for name in next(iter(values.values())):
        every = mean_over_languages({language: own[name] for language, own in values.items()})
        mean[name] = value_with_interval(every.values, every.clusters, groups=every.groups)
    return mean
