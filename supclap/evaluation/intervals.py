"""Confidence intervals and paired tests in which the captions of one clip do not count as independent queries.

A resample draws whole *clusters*, that is clips: all captions of a clip are drawn together. A text that several clips have is
one query of a retrieval and not one for each of them; it is drawn with the first of them. The gallery is held fixed. An
interval therefore speaks of the choice of queries, and of training seeds only where several runs are compared.
`median_rank` gets no interval, because the bootstrap of a median of small integers is not reliable.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from supclap.errors import name_indices
from supclap.evaluation.retrieval import DEFAULT_KS, RetrievalRanks, query_values


# The number of draws that are held in memory at once while resampling (8 bytes each).
_DRAWS_PER_CHUNK = 2**22
# The permutation test over runs enumerates at most so many ways to part them.
_MOST_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class PairedDifference:
    """How much better system a is than system b on the same queries.

    Attributes:
        difference: The mean of a minus the mean of b.
        low: The lower end of its bootstrap interval.
        high: The upper end.
        p_value: The two-sided p-value of the sign-flip test over clusters.
    """

    difference: float
    low: float
    high: float
    p_value: float


def _cluster_totals(
    values: np.ndarray, clusters: np.ndarray, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The sum `(G, C)` and the number `(G, C)` of the values of each group in each cluster; `None` makes one group."""
    values, clusters = np.asarray(values, dtype=np.float64), np.asarray(clusters)
    if values.ndim != 1 or values.shape != clusters.shape:
        raise ValueError(
            f"`values` and `clusters` must be vectors of one length, got shapes {values.shape} and {clusters.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(f"`values` has NaN or infinite entries at {name_indices(bad)}.")
    unique, member_of = np.unique(clusters, return_inverse=True)
    if len(unique) < 2:
        raise ValueError(f"An interval needs at least two clusters to resample, got {len(unique)}.")
    named, group_of = np.unique(np.zeros(len(values)) if groups is None else groups, return_inverse=True)
    cells, shape = group_of * len(unique) + member_of, (len(named), len(unique))
    totals = np.bincount(cells, weights=values, minlength=len(named) * len(unique))
    return totals.reshape(shape), np.bincount(cells, minlength=len(named) * len(unique)).reshape(shape)


def _mean_over_groups(totals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The unweighted mean over groups (the first axis) of the mean of each; a group without a value is left out."""
    means = np.divide(totals, sizes, out=np.zeros(totals.shape), where=sizes > 0)
    return means.sum(axis=0) / (sizes > 0).sum(axis=0)


def grouped_mean(values: np.ndarray, groups: np.ndarray | None = None) -> float:
    """The mean of the values `(Q,)`, or with groups the unweighted mean of the means of the groups."""
    if groups is None:
        return float(np.mean(values))
    return float(np.mean([values[groups == group].mean() for group in np.unique(groups)]))


def _chunks(n_resamples: int, n_clusters: int):
    """Sizes that add up to `n_resamples` and keep each chunk of draws within the memory bound."""
    size = max(1, _DRAWS_PER_CHUNK // n_clusters)
    for start in range(0, n_resamples, size):
        yield min(size, n_resamples - start)


def bootstrap_interval(
    values: np.ndarray,
    clusters: np.ndarray,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values`, resampling whole clusters with replacement.

    The mean of a resample is its sum over its number of values, so clusters may differ in size. With groups (languages) it
    is the unweighted mean of the means of the groups, each of which is taken anew in every resample.

    Args:
        values: `(Q,)` the value of each query.
        clusters: `(Q,)` label of the cluster (clip) that each query belongs to, of any kind that sorts.
        n_resamples: Number of resamples.
        confidence: Coverage, strictly between 0 and 1.
        seed: Seed of the draws; equal arguments give equal intervals.
        groups: `(Q,)` the group of each query, where the mean is one over groups.

    Raises:
        ValueError: Shapes that differ, values that are not finite, fewer than two clusters, or bad settings.
    """
    return _percentiles(_bootstrap_means(values, clusters, n_resamples, seed, groups), confidence)


def _bootstrap_means(values, clusters, n_resamples: int, seed: int, groups=None) -> np.ndarray:
    """The mean of each resample `(n_resamples,)`. The draws depend on the clusters and the seed, not on the values."""
    if n_resamples < 1:
        raise ValueError(f"`n_resamples` must be positive, got {n_resamples}.")
    totals, sizes = _cluster_totals(values, clusters, groups)
    n_clusters = totals.shape[1]
    generator = np.random.default_rng(seed)
    means = []
    for n in _chunks(n_resamples, n_clusters):
        drawn = generator.integers(0, n_clusters, (n, n_clusters))
        sums = [[each[drawn].sum(axis=1) for each in of_groups] for of_groups in (totals, sizes)]
        means.append(_mean_over_groups(*map(np.array, sums)))
    return np.concatenate(means)


def _percentiles(draws: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must be strictly between 0 and 1, got {confidence}.")
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _sign_flip_p_value(totals: np.ndarray, n_resamples: int, seed: int) -> float:
    """Two-sided p-value of H0 "the two systems are exchangeable within every cluster".

    Under H0 the total difference of each cluster is as likely as its negative. The observed assignment counts as one draw,
    so the smallest p-value is 1 / (n_resamples + 1).
    """
    generator = np.random.default_rng(seed)
    # Sums of the same numbers in another order may differ in the last bits: such a draw is as extreme as the observed one.
    threshold = abs(totals.sum()) - 1e-12 * np.abs(totals).sum()
    extreme = 1
    for n in _chunks(n_resamples, len(totals)):
        signs = generator.integers(0, 2, (n, len(totals))) * 2 - 1
        extreme += int((np.abs(signs @ totals) >= threshold).sum())
    return extreme / (n_resamples + 1)


def paired_difference(
    values_a: np.ndarray,
    values_b: np.ndarray,
    clusters: np.ndarray,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> PairedDifference:
    """Compares two systems on the same queries: mean difference, bootstrap interval and sign-flip p-value.

    A system may have several runs, for instance one for each training seed. Each resample then draws clusters, the same
    for all runs, and runs of each system. The p-value is that of the mean over the runs, so it speaks of these runs only;
    see [`permutation_p_value`] for other seeds.

    Args:
        values_a: `(Q,)` the value of each query of system a, or `(R, Q)` of each of its runs.
        values_b: `(Q,)` or `(S, Q)` the same queries, in the same order, of system b.
        clusters: `(Q,)` cluster (clip) of each query.
        n_resamples: Number of bootstrap resamples and of sign flips.
        confidence: Coverage of the interval.
        seed: Seed of both.
        groups: As in [`bootstrap_interval`].

    Raises:
        ValueError: As in [`bootstrap_interval`].
    """
    runs_a, runs_b = (np.atleast_2d(np.asarray(values, dtype=np.float64)) for values in (values_a, values_b))
    if runs_a.shape[1:] != runs_b.shape[1:]:
        raise ValueError(f"Paired values must be of the same queries, got shapes {runs_a.shape} and {runs_b.shape}.")
    differences = runs_a.mean(axis=0) - runs_b.mean(axis=0)
    # one seed, so that a resample has the same clusters in all runs
    draws = [
        np.stack([_bootstrap_means(run, clusters, n_resamples, seed, groups) for run in runs])
        for runs in (runs_a, runs_b)
    ]
    totals, sizes = _cluster_totals(differences, clusters, groups)
    # What each cluster adds to the mean. A flip of the sign of a cluster keeps the number of its values.
    parts = (totals / sizes.sum(axis=1, keepdims=True)).mean(axis=0)
    interval = _percentiles(_difference_of_drawn_runs(*draws, seed), confidence)
    return PairedDifference(grouped_mean(differences, groups), *interval, _sign_flip_p_value(parts, n_resamples, seed))


def _difference_of_drawn_runs(draws_a: np.ndarray, draws_b: np.ndarray, seed: int) -> np.ndarray:
    """The differences of the two systems `(n,)`, where each resample draws runs of each with replacement.

    Args:
        draws_a: `(R, n)` the metric of each run of system a in each of n resamples.
        draws_b: `(S, n)` the same of system b, in the same resamples.
        seed: Seed of the draws of runs.
    """
    generator = np.random.default_rng(seed)
    means = []
    for draws in (draws_a, draws_b):
        drawn = generator.integers(0, len(draws), draws.shape)
        means.append(np.take_along_axis(draws, drawn, axis=0).mean(axis=0))
    return means[0] - means[1]


def permutation_p_value(runs_a: Sequence[float], runs_b: Sequence[float]) -> float | None:
    """Exact two-sided p-value of H0 "the runs of both systems come from one distribution".

    Returns:
        The share of all ways to part the runs that differ at least as much in their means. It is `None` with fewer than
        two runs of a system, or where there are too many ways to count.
    """
    runs = np.array([*runs_a, *runs_b])
    n_a, n = len(runs_a), len(runs)
    if min(n_a, n - n_a) < 2 or math.comb(n, n_a) > _MOST_PERMUTATIONS:
        return None
    choices = np.array(list(itertools.combinations(range(n), n_a)))
    in_a = np.zeros((len(choices), n), dtype=bool)
    in_a[np.arange(len(choices))[:, None], choices] = True
    differences = in_a @ runs / n_a - ~in_a @ runs / (n - n_a)
    # The first choice is the observed one. Equal differences may differ in the last bits.
    return float(np.mean(np.abs(differences) >= abs(differences[0]) - 1e-12))


def metrics_with_intervals(
    ranks: RetrievalRanks,
    ks: Sequence[int] = DEFAULT_KS,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, dict[str, float | int | None]]:
    """Every metric of [`~supclap.evaluation.retrieval.retrieval_metrics`] as `{"value", "low", "high", "n"}`.

    Rates are fractions from 0 to 1; n is the number of queries. The ends of a median rank are `None`.
    """
    means = {
        name: value_with_interval(query.values, query.clusters, n_resamples, confidence, seed)
        for name, query in query_values(ranks, ks).items()
    }
    medians = {
        f"{direction}/median_rank": {"value": float(np.median(best)), "low": None, "high": None, "n": len(best)}
        for direction, best in ranks.best.items()
    }
    return {**means, **medians}


def value_with_interval(
    values: np.ndarray,
    clusters: np.ndarray,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> dict[str, float | int | None]:
    """The mean of the values as `{"value", "low", "high", "n"}`; the ends are `None` where there is only one clip.

    The arguments are those of [`bootstrap_interval`].
    """
    low, high = None, None
    if len(np.unique(clusters)) > 1:
        low, high = bootstrap_interval(values, clusters, n_resamples, confidence, seed, groups)
    return {"value": grouped_mean(values, groups), "low": low, "high": high, "n": len(values)}


def mean_average_precisions(scores: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean average precision over classes, once for every row of clip weights: `(R,)`.

    With weights of 1 it equals the mean of scikit-learn's average precision over the classes that have a clip. An integer
    weight counts a clip so many times. A class without a clip in a resample is left out of the mean of that resample.

    Args:
        scores: `(N, C)`.
        targets: `(N, C)` 1 where the clip has the label, else 0.
        weights: `(R, N)` non-negative.
    """
    total = np.zeros(len(weights))
    n_classes = np.zeros(len(weights))
    for score, target in zip(np.asarray(scores).T, np.asarray(targets, dtype=bool).T, strict=True):
        if not target.any():
            continue
        order = np.argsort(-score, kind="stable")
        # Clips of one score pass a threshold together, so precision is taken after the last of them.
        ends = np.append(np.flatnonzero(np.diff(score[order])), len(order) - 1)
        sorted_weights = weights[:, order].astype(np.float64)
        above = sorted_weights.cumsum(axis=1)[:, ends]
        right = (sorted_weights * target[order]).cumsum(axis=1)[:, ends]
        gained = np.diff(right, axis=1, prepend=0)
        found = right[:, -1]
        precision = np.divide(right, above, out=np.zeros_like(right), where=above > 0)
        total += np.divide((precision * gained).sum(axis=1), found, out=np.zeros(len(weights)), where=found > 0)
        n_classes += found > 0
    return np.divide(total, n_classes, out=np.zeros(len(weights)), where=n_classes > 0)


def bootstrap_mean_average_precision(
    scores: Sequence[np.ndarray],
    targets: np.ndarray,
    n_resamples: int = 500,
    seed: int = 0,
) -> np.ndarray:
    """The mAP of one or several systems in each resample of the clips: `(systems, n_resamples)`.

    Args:
        scores: `(N, C)` of each system. A resample draws the same clips for all of them.
        targets: `(N, C)` 1 where the clip has the label, else 0.
        n_resamples: Number of resamples. Each takes a pass over all scores, so there are fewer than elsewhere.
        seed: Seed of the draws.
    """
    generator = np.random.default_rng(seed)
    n_clips = len(targets)
    draws = []
    for n in _chunks(n_resamples, n_clips):
        weights = generator.multinomial(n_clips, np.full(n_clips, 1 / n_clips), size=n)
        draws.append([mean_average_precisions(score, targets, weights) for score in scores])
    return np.concatenate(draws, axis=1)


def paired_map_difference(
    scores_a: Sequence[np.ndarray],
    scores_b: Sequence[np.ndarray],
    targets: np.ndarray,
    n_resamples: int = 500,
    seed: int = 0,
) -> PairedDifference:
    """Compares the mAP of two systems, each of one or several runs, on the same clips.

    mAP is no mean over clips, so there is no sign-flip test. The p-value is twice the smaller share of the bootstrap
    differences that lie on one side of 0.

    Args:
        scores_a: `(N, C)` of each run of system a.
        scores_b: `(N, C)` of each run of system b.
        targets: `(N, C)` 1 where the clip has the label, else 0.
        n_resamples: As in [`bootstrap_mean_average_precision`].
        seed: Seed of the draws.
    """
    once = np.ones((1, len(targets)))
    a, b = (
        np.mean([mean_average_precisions(score, targets, once)[0] for score in scores])
        for scores in (scores_a, scores_b)
    )
    draws = bootstrap_mean_average_precision([*scores_a, *scores_b], targets, n_resamples, seed)
    differences = _difference_of_drawn_runs(draws[: len(scores_a)], draws[len(scores_a) :], seed)
    beyond = min((differences <= 0).sum(), (differences >= 0).sum())
    p_value = min(1.0, 2 * (beyond + 1) / (n_resamples + 1))
    return PairedDifference(float(a - b), *_percentiles(differences), p_value)
