"""Paired comparison of two evaluated systems, against scipy, sklearn and by hand, and the folders it refuses."""

import json
import re

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import average_precision_score

from supclap.cli.compare import comparison_table
from supclap.errors import CompareError, DataError
from supclap.evaluation import retrieval_metrics, retrieval_ranks
from supclap.evaluation.compare import compare_runs
from supclap.evaluation.intervals import (
    bootstrap_mean_average_precision,
    mean_average_precisions,
    paired_difference,
    permutation_p_value,
)
from supclap.evaluation.results import CHOSEN_ON, load_queries, metric_queries, retrieval_queries, save_queries
from supclap_cli import main


def embeddings(noise, seed=0, n_clips=40):
    """Clips and two captions each, which lie the farther from their clip the more noise there is."""
    rng = np.random.default_rng(seed)
    audio = rng.normal(size=(n_clips, 8))
    index = np.repeat(np.arange(n_clips), 2)
    return audio, audio[index] + noise * rng.normal(size=(len(index), 8)), index


def save_task(folder, arrays, task="task", language=None, **entry):
    """Adds a task to the results of a run, with its per-query results."""
    file = f"queries/{task}{'' if language is None else f'[{language}]'}.npz"
    save_queries(folder / file, arrays)
    path = folder / "results.json"
    results = json.loads(path.read_text()) if path.is_file() else {"chosen_on": None, "results": []}
    head = {"task": task, "language": language, "status": "done", "record": {}, "queries": file}
    path.write_text(json.dumps({**results, "results": [*results["results"], {**head, **entry}]}))
    return folder


def set_results(run, **changes):
    path = run / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load_task(folder):
    return load_queries(folder / "queries" / "task.npz")


def save_retrieval(folder, noise, seed=0, order=None, **entry):
    """Per-query results of a system; `order` permutes its captions."""
    audio, text, index = embeddings(noise, seed)
    order = np.arange(len(index)) if order is None else order
    texts = [f"caption {row}" for row in order]
    ranks = retrieval_ranks(audio, text[order], index[order])
    arrays = retrieval_queries(ranks, [f"clip{row}" for row in range(len(audio))], texts)
    return save_task(folder, arrays, **entry)


def save_classes(folder, predicted, targets=None, ids=None, contents=None, **entry):
    targets = np.zeros(len(predicted), dtype=int) if targets is None else targets
    ids = [f"c{row}" for row in range(len(predicted))] if ids is None else ids
    arrays = {"clip_ids": np.asarray(ids), "labels": np.array(["a", "b"]), "targets": targets}
    arrays |= {} if contents is None else {"contents": np.asarray(contents)}
    return save_task(folder, {**arrays, "predicted": np.asarray(predicted)}, **entry)


def test_saved_ranks_give_the_metrics_again(tmp_path):
    save_retrieval(tmp_path, noise=1.5)
    queries = metric_queries(load_task(tmp_path))
    expected = retrieval_metrics(*embeddings(1.5))
    assert {name: query.values.mean() for name, query in queries.items()} == pytest.approx(
        {name: value for name, value in expected.items() if "/" in name and "median" not in name}
    )


def test_ranks_of_pools_keep_which_caption_they_belong_to():
    audio, text, index = embeddings(1.5)
    ranks = retrieval_ranks(audio, text, index, pool_size=7, seed=2)
    arrays = retrieval_queries(ranks, [f"clip{row}" for row in range(40)], [f"caption {row}" for row in range(80)])
    whole = retrieval_queries(
        retrieval_ranks(audio, text, index), arrays["clip_ids"], [f"caption {r}" for r in range(80)]
    )
    key_of = dict(zip(whole["text_keys"].tolist(), whole["text_clips"].tolist(), strict=True))
    assert [key_of[key] for key in arrays["text_keys"].tolist()] == arrays["text_clips"].tolist()
    assert len(set(arrays["text_keys"].tolist())) == 70


