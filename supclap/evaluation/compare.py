"""Paired comparison of two systems from their per-query results, over one or several seeds of each.

The queries are the same, so the difference is taken query by query; captions of one clip are drawn together.

* Interval: 95 % bootstrap over clips, and over runs as well where a system has several.
* `p_clips`: two-sided sign-flip (permutation) test over clips, of the mean over runs. It speaks of these runs only: it
  does not know that another seed would have trained another model. For mAP, which is no mean over clips, it is twice
  the smaller share of bootstrap differences on one side of 0.
* `p_runs`: two-sided exact permutation test over runs, of the difference of the systems' means. With three seeds each it
  cannot fall below 0.1. It needs two runs of each system.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from supclap.errors import CompareError
from supclap.evaluation.inputs import CHOSEN_ON, read_results
from supclap.evaluation.intervals import (
    bootstrap_mean_average_precision,
    cluster_totals,
    grouped_mean,
    mean_average_precisions,
    mean_over_groups,
    paired_difference,
)
from supclap.evaluation.queries import (
    FOLDER,
    Queries,
    is_multi_label,
    load_queries,
    mean_over_languages,
    metric_queries,
    task_languages,
)
from supclap.files import RESULTS


# What a score of either kind depends on beside the model, as the record of its task has it.
_PROTOCOL = ("templates", "labels", "language", "language_of_captions", "protocols")
# Permutations of runs that are enumerated at most.
_MOST_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class Comparison:
    """How much better system a is than system b in one metric of one task.

    Attributes:
        task: The task.
        metric: The metric.
        a: Mean of system a over its runs, a fraction.
        b: The same of b.
        difference: a minus b.
        low: Lower end of the 95 % interval of the difference.
        high: Its upper end.
        p_clips: See the module.
        p_runs: See the module; `None` with a single run of one of them.
        runs_a: The value of each run of a.
        runs_b: The same of b.
        n: Number of queries.
        n_clips: Number of clips they belong to.
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


