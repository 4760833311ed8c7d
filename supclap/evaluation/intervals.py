"""Confidence intervals and paired tests that respect what repeats: captions of one clip are not independent queries.

Resampling is by *cluster*, that is by clip: captions of one clip are drawn together. The gallery is held fixed, so an
interval speaks of the choice of queries and not of training seeds; repeat the training for those.
`median_rank` gets no interval: the bootstrap of a median of small integers is not reliable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from supclap.errors import name_indices
from supclap.evaluation.retrieval import DEFAULT_KS, RetrievalRanks, query_values


# Draws held in memory at once while resampling (8 bytes each).
_DRAWS_PER_CHUNK = 2**22


@dataclass(frozen=True)
class PairedDifference:
    """How much better system a is than system b on the same queries.

    Attributes:
        difference: Mean of a minus mean of b.
        low: Lower end of its bootstrap interval.
        high: Upper end.
        p_value: Two-sided p-value of the sign-flip test over clusters.
    """

    difference: float
    low: float
    high: float
    p_value: float


def cluster_totals(
    values: np.ndarray, clusters: np.ndarray, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sum `(G, C)` and number `(G, C)` of the values of each group in each cluster; one group when `groups` is `None`."""
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


def mean_over_groups(totals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The unweighted mean over groups (first axis) of each group's mean; a group without a value is left out."""
    means = np.divide(totals, sizes, out=np.zeros(totals.shape), where=sizes > 0)
    return means.sum(axis=0) / (sizes > 0).sum(axis=0)


def grouped_mean(values: np.ndarray, groups: np.ndarray | None = None) -> float:
    """The mean of the values `(Q,)`; of groups the unweighted mean of their means."""
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

    A resample's mean is its sum over its number of values, so clusters may differ in size. With groups (languages) it
    is the unweighted mean of the groups' means, each taken anew in every resample.

    Args:
        values: `(Q,)` one value per query.
        clusters: `(Q,)` label of the cluster (clip) each query belongs to, of any kind that sorts.
        n_resamples: Number of resamples.
        confidence: Coverage, strictly between 0 and 1.
        seed: Seed of the draws; equal arguments give equal intervals.
        groups: `(Q,)` the group of each query, where the mean is one over groups.

    Raises:
        ValueError: Shapes that differ, values that are not finite, fewer than two clusters, bad settings.
    """
    if n_resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"`n_resamples` must be positive and `confidence` between 0 and 1, got {n_resamples} and {confidence}."
        )
    totals, sizes = cluster_totals(values, clusters, groups)
    n_clusters = totals.shape[1]
    generator = np.random.default_rng(seed)
    means = []
    for n in _chunks(n_resamples, n_clusters):
        drawn = generator.integers(0, n_clusters, (n, n_clusters))
        sums = [[each[drawn].sum(axis=1) for each in of_groups] for of_groups in (totals, sizes)]
        means.append(mean_over_groups(*map(np.array, sums)))
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _sign_flip_p_value(totals: np.ndarray, n_resamples: int, seed: int) -> float:
    """Two-sided p-value of H0 "the two systems are exchangeable within every cluster".

    Under H0 each cluster's total difference is as likely as its negative. The observed assignment counts as one draw,
    so the smallest p-value is 1 / (n_resamples + 1).
    """
    generator = np.random.default_rng(seed)
    # Sums of the same numbers in another order may differ in the last bits: such a draw is as extreme as the observed.
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
    """Compare two systems on the same queries: mean difference, bootstrap interval and sign-flip p-value.

    Args:
        values_a: `(Q,)` one value per query of system a.
        values_b: `(Q,)` the same queries, in the same order, of system b.
        clusters: `(Q,)` cluster (clip) of each query.
        n_resamples: Number of bootstrap resamples and of sign flips.
        confidence: Coverage of the interval.
        seed: Seed of both.
        groups: As in [`bootstrap_interval`].

    Raises:
        ValueError: As in [`bootstrap_interval`].
    """
    values_a, values_b = np.asarray(values_a, dtype=np.float64), np.asarray(values_b, dtype=np.float64)
    if values_a.shape != values_b.shape:
        raise ValueError(f"Paired values must have one shape, got {values_a.shape} and {values_b.shape}.")
    differences = values_a - values_b
    low, high = bootstrap_interval(differences, clusters, n_resamples, confidence, seed, groups)
    totals, sizes = cluster_totals(differences, clusters, groups)
    # what each cluster adds to the mean: a flip of its sign keeps the number of values
    parts = (totals / sizes.sum(axis=1, keepdims=True)).mean(axis=0)
    return PairedDifference(grouped_mean(differences, groups), low, high, _sign_flip_p_value(parts, n_resamples, seed))


def metrics_with_intervals(
    ranks: RetrievalRanks,
    ks: Sequence[int] = DEFAULT_KS,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, dict[str, float | int | None]]:
    """Every mean-over-queries metric of the ranks as `{"value", "low", "high", "n"}`, n being the number of queries.

    Values are fractions from 0 to 1 and equal those of `retrieval_metrics`. Pooled ranks are accepted as well.
    """
    return {
        name: value_with_interval(query.values, query.clusters, n_resamples, confidence, seed)
        for name, query in query_values(ranks, ks).items()
    }


def value_with_interval(
    values: np.ndarray,
    clusters: np.ndarray,
    n_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> dict[str, float | int | None]:
    """Mean of the values as `{"value", "low", "high", "n"}`; the ends are `None` where one clip is all there is.

    Arguments as in [`bootstrap_interval`].
    """
    low, high = None, None
    if len(np.unique(clusters)) > 1:
        low, high = bootstrap_interval(values, clusters, n_resamples, confidence, seed, groups)
    return {"value": grouped_mean(values, groups), "low": low, "high": high, "n": len(values)}


def format_interval(metric: Mapping[str, float | int | None]) -> str:
    """`[low, high]` in percent, or a dash where there is no interval."""
    return "-" if metric["low"] is None else f"[{100 * metric['low']:.2f}, {100 * metric['high']:.2f}]"


def format_table(metrics: Mapping[str, Mapping[str, float | int | None]]) -> str:
    """Plain text table of [`metrics_with_intervals`], in percent, one metric a line."""
    header = ("metric", "%", "interval", "n")
    lines = [(name, f"{100 * m['value']:.2f}", format_interval(m), str(m["n"])) for name, m in metrics.items()]
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    return "\n".join(
        "  ".join([name.ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)])
        for name, *cells in [header, *lines]
    )


def mean_average_precisions(scores: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean average precision over classes, once for every row of clip weights: `(R,)`.

    With weights of 1 it equals the mean of scikit-learn's average precision over the classes that have a clip; integer
    weights count a clip so many times. A class without a clip in a resample is left out of its mean.

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
        # clips of one score are above the threshold together
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
    """Bootstrap draws of the mAP of one or several systems on the same clips: `(systems, n_resamples)`.

    Args:
        scores: `(N, C)` of each system; a resample draws the same clips for all of them.
        targets: `(N, C)` 1 where the clip has the label, else 0.
        n_resamples: Number of resamples. Each costs a pass over all scores, so it is smaller than elsewhere.
        seed: Seed of the draws.
    """
    generator = np.random.default_rng(seed)
    n_clips = len(targets)
    draws = []
    for n in _chunks(n_resamples, n_clips):
        weights = generator.multinomial(n_clips, np.full(n_clips, 1 / n_clips), size=n)
        draws.append([mean_average_precisions(score, targets, weights) for score in scores])
    return np.concatenate(draws, axis=1)
