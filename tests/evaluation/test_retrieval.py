"""Retrieval metrics against a sorting oracle written here, scikit-learn, and hand-computed cases."""

import socket

import numpy as np
import pytest
import torch
from sklearn.metrics import coverage_error, label_ranking_average_precision_score, top_k_accuracy_score
from torch.utils._python_dispatch import TorchDispatchMode

from supclap.evaluation import (
    pooled_retrieval_metrics,
    pooled_retrieval_ranks,
    retrieval_metrics,
    retrieval_ranks,
)
from support.paths import ROOT


def relevant_ranks(scores, relevant):
    """Ranks of the relevant items once sorted by score, wrong ones first among equals."""
    order = sorted(range(len(scores)), key=lambda item: (-scores[item], relevant[item]))
    return [rank for rank, item in enumerate(order, start=1) if relevant[item]]


def oracle(audio, text, clips, ks=(1, 5, 10)):
    """The metrics from sorted lists, one query at a time, on float64 scores."""
    scores = np.asarray(text, dtype=np.float64) @ np.asarray(audio, dtype=np.float64).T
    by_text = [relevant_ranks(row, np.arange(len(audio)) == clip) for row, clip in zip(scores, clips, strict=True)]
    by_audio = [relevant_ranks(scores[:, clip], clips == clip) for clip in range(len(audio))]
    metrics = {"n_audio": len(audio), "n_text": len(text)}
    for direction, queries in (("text_to_audio", by_text), ("audio_to_text", by_audio)):
        best = np.array([ranks[0] for ranks in queries])
        metrics |= {f"{direction}/recall@{k}": np.mean(best <= k) for k in ks}
        metrics[f"{direction}/median_rank"] = np.median(best)
        metrics[f"{direction}/mAP@10"] = np.mean(
            [sum((i + 1) / r for i, r in enumerate(ranks) if r <= 10) / min(10, len(ranks)) for ranks in queries]
        )
        metrics[f"{direction}/mAP@10_any"] = np.mean([1 / r if r <= 10 else 0.0 for r in best])
    del metrics["text_to_audio/mAP@10_any"]
    return metrics


def uneven_clips(rng, n_audio, n_text):
    """A caption for every clip and the rest anywhere, in random order."""
    return rng.permutation(np.concatenate([np.arange(n_audio), rng.integers(0, n_audio, n_text - n_audio)]))


def random_case(seed, n_audio=23, n_text=91, dim=6):
    """Float32 embeddings where captions lean towards their clip."""
    rng = np.random.default_rng(seed)
    clips = uneven_clips(rng, n_audio, n_text)
    audio = rng.normal(size=(n_audio, dim)).astype(np.float32)
    text = (audio[clips] + rng.normal(size=(n_text, dim))).astype(np.float32)
    return audio, text, clips


def tied_case(seed, n_audio=23, n_text=91):
    """Embeddings of small integers: scores are exact and most of them tie."""
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 2, (n_audio, 3)), rng.integers(-1, 2, (n_text, 3)), uneven_clips(rng, n_audio, n_text)


@pytest.mark.parametrize("case", [random_case, tied_case])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_metrics_equal_the_sorting_oracle(case, seed):
    audio, text, clips = case(seed)
    assert retrieval_metrics(audio, text, clips) == pytest.approx(oracle(audio, text, clips), abs=1e-12)


def test_text_to_audio_recall_equals_sklearn_top_k_accuracy():
    audio, text, clips = random_case(3)
    metrics = retrieval_metrics(audio, text, clips, ks=(1, 2, 7))
    for k in (1, 2, 7):
        expected = top_k_accuracy_score(clips, text @ audio.T, k=k, labels=np.arange(len(audio)))
        assert metrics[f"text_to_audio/recall@{k}"] == pytest.approx(expected, abs=1e-12)


def test_tied_text_to_audio_ranks_equal_sklearn_coverage_error():
    audio, text, clips = tied_case(4)
    ranks = retrieval_ranks(audio, text, clips).text_to_audio
    assert ranks.mean() == pytest.approx(coverage_error(np.eye(len(audio))[clips], text @ audio.T), abs=1e-12)


def test_audio_to_text_map_equals_sklearn_when_ten_captions_make_the_cutoff_idle():
    audio, text, clips = random_case(5, n_audio=4, n_text=10)
    expected = label_ranking_average_precision_score(np.eye(len(audio))[clips].T, audio @ text.T)
    assert retrieval_metrics(audio, text, clips)["audio_to_text/mAP@10"] == pytest.approx(expected, abs=1e-12)


