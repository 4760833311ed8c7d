"""Bootstrap intervals and paired tests against scipy.stats and closed forms."""

import numpy as np
import pytest
from scipy import stats

from supclap.evaluation import (
    bootstrap_interval,
    format_table,
    intervals,
    metrics_with_intervals,
    paired_difference,
    retrieval_metrics,
    retrieval_ranks,
)
from supclap.evaluation.intervals import value_with_interval


def clustered_values(seed, n_clusters=40):
    """Values with a cluster effect, one to five a cluster, in random order."""
    rng = np.random.default_rng(seed)
    clusters = rng.permutation(np.repeat(np.arange(n_clusters), rng.integers(1, 6, n_clusters)))
    return rng.normal(size=n_clusters)[clusters] + 0.3 * rng.normal(size=len(clusters)), clusters


def test_interval_equals_scipy_bootstrap_over_clusters():
    values, clusters = clustered_values(0)
    values += 3  # far from 0, so that a resample's number of values matters
    totals, sizes = np.bincount(clusters, weights=values), np.bincount(clusters)
    expected = stats.bootstrap(
        (totals, sizes),
        lambda total, size, axis: total.sum(axis) / size.sum(axis),
        paired=True,
        n_resamples=40_000,
        confidence_level=0.9,
        method="percentile",
        rng=1,
    )
    # A 5 % quantile of 40,000 draws has a standard error of 0.011 standard errors of the mean: six of them.
    tolerance = 6 * 0.011 * np.sqrt(2) * expected.standard_error
    interval = bootstrap_interval(values, clusters, n_resamples=40_000, confidence=0.9)
    assert interval == pytest.approx(tuple(expected.confidence_interval), abs=tolerance)


def test_interval_of_a_rate_equals_the_binomial_quantiles():
    # Resampling n independent 0/1 values draws a Binomial(n, p) count: the quantiles are known and exact.
    n, k = 50, 13
    expected = stats.binom.ppf([0.025, 0.975], n, k / n) / n
    values = (np.arange(n) < k).astype(float)
    assert bootstrap_interval(values, np.arange(n), n_resamples=20_000) == pytest.approx(tuple(expected), abs=1e-12)


def test_repeating_every_caption_does_not_narrow_the_interval():
    values = np.random.default_rng(2).normal(size=30)
    clips = np.arange(30)
    five_times = bootstrap_interval(np.repeat(values, 5), np.repeat(clips, 5))
    assert five_times == pytest.approx(bootstrap_interval(values, clips), abs=1e-12)


def test_interval_does_not_depend_on_query_order_or_cluster_names():
    values, clusters = clustered_values(3)
    order = np.random.default_rng(4).permutation(len(values))
    names = np.array([f"clip {c:03d}" for c in clusters])
    assert bootstrap_interval(values[order], names[order]) == pytest.approx(
        bootstrap_interval(values, clusters), abs=1e-12
    )


