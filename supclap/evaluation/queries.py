"""Per-query results on disk, so that two runs can be compared query by query after the fact.

`queries/<task>.npz` beside `results.json` holds the arrays of one task. Of retrieval: the ranks of
[`~supclap.evaluation.retrieval.RetrievalRanks`], `clip_ids` and, for each caption, `text_keys`, a hash of its text. Of
classification: `clip_ids`, `labels`, `targets` and `predicted`. Of classification with several labels a clip:
`clip_ids`, `labels`, `targets` (N, C) and `scores` (N, C). `contents` holds the hash of each clip's audio where known.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from supclap.evaluation.cache import text_hash
from supclap.evaluation.retrieval import DEFAULT_KS, RetrievalRanks, query_values
from supclap.files import replacing


FOLDER = "queries"
_RANKS = ("text_to_audio", "audio_to_text", "n_references", "text_rows", "text_clips", "audio_clips")


@dataclass(frozen=True)
class Queries:
    """One metric's value for every query.

    Attributes:
        values: `(Q,)` the values; their mean is the metric, see `groups`.
        keys: `(Q,)` what identifies each query.
        clusters: `(Q,)` id of the clip each query belongs to.
        groups: `(Q,)` language of each query, where the metric is the unweighted mean of the languages' means.
    """

    values: np.ndarray
    keys: np.ndarray
    clusters: np.ndarray
    groups: np.ndarray | None = None


def retrieval_queries(
    ranks: RetrievalRanks, clip_ids: Sequence[str], texts: Sequence[str], contents: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a retrieval task.

    Args:
        ranks: Its ranks, pooled or not.
        clip_ids: Id of each clip of the whole set.
        texts: Each caption of the whole set.
        contents: Hash of each clip's audio.
    """
    arrays = {name: getattr(ranks, name).astype(np.int32) for name in _RANKS}
    arrays["clip_ids"] = np.asarray([str(clip) for clip in clip_ids])
    arrays["text_keys"] = np.asarray([text_hash(texts[row])[:16] for row in ranks.text_rows])
    return arrays if contents is None else {**arrays, "contents": np.asarray(contents)}


def save_queries(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays of one task, whole or not at all."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_queries(path: str | Path) -> dict[str, np.ndarray]:
    """Reads what [`save_queries`] wrote.

    Raises:
        ValueError: The file is something else, or incomplete.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file.items())
    except Exception as error:  # a zip reader, numpy and zlib each have their own
        raise ValueError(f"{str(path)!r} does not hold the queries of a task: {error}") from error
    if "clip_ids" not in arrays:
        raise ValueError(f"{str(path)!r} does not hold the queries of a task: it has the arrays {sorted(arrays)}.")
    return arrays


def is_multi_label(arrays: Mapping[str, np.ndarray]) -> bool:
    return "scores" in arrays


def metric_queries(arrays: Mapping[str, np.ndarray], ks: Sequence[int] = DEFAULT_KS) -> dict[str, Queries]:
    """Every mean-over-queries metric of a task's arrays. That of several labels a clip (mAP) is none."""
    clips = arrays["clip_ids"]
    if "text_to_audio" in arrays:
        ranks = RetrievalRanks(**{name: arrays[name] for name in _RANKS})
        # a clip may have one caption twice: the second of them is another query
        text_keys = np.char.add(np.char.add(clips[ranks.text_clips], "\x1f"), arrays["text_keys"])
        keys = {"text_to_audio": _number_repeats(text_keys), "audio_to_text": clips[ranks.audio_clips]}
        return {
            name: Queries(query.values, keys[name.partition("/")[0]], clips[query.clusters])
            for name, query in query_values(ranks, ks).items()
        }
    if is_multi_label(arrays):
        return {}
    return {"accuracy": Queries((arrays["predicted"] == arrays["targets"]).astype(float), clips, clips)}


def task_languages(tasks: Sequence[str]) -> dict[str, list[str]]:
    """Tasks that were run in several languages (files `task[language].npz`), and their files' names."""
    found: dict[str, list[str]] = {}
    for name in tasks:
        parts = re.fullmatch(r"(.+)\[.+\]", name)
        if parts:
            found.setdefault(parts[1], []).append(name)
    return {task: names for task, names in found.items() if len(names) > 1}


def mean_over_languages(queries: Mapping[str, Queries]) -> Queries:
    """One metric's queries in several languages as those of their unweighted mean.

    The clusters are the clips, so a resample draws a clip in all its languages.
    """
    return Queries(
        np.concatenate([query.values for query in queries.values()]),
        np.concatenate([np.char.add(f"{language}\x1f", query.keys) for language, query in queries.items()]),
        np.concatenate([query.clusters for query in queries.values()]),
        np.repeat(list(queries), [len(query.values) for query in queries.values()]),
    )


def _number_repeats(keys: np.ndarray) -> np.ndarray:
    """Keys made unique: the n-th occurrence of one gets its number."""
    seen: dict[str, int] = {}
    numbers = []
    for key in keys.tolist():
        seen[key] = seen.get(key, 0) + 1
        numbers.append(f"{key}\x1f{seen[key]}")
    return np.asarray(numbers)
