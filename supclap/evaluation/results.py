"""The one form of results: what `supclap evaluate` and the end of a training run write, and everything else reads.

`results.json` holds

* `checkpoint`: the name of the model, and `fingerprint`, a hash of everything that its embeddings depend on;
* `suite`: the name of the suite; at the end of training `training`;
* `chosen_on`: how the checkpoint was chosen, a key of [`CHOSEN_ON`];
* `encoder`: what a reader of the scores has to know of the model, and `versions` of the libraries;
* `seed` and `steps`, where a training run wrote it;
* `results`: a list of entries, one for each task; of a task in several languages one for each, and one for their mean.

An entry has `task`, `kind` (`retrieval`, `zero_shot` or `mteb`), `language` (`None` where the task is not split by
language, `mean` or `mean of 2 of 8` for the mean) and `status`. With the status `done` it also has `data`, `split`,
`n_clips`, `metrics` (each `{"value", "low", "high", "n"}`, a fraction or a rank with its 95 % interval) and `record`, what
the score depends on beside the model. A retrieval has `n_texts` (its captions), `n_different_texts` and
`n_shared_captions` (those whose text another clip has too), `captions_per_clip` and `pool_size` (`None` for one pool of all
clips). Its record names the `protocol`, see [`supclap.evaluation.retrieval`]; where the other one differs on its data, the
entry has the figures of that too, as `metrics_index` (or `metrics_text`). A classification has `n_labels`, `per_class` and, with one label for each clip, `confusion`. `queries`,
`per_class` and `confusion` name files beside `results.json`. With the status `failed` an entry has a `reason`; with the
status `not run` (the data are not there) it has a `reason` and says how to `get` the data.

A file in `queries/` holds the arrays of one entry, so that two runs can be compared query by query. Of a retrieval these
are the ranks of [`~supclap.evaluation.retrieval.RetrievalRanks`], `clip_ids` and, for each text, `text_keys`, a hash of it. Of a classification they are `clip_ids`, `labels`, `targets` and `predicted`; where a clip has several labels,
`clip_ids`, `labels`, `targets` (N, C) and `scores` (N, C). `contents` holds the hash of the audio of each clip.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from supclap.data.rows import clean_captions
from supclap.errors import DataError
from supclap.evaluation.cache import text_hash
from supclap.evaluation.retrieval import DEFAULT_KS, RetrievalRanks, query_values
from supclap.files import RESULTS, replacing


DONE, NOT_RUN, FAILED = "done", "not run", "failed"
MEAN = "mean"
QUERIES, PER_CLASS, CONFUSION = "queries", "per_class", "confusion"  # folders beside results.json
# The values of `chosen_on` in words.
CHOSEN_ON = {
    "validation": "checkpoint chosen on validation data",
    "test": "checkpoint chosen on the TEST set (the paper's protocol; optimistic)",
    "last": "last checkpoint, chosen by no score",
    None: "how the checkpoint was chosen is not recorded",
}
_RANKS = ("text_to_audio", "audio_to_text", "n_clips", "n_references", "text_rows", "text_clips", "audio_clips")


# ---- results.json ----


def read_results(path: str | Path) -> dict[str, Any]:
    """The content of a `results.json`.

    Raises:
        DataError: The file holds something else, or was written before there was one form of results.
    """
    results = _read(path)
    if "retrieval" in results or "zero_shot" in results:
        raise DataError(
            f"{path} was written by a training run of an earlier version, in a form that is no longer read: "
            f"`supclap evaluate {Path(path).parent}` writes a new one."
        )
    entries = results.get("results", [])
    heads = ("task", "language", "status")
    if not isinstance(entries, list) or not all(isinstance(one, dict) and set(heads) <= one.keys() for one in entries):
        raise _unusable(path, f"`results` is no list of entries with {', '.join(heads)}")
    return results


def read_choice(path: str | Path) -> str | None:
    """How the checkpoint was chosen, by a `results.json` of any version; see [`CHOSEN_ON`].

    Raises:
        DataError: The file holds something else.
    """
    return _read(path).get("chosen_on")


def _read(path: str | Path) -> dict[str, Any]:
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _unusable(path, error) from error
    if not isinstance(results, dict):
        raise _unusable(path, f"it holds {type(results).__name__}")
    if results.get("chosen_on") not in CHOSEN_ON:
        raise _unusable(path, f"chosen_on is {results['chosen_on']!r}")
    return results


def _unusable(path: str | Path, reason: object) -> DataError:
    return DataError(f"{path} is not what `supclap evaluate` or a training run writes ({reason}). Run that again.")


def entry_of(results: Mapping[str, Any], task: str, language: str | None = None) -> dict[str, Any] | None:
    """The entry of a task that was done, or `None` where there is none.

    Args:
        results: See [`read_results`].
        task: The name of the task.
        language: One of its languages. When omitted, the entry of the whole task, which is the mean over the languages
            where there are several.
    """
    for entry in results["results"]:
        whole = entry["language"] is None or entry["language"].startswith(MEAN)
        if (
            entry["task"] == task
            and entry["status"] == DONE
            and (entry["language"] == language if language else whole)
        ):
            return entry
    return None


# ---- One score, and the files beside results.json ----


@dataclass(frozen=True)
class Score:
    """One entry of the results, and the contents of the files that belong to it.

    Attributes:
        entry: The entry, or a part of it.
        queries: The arrays of its queries.
        per_class: For each class with a clip its name, its number of clips and its score.
        confusion: `(C, C)` counts with the true class in rows and the predicted one in columns.
    """

    entry: dict[str, Any]
    queries: Mapping[str, np.ndarray] = field(default_factory=dict)
    per_class: Sequence[tuple[str, int, float]] = ()
    confusion: np.ndarray | None = None


def clear_results(folder: Path) -> None:
    """Removes results and queries of an earlier evaluation, which would be taken for those of this one."""
    for path in (folder / RESULTS, *(folder / QUERIES).glob("*.npz")):
        path.unlink(missing_ok=True)


def save_score(folder: Path, score: Score) -> dict[str, Any]:
    """Writes the files of a score into a folder, and returns its entry with their names."""
    entry, files = score.entry, {}
    name = entry["task"] if entry["language"] is None else f"{entry['task']}[{entry['language']}]"
    if score.queries:
        files["queries"] = f"{QUERIES}/{name}.npz"
        save_queries(folder / files["queries"], score.queries)
    if score.per_class:
        files["per_class"] = f"{PER_CLASS}/{name}.csv"
        _save_per_class(folder / files["per_class"], score.per_class, next(iter(entry["metrics"])))
    if score.confusion is not None:
        from supclap.plots import plot_confusion

        files["confusion"] = f"{CONFUSION}/{name}.png"
        plot_confusion(score.confusion, score.queries["labels"].tolist(), folder / files["confusion"])
    return entry | files


def _save_per_class(path: Path, per_class: Sequence[tuple[str, int, float]], metric: str) -> None:
    """A table of the classes, the worst first."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", "clips", "average_precision" if metric == "mAP" else metric])
        for label, clips, value in sorted(per_class, key=lambda line: line[2]):
            writer.writerow([label, clips, f"{value:.6f}"])