def test_audio_to_text_map_divides_by_five_references_as_ml_clap_does():
    # One of the clip's five captions comes first, the others behind ten of another clip's.
    text = np.array([[20.0, 0], *[[n, 0] for n in (4, 3, 2, 1)], *[[n, 0] for n in range(5, 15)]])
    metrics = retrieval_metrics(np.array([[1.0, 0], [0, 1.0]]), text, np.array([0] * 5 + [1] * 10))
    # The other clip scores 0 with all: its ten captions rank 6 to 15, behind the five that tie.
    other = sum((i + 1) / (i + 6) for i in range(5)) / 10
    assert metrics["audio_to_text/mAP@10"] == pytest.approx((1 / 5 + other) / 2, abs=1e-12)


def test_audio_to_text_map_is_one_when_ten_of_twelve_references_fill_the_list():
    text = np.array([[1.0, 0]] * 12 + [[0, 1.0]])
    metrics = retrieval_metrics(np.eye(2), text, np.array([0] * 12 + [1]))
    assert metrics["audio_to_text/mAP@10"] == 1.0


def test_a_perfect_model_scores_one_everywhere():
    clips = np.repeat(np.arange(12), 2)
    metrics = retrieval_metrics(np.eye(12), np.eye(12)[clips], clips)
    rates = {name: value for name, value in metrics.items() if "/" in name and "rank" not in name}
    assert set(rates.values()) == {1.0}


@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_collapsed_embeddings_rank_last(block_size):
    # 37 x 111 pairs of one unit vector in 1000 dimensions: the matmul's edge kernels round some of the scores differently.
    vector = np.random.default_rng(0).normal(size=1000)
    vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    clips = np.repeat(np.arange(37), 3)
    metrics = retrieval_metrics(np.tile(vector, (37, 1)), np.tile(vector, (111, 1)), clips, block_size=block_size)
    assert [metrics[f"{d}/recall@10"] for d in ("text_to_audio", "audio_to_text")] == [0, 0]
    assert (metrics["text_to_audio/median_rank"], metrics["audio_to_text/median_rank"]) == (37, 111 - 3 + 1)


def test_the_order_of_captions_does_not_matter():
    audio, text, clips = random_case(6)
    order = np.random.default_rng(1).permutation(len(text))
    assert retrieval_metrics(audio, text[order], clips[order]) == pytest.approx(
        retrieval_metrics(audio, text, clips), abs=1e-12
    )


@pytest.mark.parametrize("block_size", [1, 7])
def test_the_block_size_does_not_change_a_rank(block_size):
    rng = np.random.default_rng(7)
    audio, text, clips = random_case(7, n_audio=40, n_text=150, dim=300)
    audio, text = audio[rng.integers(0, 20, 40)], text[rng.integers(0, 50, 150)]  # copies, so that scores tie
    blocks, whole = (retrieval_ranks(audio, text, clips, block_size=size) for size in (block_size, 1000))
    np.testing.assert_array_equal(blocks.text_to_audio, whole.text_to_audio)
    np.testing.assert_array_equal(blocks.audio_to_text, whole.audio_to_text)


def test_no_intermediate_is_larger_than_a_block_of_queries():
    sizes = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes.extend(part.numel() for part in (result if isinstance(result, (list, tuple)) else [result]))
            return result

    audio, text, clips = random_case(8, n_audio=200, n_text=600, dim=2)
    with Recorder():
        retrieval_metrics(audio, text, clips, block_size=7)
    assert max(sizes) == 7 * 600


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_score_as_their_values_in_numpy(dtype):
    audio, text, clips = random_case(9)
    audio, text = torch.tensor(audio, dtype=dtype, requires_grad=True), torch.tensor(text, dtype=dtype)
    from_numpy = retrieval_metrics(audio.detach().double().numpy(), text.double().numpy(), clips)
    assert retrieval_metrics(audio, text, torch.tensor(clips)) == from_numpy