def test_the_comparison_is_the_paired_difference_of_the_queries(tmp_path):
    a, b = (save_retrieval(tmp_path / name, noise) for name, noise in (("a", 1.0), ("b", 1.6)))
    comparisons, notes = compare_runs([a], [b])
    first = {one.metric: one for one in comparisons}["text_to_audio/recall@1"]
    hits = [retrieval_ranks(*embeddings(noise)).text_to_audio[:, 0] == 1 for noise in (1.0, 1.6)]
    expected = paired_difference(*hits, np.repeat(np.arange(40), 2))
    # clusters are sorted by their ids here and by number there: the same draws fall on other clips
    assert first.difference == pytest.approx(expected.difference)
    assert (first.low, first.high) == pytest.approx((expected.low, expected.high), abs=0.03)
    assert first.p_clips == pytest.approx(expected.p_value, abs=0.02)
    assert (first.n, first.n_clips, first.p_runs, notes) == (80, 40, None, [])


def test_queries_are_paired_by_clip_and_caption_and_not_by_order(tmp_path):
    a = save_retrieval(tmp_path / "a", 1.5)
    b = save_retrieval(tmp_path / "b", 1.5, order=np.random.default_rng(0).permutation(80))
    comparisons, _ = compare_runs([a], [b])
    assert {one.difference for one in comparisons} == {0.0}
    assert {(one.low, one.high, one.p_clips) for one in comparisons} == {(0.0, 0.0, 1.0)}


def test_the_p_value_of_a_classification_is_that_of_the_exact_sign_test(tmp_path):
    # 12 clips only a has right, 3 only b: under exchange the 15 that differ are coin flips
    a = save_classes(tmp_path / "a", [0] * 12 + [1] * 3 + [0] * 45)
    b = save_classes(tmp_path / "b", [1] * 12 + [0] * 3 + [0] * 45)
    (one,), _ = compare_runs([a], [b], n_resamples=20_000)
    assert one.difference == pytest.approx(9 / 60)
    assert one.p_clips == pytest.approx(scipy.stats.binomtest(12, 15).pvalue, abs=0.005)


def test_the_p_value_over_runs_is_that_of_scipy():
    runs_a, runs_b = [0.61, 0.64, 0.60, 0.66], [0.55, 0.62, 0.59]

    def difference(x, y, axis):
        return np.mean(x, axis=axis) - np.mean(y, axis=axis)

    expected = scipy.stats.permutation_test((runs_a, runs_b), difference, n_resamples=np.inf, vectorized=True)
    ways = [abs(value) >= abs(expected.statistic) - 1e-12 for value in expected.null_distribution]
    assert permutation_p_value(runs_a, runs_b) == pytest.approx(np.mean(ways))
    assert permutation_p_value([1, 1.1, 1.2], [0, 0.1, 0.2]) == pytest.approx(0.1)
    assert permutation_p_value([0.6], [0.5, 0.4]) is None


def test_several_seeds_widen_the_interval_by_their_spread(tmp_path):
    rng = np.random.default_rng(0)
    shares = (0.9, 0.5, 0.7)
    a = [save_classes(tmp_path / f"a{n}", (rng.random(400) > s).astype(int)) for n, s in enumerate(shares)]
    b = [save_classes(tmp_path / f"b{n}", (rng.random(400) > s).astype(int)) for n, s in enumerate(shares)]
    (single,), _ = compare_runs(a[:1], b[:1])
    (several,), _ = compare_runs(a, b)
    assert len(several.runs_a) == 3
    assert several.difference == pytest.approx(np.mean(several.runs_a) - np.mean(several.runs_b))
    assert several.high - several.low > 2 * (single.high - single.low)
    assert several.p_runs > 0.1
    assert "3 run(s)" in comparison_table([several], [], {})
    assert "±" in comparison_table([several], [], {})


