"""Paired comparison of two systems from their per-query results, over one or several seeds of each.

Both systems answered the same queries, so the difference is taken query by query. The statistics are those of
[`~supclap.evaluation.intervals.paired_difference`]:

* The interval is a 95 % bootstrap over clips, and over runs as well where a system has several.
* `p_clips` is the two-sided sign-flip test over clips, of the mean over the runs. It speaks of these runs only: it does
  not know that another seed would have trained another model. For mAP, which is no mean over clips, it is twice the
  smaller share of bootstrap differences on one side of 0.
* `p_runs` is the two-sided exact permutation test over runs, of the difference of the means of the systems. It needs two
  runs of each system. With three seeds each it cannot fall below 0.1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from supclap.errors import CompareError
from supclap.evaluation.intervals import (
    PairedDifference,
    grouped_mean,
    mean_average_precisions,
    paired_difference,
    paired_map_difference,
    permutation_p_value,
)
from supclap.evaluation.results import (
    CHOSEN_ON,
    Queries,
    is_multi_label,
    load_queries,
    mean_over_languages,
    metric_queries,
    read_results,
)
from supclap.evaluation.tables import task_title
from supclap.files import RESULTS


# The parts of the record of a task that its scores depend on beside the model.
_PROTOCOL = ("templates", "labels", "language", "language_of_captions", "protocols")


@dataclass(frozen=True)
class Comparison:
    """How much better system a is than system b in one metric of one task.

    Attributes:
        task: The task.
        metric: The metric.
        a: The mean of system a over its runs, a fraction.
        b: The mean of system b.
        difference: a minus b.
        low: The lower end of the 95 % interval of the difference.
        high: The upper end.
        p_clips: See the docstring of the module.
        p_runs: See there; `None` where a system has a single run.
        runs_a: The value of each run of a.
        runs_b: The value of each run of b.
        n: The number of queries.
        n_clips: The number of clips that they belong to.
    """

    task: str
    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_clips: float
    p_runs: float | None
    runs_a: tuple[float, ...]
    runs_b: tuple[float, ...]
    n: int
    n_clips: int


@dataclass(frozen=True)
class _Run:
    """One run of a system: its folder, its results, and the entries of the tasks that it ran to their end, by title."""

    folder: str | Path
    results: dict[str, Any]
    tasks: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path) -> "_Run":
        path = Path(folder) / RESULTS
        results = read_results(path) if path.is_file() else {}
        entries = [entry for entry in results.get("results", []) if entry.get("queries")]
        if not entries:
            raise CompareError(
                f"{str(folder)!r} has no per-query results: no task with `queries` in a {RESULTS}. Name the output folder of "
                "`supclap evaluate`, or of a training run."
            )
        return cls(folder, results, {task_title(entry): entry for entry in entries})


def compare_runs(
    runs_a: Sequence[str | Path],
    runs_b: Sequence[str | Path],
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[list[Comparison], list[str]]:
    """Compares two systems in every task that all their runs have.

    Args:
        runs_a: The folders with the results of system a, of `supclap evaluate` or of training; one for each seed.
        runs_b: The folders of system b.
        n_resamples: The number of bootstrap resamples and of sign flips.
        seed: The seed of both.

    Returns:
        The comparisons, and notes. These name the tasks that a run lacks, clips whose audio differs, and, as warnings, what
        makes the scores hard to compare: checkpoints chosen in other ways, other templates, captions in another language.

    Raises:
        CompareError: A folder has no per-query results or holds those of another run of its system, no task is common,
            or a task was run on other queries, with other labels of the clips, in pools of another size, or as a retrieval
            by another protocol.
    """
    runs = [_Run.read(folder) for folder in (*runs_a, *runs_b)]
    n_a = len(runs_a)
    _check_distinct(runs[:n_a])
    _check_distinct(runs[n_a:])
    every = list(dict.fromkeys(task for run in runs for task in run.tasks))
    common = [task for task in every if all(task in run.tasks for run in runs)]
    if not common:
        raise CompareError(f"No task is common: {'; '.join(', '.join(run.tasks) for run in runs)}.")
    notes = [f"not compared, for not every run has it: {task}" for task in every if task not in common]
    choices = [{"choice of the checkpoint": CHOSEN_ON[run.results.get("chosen_on")]} for run in runs]
    notes += _warn_of_differences("", choices, runs)
    comparisons: list[Comparison] = []
    languages: dict[str, dict[str, list[dict[str, Queries]]]] = {}
    for task in common:
        entries = [run.tasks[task] for run in runs]
        _check_same_protocol(task, entries, runs)
        arrays = [load_queries(Path(run.folder) / run.tasks[task]["queries"]) for run in runs]
        _check_same_clips(task, arrays, runs)
        _check_same_pools(task, entries, runs)
        records = [{key: entry["record"][key] for key in _PROTOCOL if key in entry["record"]} for entry in entries]
        notes += _warn_of_differences(f"{task}: ", records, runs)
        different = _different_audio(arrays)
        if different:
            notes.append(f"{task}: the audio of {different} clips is not the same in all runs")
        if is_multi_label(arrays[0]):
            comparisons.append(_compare_map(task, arrays, n_a, n_resamples, seed))
            continue
        queries = [metric_queries(one) for one in arrays]
        comparisons += _compare_means(task, queries, n_a, n_resamples, seed)
        if entries[0]["language"] is not None:
            languages.setdefault(entries[0]["task"], {})[entries[0]["language"]] = queries
    for task, by_language in languages.items():
        if len(by_language) > 1:
            title = f"{task} (mean of {len(by_language)} languages)"
            per_run = zip(*by_language.values(), strict=True)
            means = [mean_over_languages(dict(zip(by_language, own, strict=True))) for own in per_run]
            comparisons += _compare_means(title, means, n_a, n_resamples, seed)
    return comparisons, notes


# ---- What is refused, and what is warned of ----


def _check_distinct(runs: Sequence[_Run]) -> None:
    seen: dict[Any, str | Path] = {}
    for run in runs:
        for key in {Path(run.folder).resolve(), run.results.get("fingerprint")} - {None}:
            if key in seen:
                raise CompareError(
                    f"{seen[key]} and {run.folder} are the same run (folder or checkpoint): it counts as one seed. Name each "
                    "once."
                )
            seen[key] = run.folder


def _check_same_pools(task: str, entries: Sequence[Mapping[str, Any]], runs: Sequence[_Run]) -> None:
    sizes = [entry.get("pool_size") for entry in entries]
    if len(set(sizes)) > 1:
        pools = "; ".join(f"{run.folder}: {size or 'no pools'}" for run, size in zip(runs, sizes, strict=True))
        raise CompareError(f"{task}: ranked in pools of other sizes ({pools}). Evaluate both with the same.")


def _check_same_protocol(task: str, entries: Sequence[Mapping[str, Any]], runs: Sequence[_Run]) -> None:
    said = [entry["record"].get("protocol", "not recorded") for entry in entries]
    if len(set(said)) > 1:
        each = "; ".join(f"{run.folder}: {protocol}" for run, protocol in zip(runs, said, strict=True))
        raise CompareError(
            f"{task}: retrieved by different protocols ({each}), which count a text that several clips have in different "
            "ways. Evaluate all runs with the same `protocol`."
        )


def _check_same_clips(task: str, arrays: Sequence[Mapping[str, np.ndarray]], runs: Sequence[_Run]) -> None:
    first, clips = arrays[0], set(arrays[0]["clip_ids"].tolist())
    for other, run in zip(arrays[1:], runs[1:], strict=True):
        both, others = f"{runs[0].folder} and {run.folder}", set(other["clip_ids"].tolist())
        if clips != others:
            only = sorted(clips ^ others)
            raise CompareError(
                f"{task}: of {both} the first has {len(clips)} clips and the second {len(others)}; {len(only)} are in one only, "
                f"e.g. {only[0]!r}. Scores over different clips do not compare: evaluate both on the same data."
            )
        if "labels" in first and first["labels"].tolist() != other["labels"].tolist():
            raise CompareError(f"{task}: {both} chose among different labels.")
        if "targets" in first:
            ids = first["clip_ids"]
            different = (first["targets"] != _in_order(other, ids, "targets")).reshape(len(ids), -1).any(axis=1)
            if different.any():
                raise CompareError(
                    f"{task}: of {both} the labels of {different.sum()} clips differ, e.g. of {str(ids[different][0])!r}. "
                    "Evaluate both on the same data."
                )


def _different_audio(arrays: Sequence[Mapping[str, np.ndarray]]) -> int:
    """The number of clips whose audio is not the same in all runs, where the runs have hashes of it."""
    if not all("contents" in one for one in arrays):
        return 0
    contents = [dict(zip(one["clip_ids"].tolist(), one["contents"].tolist(), strict=True)) for one in arrays]
    return sum(len({one[clip] for one in contents}) > 1 for clip in contents[0])


def _warn_of_differences(prefix: str, facts: Sequence[Mapping[str, Any]], runs: Sequence[_Run]) -> Iterator[str]:
    """A warning for each fact that is not the same of all runs."""
    for name in dict.fromkeys(name for one in facts for name in one):
        said = [one.get(name, "not recorded") for one in facts]
        if any(value != said[0] for value in said):
            each = "; ".join(f"{run.folder}: {_differing(value, said)}" for run, value in zip(runs, said, strict=True))
            yield f"warning: {prefix}the runs differ in more than the model, in {name.replace('_', ' ')}: {each}"


def _differing(value: Any, values: Sequence[Any]) -> str:
    """A value as text; of a mapping only the items that the others do not all have alike."""
    if not all(isinstance(other, dict) for other in values):
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    keys = [key for key in value if any(other.get(key) != value[key] for other in values)]
    return ", ".join(f"{key}: {value[key]}" for key in keys)


# ---- The comparison of one metric ----


def _compare_means(task, per_run: Sequence[dict[str, Queries]], n_a, n_resamples, seed) -> list[Comparison]:
    """Compares the first `n_a` runs with the others in every metric of their queries."""
    comparisons = []
    for metric, first in per_run[0].items():
        values = np.stack([_aligned(run[metric], first.keys, task, metric) for run in per_run])
        n_clips = len(np.unique(first.clusters))
        if n_clips < 2:
            raise CompareError(f"{task}: one clip is too few to compare.")
        pair = paired_difference(
            values[:n_a], values[n_a:], first.clusters, n_resamples, seed=seed, groups=first.groups
        )
        runs = [grouped_mean(run, first.groups) for run in values]
        comparisons.append(_comparison(task, metric, pair, runs[:n_a], runs[n_a:], len(first.keys), n_clips))
    return comparisons


def _compare_map(task, arrays: Sequence[Mapping[str, np.ndarray]], n_a, n_resamples, seed) -> Comparison:
    clips, targets = arrays[0]["clip_ids"], arrays[0]["targets"]
    scores = [_in_order(one, clips, "scores") for one in arrays]
    # each resample takes a pass over all scores, so there are fewer
    pair = paired_map_difference(scores[:n_a], scores[n_a:], targets, max(n_resamples // 4, 1), seed)
    once = np.ones((1, len(clips)))
    runs = [float(mean_average_precisions(score, targets, once)[0]) for score in scores]
    return _comparison(task, "mAP", pair, runs[:n_a], runs[n_a:], len(clips), len(clips))


def _comparison(task, metric, pair: PairedDifference, runs_a, runs_b, n, n_clips) -> Comparison:
    means = float(np.mean(runs_a)), float(np.mean(runs_b))
    p_runs = permutation_p_value(runs_a, runs_b)
    tests = (pair.difference, pair.low, pair.high, pair.p_value, p_runs)
    return Comparison(task, metric, *means, *tests, tuple(runs_a), tuple(runs_b), n, n_clips)


def _aligned(queries: Queries, keys: np.ndarray, task: str, metric: str) -> np.ndarray:
    """The values of the queries in the order of `keys`."""
    order = np.argsort(queries.keys, kind="stable")
    place = np.searchsorted(queries.keys, keys, sorter=order)
    if len(queries.keys) != len(keys) or (queries.keys[order[np.minimum(place, len(keys) - 1)]] != keys).any():
        raise CompareError(f"{task}, {metric}: the captions of the two runs differ. Evaluate both on the same data.")
    return queries.values[order[place]]


def _in_order(arrays: Mapping[str, np.ndarray], clips: np.ndarray, name: str) -> np.ndarray:
    """The rows of an array in the order of `clips`."""
    row_of = {clip: row for row, clip in enumerate(arrays["clip_ids"].tolist())}
    return arrays[name][[row_of[clip] for clip in clips.tolist()]]