def compare_runs(
    runs_a: Sequence[str | Path],
    runs_b: Sequence[str | Path],
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[list[Comparison], list[str]]:
    """Compares two systems in every task that all their runs have.

    Args:
        runs_a: Folders with the results of system a: of `supclap evaluate`, or of training; one for each seed.
        runs_b: The same of b.
        n_resamples: Number of bootstrap resamples and of sign flips.
        seed: Seed of both.

    Returns:
        The comparisons, and notes: tasks that one of them lacks, clips whose audio differs, and as a warning what makes
        the scores hard to compare: checkpoints chosen in other ways, other templates or captions in another language.

    Raises:
        CompareError: A folder has no per-query results or holds those of another run of its system, no task is common,
            or a task was run on other queries, with other labels of the clips or in pools of another size.
    """
    runs = [*runs_a, *runs_b]
    results = [_results(run) for run in runs]
    for own, of_system in ((runs_a, results[: len(runs_a)]), (runs_b, results[len(runs_a) :])):
        _check_distinct(own, of_system)
    files = [_query_files(run, result) for run, result in zip(runs, results, strict=True)]
    common = [task for task in files[0] if all(task in other for other in files[1:])]
    if not common:
        raise CompareError(f"No task is common: {'; '.join(', '.join(sorted(own)) for own in files)}.")
    lacking = sorted({task for own in files for task in own} - set(common))
    notes = [f"not compared, for not every run has it: {task}" for task in lacking]
    notes += _warn_of_differences(
        "", [{"choice of the checkpoint": CHOSEN_ON[one.get("chosen_on")]} for one in results], runs
    )
    comparisons: list[Comparison] = []
    queries: dict[str, list[dict[str, Queries]]] = {}
    for task in common:
        arrays = [load_queries(own[task]) for own in files]
        _check_same_clips(task, arrays, runs)
        protocols = [_protocol(one, task) for one in results]
        _check_same_pools(task, protocols, runs)
        notes += _warn_of_differences(f"{task}: ", protocols, runs)
        different = _different_audio(arrays)
        if different:
            notes.append(f"{task}: the audio of {different} clips is not the same in all runs")
        if is_multi_label(arrays[0]):
            comparisons += _compare_multi_label(task, arrays[: len(runs_a)], arrays[len(runs_a) :], n_resamples, seed)
        else:
            queries[task] = [metric_queries(one) for one in arrays]
            comparisons += _compare_means(task, queries[task], len(runs_a), n_resamples, seed)
    for task, names in task_languages(common).items():
        per_run = [
            {metric: mean_over_languages({name: queries[name][run][metric] for name in names}) for metric in metrics}
            for run, metrics in enumerate(queries[names[0]])
        ]
        title = f"{task} (mean of {len(names)} languages)"
        comparisons += _compare_means(title, per_run, len(runs_a), n_resamples, seed)
    return comparisons, notes


def checkpoint_choice(run: str | Path) -> str | None:
    """How the checkpoint of a run was chosen, as its results have it: `validation`, `test`, `last`; else `None`."""
    return _results(run).get("chosen_on")


def _results(run: str | Path) -> dict[str, Any]:
    path = Path(run) / RESULTS
    return read_results(path) if path.is_file() else {}


def _check_distinct(runs: Sequence[str | Path], results: Sequence[Mapping[str, Any]]) -> None:
    seen: dict[Any, str | Path] = {}
    for run, result in zip(runs, results, strict=True):
        for key in {Path(run).resolve(), result.get("fingerprint")} - {None}:
            if key in seen:
                raise CompareError(
                    f"{seen[key]} and {run} are the same run (folder or checkpoint): it counts as one seed. Name each once."
                )
            seen[key] = run


def _protocol(results: Mapping[str, Any], task: str) -> dict[str, Any]:
    """What is recorded of the protocol of a task, by `supclap evaluate` or at the end of training."""
    for entry in results.get("results", []):
        if Path(entry.get("queries", "")).stem == task:
            return {key: entry["record"][key] for key in _PROTOCOL if key in entry["record"]}
    if task == "zero_shot" and "zero_shot" in results:
        return {"templates": results["zero_shot"]["templates"]}
    return {"pool_size": results["pool_size"]} if results.get("pool_size") else {}


def _check_same_pools(task: str, protocols: Sequence[Mapping[str, Any]], runs: Sequence[str | Path]) -> None:
    sizes = [protocol.get("pool_size") for protocol in protocols]
    if len(set(sizes)) > 1:
        pools = "; ".join(f"{run}: {size or 'no pools'}" for run, size in zip(runs, sizes, strict=True))
        raise CompareError(f"{task}: ranked in pools of other sizes ({pools}). Evaluate both with the same.")


def _warn_of_differences(prefix: str, facts: Sequence[Mapping[str, Any]], runs: Sequence[str | Path]) -> list[str]:
    """A warning for each fact that is not the same of all runs."""
    warnings = []
    for name in dict.fromkeys(name for one in facts for name in one):
        said = [one.get(name, "not recorded") for one in facts]
        if any(value != said[0] for value in said):
            each = "; ".join(f"{run}: {_differing(value, said)}" for run, value in zip(runs, said, strict=True))
            warnings.append(
                f"warning: {prefix}the runs differ in more than the model, in {name.replace('_', ' ')}: {each}"
            )
    return warnings


def _differing(value: Any, values: Sequence[Any]) -> str:
    """A value as text; of mappings only the entries that are not in all of them alike."""
    if not all(isinstance(other, dict) for other in values):
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    keys = [key for key in value if any(other.get(key) != value[key] for other in values)]
    return ", ".join(f"{key}: {value[key]}" for key in keys)


def _query_files(run: str | Path, results: Mapping[str, Any]) -> dict[str, Path]:
    """The files of the tasks that were run to their end; the others may be of an evaluation before."""
    folder = Path(run)
    found = {path.stem: path for path in sorted((folder / FOLDER).glob("*.npz"))}
    if "results" in results:
        done = {Path(entry.get("queries", "")).stem for entry in results["results"]}
        found = {task: path for task, path in found.items() if task in done}
    if not found:
        raise CompareError(
            f"{str(folder)!r} has no per-query results ({FOLDER}/*.npz). Name the output folder of `supclap evaluate`, "
            "or of a training run."
        )
    return found


def _check_same_clips(task: str, arrays: Sequence[Mapping[str, np.ndarray]], runs: Sequence[str | Path]) -> None:
    first = arrays[0]
    for other, run in zip(arrays[1:], runs[1:], strict=True):
        if set(other) - {"contents"} != set(first) - {"contents"}:
            raise CompareError(f"{task}: {runs[0]} and {run} hold results of different kinds.")
        clips, others = set(first["clip_ids"].tolist()), set(other["clip_ids"].tolist())
        if clips != others:
            only = sorted(clips ^ others)
            raise CompareError(
                f"{task}: {runs[0]} has {len(clips)} clips and {run} {len(others)}; {len(only)} are in one only, e.g. "
                f"{only[0]!r}. Scores over different clips do not compare: evaluate both on the same data."
            )
        if "labels" in first and first["labels"].tolist() != other["labels"].tolist():
            raise CompareError(f"{task}: {runs[0]} and {run} chose among different labels.")
        _check_same_targets(task, first, other, f"{runs[0]} and {run}")


def _check_same_targets(task: str, first: Mapping, other: Mapping, runs: str) -> None:
    if "targets" not in first:
        return
    clips = first["clip_ids"]
    different = (first["targets"] != _in_order(other, clips, "targets")).reshape(len(clips), -1).any(axis=1)
    if different.any():
        raise CompareError(
            f"{task}: of {runs} the labels of {different.sum()} clips differ, e.g. of {str(clips[different][0])!r}. Evaluate "
            "both on the same data."
        )


def _different_audio(arrays: Sequence[Mapping[str, np.ndarray]]) -> int:
    if not all("contents" in one for one in arrays):
        return 0
    contents = [dict(zip(one["clip_ids"].tolist(), one["contents"].tolist(), strict=True)) for one in arrays]
    return sum(len({one[clip] for one in contents}) > 1 for clip in contents[0])


def _aligned(queries: Queries, keys: np.ndarray, task: str, metric: str) -> np.ndarray:
    """Values in the order of `keys`."""
    order = np.argsort(queries.keys, kind="stable")
    place = np.searchsorted(queries.keys, keys, sorter=order)
    if len(queries.keys) != len(keys) or (queries.keys[order[np.minimum(place, len(keys) - 1)]] != keys).any():
        raise CompareError(f"{task}, {metric}: the captions of the two runs differ. Evaluate both on the same data.")
    return queries.values[order[place]]


def _compare_means(task, per_run, n_a, n_resamples, seed) -> list[Comparison]:
    """Compares the first `n_a` runs with the others, in every metric of their queries."""
    comparisons = []
    for metric, first in per_run[0].items():
        values = np.stack([_aligned(run[metric], first.keys, task, metric) for run in per_run])
        values_a, values_b = values[:n_a], values[n_a:]
        if len(np.unique(first.clusters)) < 2:
            raise CompareError(f"{task}: one clip is too few to compare.")
        pair = paired_difference(
            values_a.mean(0), values_b.mean(0), first.clusters, n_resamples, seed=seed, groups=first.groups
        )
        low, high = pair.low, pair.high
        if len(values) > 2:
            low, high = _interval_over_runs(values_a, values_b, first, n_resamples, seed)
        runs_a, runs_b = ([grouped_mean(run, first.groups) for run in runs] for runs in (values_a, values_b))
        comparisons.append(
            _comparison(
                task, metric, runs_a, runs_b, low, high, pair.p_value, values.shape[1], len(np.unique(first.clusters))
            )
        )
    return comparisons


def _comparison(task, metric, runs_a, runs_b, low, high, p_clips, n, n_clips) -> Comparison:
    a, b = float(np.mean(runs_a)), float(np.mean(runs_b))
    runs_a, runs_b = tuple(map(float, runs_a)), tuple(map(float, runs_b))
    p_runs = permutation_p_value(runs_a, runs_b)
    return Comparison(task, metric, a, b, a - b, float(low), float(high), p_clips, p_runs, runs_a, runs_b, n, n_clips)


def _interval_over_runs(values_a, values_b, queries: Queries, n_resamples, seed) -> tuple[float, float]:
    """Percentile interval where each resample draws clips, the same for both systems, and runs of each."""
    sums = [
        [cluster_totals(run, queries.clusters, queries.groups) for run in values] for values in (values_a, values_b)
    ]
    sizes = sums[0][0][1]
    totals_a, totals_b = (np.stack([totals for totals, _ in own]) for own in sums)
    n_clips = sizes.shape[1]
    generator = np.random.default_rng(seed)
    differences = []
    for _ in range(n_resamples):
        counts = np.bincount(generator.integers(0, n_clips, n_clips), minlength=n_clips)
        means = [
            mean_over_groups(
                totals[generator.integers(0, len(totals), len(totals))].mean(axis=0) @ counts, sizes @ counts
            )
            for totals in (totals_a, totals_b)
        ]
        differences.append(means[0] - means[1])
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def permutation_p_value(runs_a: Sequence[float], runs_b: Sequence[float]) -> float | None:
    """Exact two-sided p-value of H0 "the runs of both systems come from one distribution".

    Returns:
        The share of all ways to part the runs that differ at least as much in their means; `None` with fewer than two
        runs of a system, or too many ways to count.
    """
    runs = np.array([*runs_a, *runs_b])
    n_a, n = len(runs_a), len(runs)
    if min(n_a, n - n_a) < 2:
        return None
    choices = list(itertools.islice(itertools.combinations(range(n), n_a), _MOST_PERMUTATIONS + 1))
    if len(choices) > _MOST_PERMUTATIONS:
        return None
    in_a = np.zeros((len(choices), n), dtype=bool)
    in_a[np.arange(len(choices))[:, None], np.array(choices)] = True
    differences = in_a @ runs / n_a - ~in_a @ runs / (n - n_a)
    # the first choice is the observed one
    return float(np.mean(np.abs(differences) >= abs(differences[0]) - 1e-12))


def _compare_multi_label(task, arrays_a, arrays_b, n_resamples, seed) -> list[Comparison]:
    clips = arrays_a[0]["clip_ids"]
    targets = arrays_a[0]["targets"]
    scores = [_in_order(arrays, clips, "scores") for arrays in [*arrays_a, *arrays_b]]
    values = np.array([mean_average_precisions(score, targets, np.ones((1, len(clips))))[0] for score in scores])
    split = len(arrays_a)
    # every resample is a pass over all scores, see bootstrap_mean_average_precision
    draws = bootstrap_mean_average_precision(scores, targets, max(n_resamples // 4, 1), seed)
    generator = np.random.default_rng(seed)
    means = []
    for system in (draws[:split], draws[split:]):
        chosen = generator.integers(0, len(system), system.shape)  # runs, drawn for every resample of clips
        means.append(np.take_along_axis(system, chosen, axis=0).mean(axis=0))
    differences = means[0] - means[1]
    low, high = np.quantile(differences, [0.025, 0.975])
    beyond = min((differences <= 0).sum(), (differences >= 0).sum())
    p_value = min(1.0, 2 * (beyond + 1) / (len(differences) + 1))
    return [_comparison(task, "mAP", values[:split], values[split:], low, high, p_value, len(clips), len(clips))]


def _in_order(arrays: Mapping[str, np.ndarray], clips: np.ndarray, name: str) -> np.ndarray:
    """The rows of an array in the order of `clips`."""
    row_of = {clip: row for row, clip in enumerate(arrays["clip_ids"].tolist())}
    return arrays[name][[row_of[clip] for clip in clips.tolist()]]


def comparison_table(
    comparisons: Sequence[Comparison],
    notes: Sequence[str],
    chosen_on: Mapping[str, Sequence[str | None]],
    markdown: bool = False,
) -> str:
    """The comparisons as a table, in percent and percentage points.

    Args:
        comparisons: See [`compare_runs`].
        notes: The same.
        chosen_on: For `a` and `b` how the checkpoint of each run was chosen; see [`checkpoint_choice`].
        markdown: Whether the table is in Markdown.
    """
    header = ["task", "metric", "A", "B", "A - B", "95 % interval", "p (clips)", "p (runs)", "n"]
    rows = [
        [
            one.task,
            one.metric,
            _with_spread(one.a, one.runs_a),
            _with_spread(one.b, one.runs_b),
            f"{100 * one.difference:+.2f}",
            f"[{100 * one.low:+.2f}, {100 * one.high:+.2f}]",
            f"{one.p_clips:.4f}",
            "-" if one.p_runs is None else f"{one.p_runs:.3f}",
            str(one.n),
        ]
        for one in comparisons
    ]
    runs = (len(comparisons[0].runs_a), len(comparisons[0].runs_b))
    over = "clips and runs" if max(runs) > 1 else "clips"
    about = [
        f"A: {runs[0]} run(s), B: {runs[1]} run(s). Interval: 95 % bootstrap over {over}.",
        "p (clips): sign-flip permutation over clips, of these runs (for mAP: bootstrap); p (runs): exact permutation over runs.",
        *(
            f"{system.upper()}: {', '.join(CHOSEN_ON[choice] for choice in dict.fromkeys(choices))}"
            for system, choices in chosen_on.items()
        ),
        *notes,
    ]
    if markdown:
        lines = [header, ["---"] * 2 + ["---:"] * 7, *rows]
        return (
            "\n".join([*(f"{line}  " for line in about), "", *("| " + " | ".join(line) + " |" for line in lines)])
            + "\n"
        )
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [header, *rows]
    ]
    return "\n".join([*about, *lines])


def _with_spread(mean: float, runs: Sequence[float]) -> str:
    if len(runs) == 1:
        return f"{100 * mean:.2f}"
    return f"{100 * mean:.2f} ± {100 * float(np.std(runs, ddof=1)):.2f}"


def to_json(comparisons: Sequence[Comparison], notes: Sequence[str]) -> dict[str, Any]:
    return {"comparisons": [asdict(one) for one in comparisons], "notes": list(notes)}