def broken(**changes):
    """Arguments of a valid call with three clips and four captions, some replaced."""
    return {"audio_embeds": np.eye(3), "text_embeds": np.ones((4, 3)), "text_to_audio": [0, 1, 2, 2]} | changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (broken(text_to_audio=[0, 1, 1, 0]), r"Clips \[2\] have no caption"),
        (broken(text_to_audio=[0, 1, 2, 3]), r"captions \[3\] is \[3\], outside 0..2"),
        (broken(text_to_audio=[0, 1, 2, -1]), r"captions \[3\] is \[-1\]"),
        (broken(text_to_audio=[0, 1, 2]), r"shape \(4,\)"),
        (broken(text_to_audio=[0.0, 1.0, 2.0, 2.0]), "integer clip index"),
        (broken(text_embeds=np.array([[1.0] * 3, [np.nan] * 3, [1.0] * 3, [np.inf] * 3])), r"text_embeds.*\[1, 3\]"),
        (broken(audio_embeds=torch.full((3, 3), torch.nan)), r"audio_embeds.*\[0, 1, 2\]"),
        (broken(audio_embeds=np.ones(3)), r"audio_embeds.*shape \(3,\)"),
        (broken(audio_embeds=np.ones((3, 5))), "5 dimensions and text embeddings 3"),
        (broken(ks=(0, 1)), r"positive integers, got \[0\]"),
        (broken(block_size=0), "block_size"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(**arguments)


def test_pooled_metrics_equal_the_oracle_over_each_pool():
    audio, text, clips = random_case(10, n_audio=23, n_text=60)
    pools = pooled_retrieval_ranks(audio, text, clips, pool_size=10, seed=3).audio_clips.reshape(2, 10)
    queries = {"text_to_audio": [], "audio_to_text": []}
    for pool in pools:
        rows = [row for row, clip in enumerate(clips) if clip in pool]
        scores = text[rows].astype(np.float64) @ audio[pool].astype(np.float64).T
        own = clips[rows][:, None] == pool
        queries["text_to_audio"] += [relevant_ranks(s, o)[0] for s, o in zip(scores, own, strict=True)]
        queries["audio_to_text"] += [relevant_ranks(s, o)[0] for s, o in zip(scores.T, own.T, strict=True)]
    metrics = pooled_retrieval_metrics(audio, text, clips, pool_size=10, seed=3)
    for direction, ranks in queries.items():
        assert metrics[f"{direction}/recall@5"] == pytest.approx(np.mean(np.array(ranks) <= 5), abs=1e-12)
        assert metrics[f"{direction}/median_rank"] == np.median(ranks)
    assert metrics["n_text"] == len(queries["text_to_audio"])


def test_pools_are_disjoint_and_the_remainder_is_counted():
    audio, text, clips = random_case(11, n_audio=23, n_text=60)
    metrics = pooled_retrieval_metrics(audio, text, clips, pool_size=5)
    assert [metrics[key] for key in ("n_pools", "n_audio", "n_audio_left_out", "pool_size")] == [4, 20, 3, 5]
    assert len(set(pooled_retrieval_ranks(audio, text, clips, pool_size=5).audio_clips)) == 20


def test_one_pool_of_all_clips_equals_the_whole_set():
    audio, text, clips = random_case(12)
    whole = retrieval_metrics(audio, text, clips)
    pooled = pooled_retrieval_metrics(audio, text, clips, pool_size=len(audio))
    assert {name: pooled[name] for name in whole} == pytest.approx(whole, abs=1e-12)


def test_pools_follow_the_seed():
    case = random_case(13)
    first, again, other = (pooled_retrieval_ranks(*case, pool_size=5, seed=seed).audio_clips for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("pool_size", [0, 24])
def test_a_pool_that_cannot_be_filled_is_refused(pool_size):
    with pytest.raises(ValueError, match=r"`pool_size` must be from 1 to the number of clips \(23\)"):
        pooled_retrieval_metrics(*random_case(14), pool_size=pool_size)


def test_the_evaluate_module_loads_by_path_offline_and_equals_the_function(monkeypatch, tmp_path):
    import evaluate

    def no_network(*args, **kwargs):
        raise AssertionError("the metric opened a connection")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    metric = evaluate.load(str(ROOT / "metrics" / "supclap_retrieval"), cache_dir=str(tmp_path))
    audio, text, clips = random_case(15)
    metric.add_batch(predictions=text[:50], references=clips[:50])
    metric.add_batch(predictions=text[50:], references=clips[50:])
    assert metric.compute(audio_embeds=audio, ks=[1, 3]) == retrieval_metrics(audio, text, clips, ks=[1, 3])