def test_tasks_in_several_languages_are_compared_in_their_mean_too(tmp_path):
    for run, noises in (("a", (0.8, 1.4)), ("b", (1.6, 1.5))):
        for language, noise in zip(("eng_Latn", "fra_Latn"), noises, strict=True):
            save_retrieval(tmp_path / run, noise, language=language)
    comparisons, _ = compare_runs([tmp_path / "a"], [tmp_path / "b"])
    recall = {one.task: one for one in comparisons if one.metric == "audio_to_text/recall@1"}
    english, french, mean = recall["task (eng_Latn)"], recall["task (fra_Latn)"], recall["task (mean of 2 languages)"]
    assert mean.difference == pytest.approx((english.difference + french.difference) / 2)
    assert mean.low < mean.difference < mean.high
    assert (mean.n, mean.n_clips) == (80, 40)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_of_a_mean_over_languages_of_unlike_size_holds_its_difference(tmp_path, seeds):
    # a is right in the 300 English and the 30 French clips, b in the English alone
    for run in [f"{system}{seed}" for system in "ab" for seed in range(seeds)]:
        for language, n in (("en", 300), ("fr", 30)):
            audio = np.eye(300)[:n]
            wrong = np.roll(audio, 1, axis=0) if run[0] == "b" and language == "fr" else audio
            ranks = retrieval_ranks(audio, wrong, np.arange(n))
            arrays = retrieval_queries(ranks, [f"clip{row}" for row in range(n)], [f"caption {r}" for r in range(n)])
            save_task(tmp_path / run, arrays, language=language)
    comparisons, _ = compare_runs(*[[tmp_path / f"{system}{seed}" for seed in range(seeds)] for system in "ab"])
    mean = next(one for one in comparisons if "mean" in one.task and one.metric == "text_to_audio/recall@1")
    assert (mean.a, mean.b, mean.low, mean.high) == (1.0, 0.5, 0.5, 0.5)


# --- several labels a clip -----------------------------------------------------------------------------------------


def multi_label_case(seed, noise, ties=False):
    rng = np.random.default_rng(seed)
    targets = np.random.default_rng(99).integers(0, 2, (60, 4))
    scores = targets + noise * rng.normal(size=targets.shape)
    return (np.round(scores, 1) if ties else scores), targets


@pytest.mark.parametrize("ties", [False, True])
def test_weighted_average_precision_is_that_of_sklearn(ties):
    scores, targets = multi_label_case(0, 1.0, ties)
    weights = np.random.default_rng(1).integers(0, 3, (3, 60))
    expected = [
        np.mean([average_precision_score(targets[:, c], scores[:, c], sample_weight=row) for c in range(4)])
        for row in weights
    ]
    np.testing.assert_allclose(mean_average_precisions(scores, targets, weights), expected, atol=1e-12)


def test_bootstrap_draws_of_the_map_are_paired_and_spread_about_it():
    (a, targets), (b, _) = multi_label_case(0, 0.6), multi_label_case(1, 2.0)
    draws = bootstrap_mean_average_precision([a, b, a], targets, n_resamples=200)
    np.testing.assert_array_equal(draws[0], draws[2])
    value = mean_average_precisions(a, targets, np.ones((1, 60)))[0]
    assert np.quantile(draws[0], 0.025) < value < np.quantile(draws[0], 0.975)


def test_map_is_compared_over_the_same_resamples(tmp_path):
    for name, (scores, targets) in {"a": multi_label_case(0, 0.5), "b": multi_label_case(1, 2.0)}.items():
        ids, labels = np.array([f"c{row}" for row in range(60)]), np.array(list("wxyz"))
        arrays = {"clip_ids": ids, "labels": labels, "targets": targets, "scores": scores}
        save_task(tmp_path / name, arrays)
    (one,), _ = compare_runs([tmp_path / "a"], [tmp_path / "b"])
    assert one.metric == "mAP"
    assert one.low <= one.difference <= one.high
    assert one.p_clips < 0.05
    ((same,), _) = compare_runs([tmp_path / "a"], [tmp_path / "a"])
    assert (same.difference, same.low, same.high, same.p_clips) == (0, 0, 0, 1)


# --- what does not compare -----------------------------------------------------------------------------------------


def test_scores_over_different_clips_are_refused(tmp_path):
    a, b = save_classes(tmp_path / "a", [0, 1, 0]), save_classes(tmp_path / "b", [0, 1])
    with pytest.raises(CompareError, match="first has 3 clips and the second 2; 1 are in one only, e.g. 'c2'"):
        compare_runs([a], [b])


def test_different_captions_are_refused(tmp_path):
    a, b = save_retrieval(tmp_path / "a", 1), save_retrieval(tmp_path / "b", 1)
    arrays = load_task(b)
    arrays["text_keys"][3] = "0" * 16
    save_queries(b / "queries" / "task.npz", arrays)
    with pytest.raises(CompareError, match="the captions of the two runs differ"):
        compare_runs([a], [b])