def test_interval_follows_the_seed():
    values, clusters = clustered_values(5)
    first, again, other = (bootstrap_interval(values, clusters, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_memory_chunks_do_not_change_a_result(monkeypatch):
    values, clusters = clustered_values(6)
    whole = paired_difference(values, 0 * values, clusters)
    monkeypatch.setattr(intervals, "_DRAWS_PER_CHUNK", 1000)
    assert paired_difference(values, 0 * values, clusters) == whole


def test_p_value_equals_scipy_sign_permutation_test():
    rng = np.random.default_rng(7)
    totals = rng.normal(loc=0.5, size=9)
    # 2^9 sign patterns: scipy enumerates them all.
    exact = stats.permutation_test(
        (totals,), lambda x, axis: x.mean(axis), permutation_type="samples", vectorized=True, n_resamples=np.inf
    ).pvalue
    result = paired_difference(totals, np.zeros(9), np.arange(9), n_resamples=40_000)
    assert result.p_value == pytest.approx(exact, abs=5 * np.sqrt(exact / 40_000))


def test_p_value_counts_clusters_and_not_queries():
    # Five clips that all improve: only 2 of 2^5 sign patterns are as extreme, however many captions they have.
    better = np.repeat(1.0, 50)
    result = paired_difference(better, 0 * better, np.repeat(np.arange(5), 10), n_resamples=40_000)
    assert result.p_value == pytest.approx(2 / 2**5, abs=0.006)


def test_equal_systems_differ_by_nothing_with_p_one():
    values, clusters = clustered_values(8)
    result = paired_difference(values, values, clusters)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_the_interval_of_a_difference_is_that_of_the_differences_of_the_queries():
    values, clusters = clustered_values(12)
    other = np.random.default_rng(13).normal(size=len(values))
    result = paired_difference(values, other, clusters)
    assert (result.low, result.high) == pytest.approx(bootstrap_interval(values - other, clusters), abs=1e-12)


def test_several_runs_that_are_alike_count_as_one():
    values, clusters = clustered_values(14)
    single = paired_difference(values, 0 * values, clusters)
    several = paired_difference([values] * 3, [0 * values] * 2, clusters)
    for field in ("difference", "low", "high", "p_value"):
        assert getattr(several, field) == pytest.approx(getattr(single, field), abs=1e-12)


def test_swapping_the_systems_mirrors_the_comparison():
    values, clusters = clustered_values(9)
    ahead, behind = paired_difference(values, 0 * values, clusters), paired_difference(0 * values, values, clusters)
    mirrored = (-behind.difference, -behind.high, -behind.low, behind.p_value)
    assert (ahead.difference, ahead.low, ahead.high, ahead.p_value) == pytest.approx(mirrored, abs=1e-12)


def test_the_smallest_p_value_counts_the_observed_assignment():
    values = np.ones(200)
    assert paired_difference(values, 0 * values, np.arange(200), n_resamples=999).p_value == 1 / 1000


def retrieval_case(seed=10, n_audio=30, n_text=90):
    rng = np.random.default_rng(seed)
    clips = rng.permutation(np.repeat(np.arange(n_audio), n_text // n_audio))
    audio = rng.normal(size=(n_audio, 8))
    return audio, audio[clips] + rng.normal(size=(n_text, 8)), clips


def test_metrics_with_intervals_hold_the_values_of_retrieval_metrics():
    case = retrieval_case()
    metrics = metrics_with_intervals(retrieval_ranks(*case), n_resamples=100)
    expected = retrieval_metrics(*case)
    assert {name: m["value"] for name, m in metrics.items()} == {
        name: value for name, value in expected.items() if "/" in name
    }


def test_a_median_rank_has_no_interval():
    metrics = metrics_with_intervals(retrieval_ranks(*retrieval_case()), n_resamples=100)
    ends = {name for name, metric in metrics.items() if metric["low"] is None and metric["high"] is None}
    assert ends == {"text_to_audio/median_rank", "audio_to_text/median_rank"}


def test_metrics_with_intervals_resample_clips_in_both_directions():
    audio, text, clips = retrieval_case()
    ranks = retrieval_ranks(audio, text, clips)
    metrics = metrics_with_intervals(ranks, ks=(1,), n_resamples=500, confidence=0.8, seed=3)
    hits = ranks.text_to_audio[:, 0] == 1, ranks.audio_to_text[:, 0] == 1
    for name, values, clusters in (
        ("text_to_audio/recall@1", hits[0], clips),
        ("audio_to_text/recall@1", hits[1], np.arange(len(audio))),
    ):
        low, high = bootstrap_interval(values, clusters, n_resamples=500, confidence=0.8, seed=3)
        assert metrics[name] == {"value": values.mean(), "low": low, "high": high, "n": len(values)}


def test_the_table_shows_percent_with_aligned_columns():
    table = format_table(
        {
            "text_to_audio/recall@1": {"value": 0.44162, "low": 0.4, "high": 0.5, "n": 4785},
            "audio_to_text/mAP@10": {"value": 1.0, "low": 1.0, "high": 1.0, "n": 957},
            "audio_to_text/median_rank": {"value": 2.5, "low": None, "high": None, "n": 957},
        }
    )
    assert table.splitlines() == [
        "metric                            %          interval     n",
        "text_to_audio/recall@1        44.16    [40.00, 50.00]  4785",
        "audio_to_text/mAP@10         100.00  [100.00, 100.00]   957",
        "audio_to_text/median_rank  rank 2.5                 -   957",
    ]


@pytest.mark.parametrize(
    ("values", "clusters", "settings", "message"),
    [
        ([0.0, np.nan], [0, 1], {}, r"NaN or infinite entries at \[1\]"),
        ([0.0, 1.0], [0, 0], {}, "at least two clusters to resample, got 1"),
        ([0.0, 1.0], [0, 1, 2], {}, r"shapes \(2,\) and \(3,\)"),
        ([0.0, 1.0], [0, 1], {"confidence": 95}, "`confidence` must be strictly between 0 and 1, got 95"),
        ([0.0, 1.0], [0, 1], {"n_resamples": 0}, "`n_resamples` must be positive"),
    ],
)
def test_values_that_cannot_be_resampled_are_refused(values, clusters, settings, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(values, clusters, **settings)


def test_systems_with_different_queries_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 3\) and \(1, 2\)"):
        paired_difference([0, 1, 1], [0, 1], [0, 1, 2])


# --- means over languages ------------------------------------------------------------------------------------------


def unequal_languages(seed=11, n_clips=300):
    """A value for every clip in one language, and for every tenth of them in another."""
    values = (np.random.default_rng(seed).random(n_clips) < 0.95).astype(float)
    clips = np.concatenate([np.arange(n_clips), np.arange(0, n_clips, 10)])
    groups = np.repeat(["en", "fr"], [n_clips, n_clips // 10])
    return values[clips], clips, groups


def test_each_resample_takes_the_mean_of_every_language_anew():
    values, clips, groups = unequal_languages()
    metric = value_with_interval(values, clips, n_resamples=4000, groups=groups)
    english, french = values[groups == "en"], values[groups == "fr"]
    assert metric["value"] == pytest.approx((english.mean() + french.mean()) / 2)

    generator, means = np.random.default_rng(5), []
    for _ in range(4000):
        drawn = generator.integers(0, 300, 300)
        in_french = drawn[drawn % 10 == 0]
        means.append((english[drawn].mean() + french[in_french // 10].mean()) / 2)
    expected = np.quantile(means, [0.025, 0.975])
    assert (metric["low"], metric["high"]) == pytest.approx(tuple(expected), abs=0.004)
    assert metric["high"] <= 1


def test_a_language_that_a_resample_does_not_draw_is_left_out_of_its_mean():
    # the one French clip is drawn in about two of three resamples; the mean is 1 with it and without it
    values, clips, groups = np.ones(4), np.array([0, 1, 2, 0]), np.array(["en", "en", "en", "fr"])
    assert bootstrap_interval(values, clips, n_resamples=50, groups=groups) == (1.0, 1.0)


def test_a_paired_difference_weighs_languages_alike():
    values, clips, groups = unequal_languages()
    other = np.where(groups == "fr", 0.0, values)
    result = paired_difference(values, other, clips, n_resamples=500, groups=groups)
    assert result.difference == pytest.approx(values[groups == "fr"].mean() / 2)
    assert result.low <= result.difference <= result.high
    assert result.p_value < 0.01