# ---- Queries ----


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
        texts: Each caption of the whole set. Its key is that of the text without excess white space.
        contents: Hash of each clip's audio.
    """
    arrays = {name: getattr(ranks, name).astype(np.int32) for name in _RANKS}
    arrays["clip_ids"] = np.asarray([str(clip) for clip in clip_ids])
    arrays["text_keys"] = np.asarray(
        [text_hash(text)[:16] for text in clean_captions(texts[row] for row in ranks.text_rows)]
    )
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
    if "text_to_audio" in arrays and "n_clips" not in arrays:
        raise ValueError(
            f"{str(path)!r} was written before equal texts were one item of a retrieval. Evaluate the model again."
        )
    return arrays


def is_multi_label(arrays: Mapping[str, np.ndarray]) -> bool:
    return "scores" in arrays


def metric_queries(arrays: Mapping[str, np.ndarray], ks: Sequence[int] = DEFAULT_KS) -> dict[str, Queries]:
    """Every mean-over-queries metric of a task's arrays. That of several labels a clip (mAP) is none."""
    clips = arrays["clip_ids"]
    if "text_to_audio" in arrays:
        ranks = RetrievalRanks(**{name: arrays[name] for name in _RANKS})
        text_keys = arrays["text_keys"]
        # Under the protocol `index` a text may be several queries, also of one clip, and within pools one of each pool.
        if len(np.unique(text_keys)) < len(text_keys):
            text_keys = _number_repeats(np.char.add(np.char.add(clips[ranks.text_clips], "\x1f"), text_keys))
        keys = {"text_to_audio": text_keys, "audio_to_text": clips[ranks.audio_clips]}
        return {
            name: Queries(query.values, keys[name.partition("/")[0]], clips[query.clusters])
            for name, query in query_values(ranks, ks).items()
        }
    if is_multi_label(arrays):
        return {}
    return {"accuracy": Queries((arrays["predicted"] == arrays["targets"]).astype(float), clips, clips)}


def mean_over_languages(queries: Mapping[str, Mapping[str, Queries]]) -> dict[str, Queries]:
    """The queries of each metric in all languages together, as those of the unweighted mean over the languages.

    The clusters are the clips, so that a resample draws a clip in all its languages.

    Args:
        queries: For each language its metrics, as [`metric_queries`] gives them.
    """
    mean = {}
    for metric in next(iter(queries.values())):
        own = {language: metrics[metric] for language, metrics in queries.items()}
        mean[metric] = Queries(
            np.concatenate([query.values for query in own.values()]),
            np.concatenate([np.char.add(f"{language}\x1f", query.keys) for language, query in own.items()]),
            np.concatenate([query.clusters for query in own.values()]),
            np.repeat(list(own), [len(query.values) for query in own.values()]),
        )
    return mean


def _number_repeats(keys: np.ndarray) -> np.ndarray:
    """Keys made unique: the n-th occurrence of one gets its number."""
    seen: dict[str, int] = {}
    numbers = []
    for key in keys.tolist():
        seen[key] = seen.get(key, 0) + 1
        numbers.append(f"{key}\x1f{seen[key]}")
    return np.asarray(numbers)