def test_other_labels_of_the_same_clips_are_refused(tmp_path):
    a, b = save_classes(tmp_path / "a", [0, 1, 0]), save_classes(tmp_path / "b", [0, 1, 0], np.array([0, 1, 0]))
    with pytest.raises(CompareError, match="the labels of 1 clips differ, e.g. of 'c1'"):
        compare_runs([a], [b])


def test_pools_of_another_size_are_refused(tmp_path):
    a, b = (save_retrieval(tmp_path / name, 1, pool_size=size) for name, size in (("a", 100), ("b", None)))
    with pytest.raises(CompareError, match=r"pools of other sizes \(.*a: 100; .*b: no pools\)"):
        compare_runs([a], [b])


def test_one_run_given_as_two_seeds_is_refused(tmp_path):
    a, b = save_classes(tmp_path / "a", [0, 1]), save_classes(tmp_path / "b", [0, 1])
    with pytest.raises(CompareError, match="are the same run .*: it counts as one seed"):
        compare_runs([b], [a, tmp_path / "b" / ".." / "a"])


def test_one_checkpoint_in_two_folders_given_as_two_seeds_is_refused(tmp_path):
    a, b = save_classes(tmp_path / "a", [0, 1]), save_classes(tmp_path / "b", [0, 1])
    for run in (a, b):
        set_results(run, fingerprint="f")
    with pytest.raises(CompareError, match="are the same run"):
        compare_runs([a, b], [a])


def test_results_that_are_torn_are_named(tmp_path):
    a = save_classes(tmp_path / "a", [0, 1])
    (a / "results.json").write_text("{torn")
    with pytest.raises(ValueError, match=r"a/results.json is not what `supclap evaluate` or a training run writes"):
        compare_runs([a], [a])


# --- what makes a comparison doubtful ------------------------------------------------------------------------------


def test_a_task_that_was_not_done_is_not_compared_by_the_queries_of_an_earlier_time(tmp_path):
    a, b = save_classes(tmp_path / "a", [0, 1, 0]), save_classes(tmp_path / "b", [0, 1, 1])
    for run in (a, b):
        save_task(run, load_task(run), "other")
    _, other = json.loads((a / "results.json").read_text())["results"]
    set_results(a, results=[{"task": "task", "language": None, "status": "failed", "reason": "x"}, other])
    comparisons, notes = compare_runs([a], [b])
    assert [one.task for one in comparisons] == ["other"]
    assert notes == ["not compared, for not every run has it: task"]


def test_checkpoints_chosen_in_other_ways_are_said_and_warned_of(tmp_path, capsys):
    a, b = save_classes(tmp_path / "a", [0, 1, 0]), save_classes(tmp_path / "b", [0, 1, 1])
    set_results(a, chosen_on="test")
    set_results(b, chosen_on="last")
    assert main(["compare", str(a), str(b), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["chosen_on"] == {"a": ["test"], "b": ["last"]}
    (warning,) = content["notes"]
    assert warning == (
        "warning: the runs differ in more than the model, in choice of the checkpoint: "
        f"{a}: {CHOSEN_ON['test']}; {b}: {CHOSEN_ON['last']}"
    )
    assert main(["compare", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert f"A: {CHOSEN_ON['test']}\nB: {CHOSEN_ON['last']}\n{warning}\n" in text


def test_checkpoints_chosen_alike_are_said_without_a_warning(tmp_path, capsys):
    a, b = save_classes(tmp_path / "a", [0, 1, 0]), save_classes(tmp_path / "b", [0, 1, 1])
    for run in (a, b):
        set_results(run, chosen_on="test")
    assert main(["compare", str(a), str(b), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert f"B: {CHOSEN_ON['test']}" in text
    assert "warning" not in text


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (({"templates": ["a {}"]}, {"templates": ["{}", "the {}"]}), "in templates: .*a: a {}; .*b: {}, the {}"),
        (({"labels": {"x": "dog", "y": "cat"}}, {"labels": {"x": "hound", "y": "cat"}}), "a: x: dog; .*b: x: hound$"),
        (({"language": "de"}, {"language": None}), "in language: .*a: de; .*b: None"),
        (({"protocols": {"text_to_audio": "new"}}, {}), "in protocols: .*a: .*new.*; .*b: not recorded"),
    ],
)
def test_another_protocol_of_a_task_is_warned_of(tmp_path, records, said):
    a, b = (
        save_classes(tmp_path / name, [0, 1, 0], record=record) for name, record in zip("ab", records, strict=True)
    )
    (warning,) = compare_runs([a], [b])[1]
    assert re.search(f"^warning: task: the runs differ in more than the model, .*{said}", warning)


def test_runs_by_different_protocols_are_refused(tmp_path):
    a = save_retrieval(tmp_path / "a", 1.0, record={"protocol": "text"})
    b = save_retrieval(tmp_path / "b", 1.6, record={"protocol": "index"})
    with pytest.raises(CompareError, match="task: retrieved by different protocols .*a: text; .*b: index"):
        compare_runs([a], [b])


def test_queries_of_shared_texts_are_paired_whichever_clip_comes_first(tmp_path):
    audio, text, index = embeddings(1.5)
    texts = np.array([f"caption {row % 30}" for row in range(80)])
    runs = []
    for name, order in (("a", np.arange(80)), ("b", np.random.default_rng(0).permutation(80))):
        ranks = retrieval_ranks(audio, text[np.arange(80) % 30][order], index[order], texts=texts[order])
        arrays = retrieval_queries(ranks, [f"clip{row}" for row in range(40)], texts[order])
        runs.append(save_task(tmp_path / name, arrays))
    comparisons, _ = compare_runs(runs[:1], runs[1:])
    assert {one.difference for one in comparisons} == {0.0}
    assert {one.n for one in comparisons} == {30, 40}


def test_queries_written_before_equal_texts_were_one_item_are_refused(tmp_path):
    a = save_retrieval(tmp_path / "a", 1.0)
    arrays = load_task(a)
    save_queries(a / "queries" / "task.npz", {name: one for name, one in arrays.items() if name != "n_clips"})
    with pytest.raises(ValueError, match="written before equal texts were one item.*Evaluate the model again"):
        compare_runs([a], [a])


def test_other_audio_under_the_same_id_is_said(tmp_path):
    a = save_classes(tmp_path / "a", [0, 1, 0], contents=["x", "y", "z"])
    b = save_classes(tmp_path / "b", [0, 1, 0], contents=["x", "y", "other"])
    assert compare_runs([a], [b])[1] == ["task: the audio of 1 clips is not the same in all runs"]


def test_results_of_an_older_version_are_refused_with_what_writes_new_ones(tmp_path):
    a = save_classes(tmp_path / "a", [0, 1])
    (a / "results.json").write_text(json.dumps({"chosen_on": "last", "retrieval": {}, "zero_shot": {}}))
    with pytest.raises(DataError, match=f"{a}/results.json was written .* `supclap evaluate {a}` writes a new one"):
        compare_runs([a], [a])


def test_a_folder_without_results_and_a_torn_file_are_named(tmp_path):
    a = save_classes(tmp_path / "a", [0, 1])
    with pytest.raises(CompareError, match="nothing.*no per-query results"):
        compare_runs([a], [tmp_path / "nothing"])
    whole = (a / "queries" / "task.npz").read_bytes()
    (a / "queries" / "task.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="task.npz' does not hold the queries"):
        compare_runs([a], [a])


def test_the_command_prints_and_writes_the_comparison(tmp_path, capsys):
    runs = [save_classes(tmp_path / name, [0, 1, int(name == "b0")] * 20) for name in ("a0", "a1", "b0", "b1")]
    a, b = ",".join(map(str, runs[:2])), ",".join(map(str, runs[2:]))
    assert main(["compare", a, b, "--output", str(tmp_path / "compare.json"), "--resamples", "50"]) == 0
    printed = capsys.readouterr().out
    assert "A: 2 run(s), B: 2 run(s). Interval: 95 % bootstrap over clips and runs." in printed
    (one,) = json.loads((tmp_path / "compare.json").read_text())["comparisons"]
    assert one["difference"] == pytest.approx(2 / 3 - 1 / 2)
    assert main(["compare", str(tmp_path), b]) == 1
    assert "no per-query results" in capsys.readouterr().err
