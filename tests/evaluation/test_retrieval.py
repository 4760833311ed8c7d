"""Retrieval metrics against a sorting oracle written here, scikit-learn, and hand-computed cases."""

import csv
import socket

import numpy as np
import pytest
import torch
from sklearn.metrics import coverage_error, label_ranking_average_precision_score, top_k_accuracy_score
from torch.utils._python_dispatch import TorchDispatchMode

from supclap.evaluation import retrieval_metrics, retrieval_ranks
from supclap.evaluation.retrieval import shared_captions
from support.paths import ROOT
from support.shared_data import SHARED, on_shared_data


def relevant_ranks(scores, relevant):
    """Ranks of the relevant items once sorted by score, wrong ones first among equals."""
    order = sorted(range(len(scores)), key=lambda item: (-scores[item], relevant[item]))
    return [rank for rank, item in enumerate(order, start=1) if relevant[item]]


def oracle(audio, text, clips, texts=None, ks=(1, 5, 10)):
    """The metrics from sorted lists, one query at a time, on float64 scores; without texts each caption is one of its own."""
    clips_of = {}
    for row, (caption, clip) in enumerate(zip(range(len(text)) if texts is None else texts, clips, strict=True)):
        clips_of.setdefault(caption, (row, set()))[1].add(clip)
    rows = [row for row, _ in clips_of.values()]
    right = np.array([[clip in own for clip in range(len(audio))] for _, own in clips_of.values()])
    scores = np.asarray(text, dtype=np.float64)[rows] @ np.asarray(audio, dtype=np.float64).T
    by_text = [relevant_ranks(*query) for query in zip(scores, right, strict=True)]
    by_audio = [relevant_ranks(*query) for query in zip(scores.T, right.T, strict=True)]
    metrics = {"n_audio": len(audio), "n_text": len(rows)}
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
    metrics = retrieval_metrics(audio, text, clips, protocol="index")
    assert metrics == pytest.approx(oracle(audio, text, clips), abs=1e-12)


# --- equal texts -----------------------------------------------------------------------------------------------------


def shared_case(seed, tied=False):
    """A random case in which the 91 captions have 30 texts; equal texts have equal embeddings."""
    audio, text, clips = (tied_case if tied else random_case)(seed)
    which = np.random.default_rng(seed + 100).integers(0, 30, len(text))
    return audio, text[which], clips, [f"text {number}" for number in which]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_metrics_with_shared_texts_equal_the_sorting_oracle(seed, tied):
    audio, text, clips, texts = shared_case(seed, tied)
    metrics = retrieval_metrics(audio, text, clips, texts=texts)
    assert metrics == pytest.approx(oracle(audio, text, clips, texts), abs=1e-12)
    assert metrics["n_text"] == len(set(texts)) < len(texts)


@pytest.mark.parametrize("seed", [0, 1])
def test_equal_embeddings_are_one_text_where_the_texts_are_not_given(seed):
    audio, text, clips, texts = shared_case(seed)
    assert retrieval_metrics(audio, text, clips) == retrieval_metrics(audio, text, clips, texts=texts)


@pytest.mark.parametrize("pool_size", [None, 7])
@pytest.mark.parametrize("case", [random_case, tied_case])
def test_both_protocols_give_the_same_where_no_text_occurs_twice(case, pool_size):
    audio, text, clips = case(3)
    texts = [f"text {row}" for row in range(len(text))]
    by_text, by_index = (
        retrieval_metrics(audio, text, clips, pool_size=pool_size, texts=texts, protocol=protocol)
        for protocol in ("text", "index")
    )
    assert by_text == by_index


@pytest.mark.parametrize("texts", [None, [f"sound {clip // 3}" for clip in range(36)]])
def test_a_perfect_model_scores_one_where_the_clips_of_a_class_share_their_caption(texts):
    classes = np.eye(12)[np.repeat(np.arange(12), 3)]
    metrics = retrieval_metrics(classes, classes, np.arange(36), texts=texts)
    rates = {value for name, value in metrics.items() if "/" in name and "rank" not in name}
    assert (rates, metrics["n_text"], metrics["n_audio"]) == ({1.0}, 12, 36)


def test_the_index_protocol_takes_the_same_text_of_another_clip_for_wrong():
    classes = np.eye(12)[np.repeat(np.arange(12), 3)]
    metrics = retrieval_metrics(classes, classes, np.arange(36), protocol="index")
    # the two others of the class tie with the right one, and come before it
    assert metrics["text_to_audio/median_rank"] == metrics["audio_to_text/median_rank"] == 3
    assert metrics["audio_to_text/recall@1"] == metrics["text_to_audio/recall@1"] == 0
    assert metrics["text_to_audio/mAP@10"] == pytest.approx(1 / 3)


def test_a_shared_text_by_hand():
    # The scores of the texts a, b (of clips 0 and 2) and c: rows are clips 0, 1 and 2.
    audio = np.array([[0.5, 0.9, 0.1], [0.2, 0.8, 0.3], [0.3, 0.4, 0.6]])
    text, clips = np.eye(3)[[0, 1, 2, 1]], np.array([0, 0, 1, 2])
    metrics = retrieval_metrics(audio, text, clips, texts=["a", "b", "c", " b\n"])
    # a finds clip 0 first. b finds clip 0 first and clip 2 third, behind clip 1. c finds clip 1 second, behind clip 2.
    assert metrics["text_to_audio/recall@1"] == pytest.approx(2 / 3)
    assert metrics["text_to_audio/mAP@10"] == pytest.approx((1 + (1 + 2 / 3) / 2 + 1 / 2) / 3)
    # Clip 0 finds b, then a. Clip 1 finds b first, and c second. Clip 2 finds c first, and b second.
    assert metrics["audio_to_text/recall@1"] == pytest.approx(1 / 3)
    assert metrics["audio_to_text/mAP@10"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)


def test_a_text_that_a_clip_has_twice_is_one_reference():
    ranks = retrieval_ranks(np.eye(2), np.eye(2)[[0, 0, 1]], np.array([0, 0, 1]), texts=["a", "a", "b"])
    assert (ranks.n_references.tolist(), ranks.n_clips.tolist()) == ([1, 1], [1, 1])
    assert ranks.audio_to_text[:, :2].tolist() == [[1, 0], [1, 0]]


def test_equal_texts_differ_in_nothing_but_white_space():
    audio, text, clips = np.eye(3), np.eye(3), np.arange(3)
    same = retrieval_ranks(audio, text, clips, texts=["a  dog", " a dog\n", "a Dog"])
    assert same.n_clips.tolist() == [2, 1]


def test_a_collapsed_encoder_is_not_perfect_though_its_texts_have_equal_embeddings():
    metrics = retrieval_metrics(np.ones((20, 3)), np.ones((20, 3)), np.arange(20))
    assert [metrics[f"{d}/recall@10"] for d in ("text_to_audio", "audio_to_text")] == [0, 0]


def test_a_text_that_occurs_in_two_pools_is_a_query_in_each():
    audio, text, clips, texts = shared_case(4)
    ranks = retrieval_ranks(audio, text, clips, pool_size=7, seed=3, texts=texts)
    start = 0
    for pool in ranks.audio_clips.reshape(-1, 7):
        rows = np.flatnonzero(np.isin(clips, pool))
        clip_in_pool = np.array([pool.tolist().index(clip) for clip in clips[rows]])
        alone = retrieval_ranks(audio[pool], text[rows], clip_in_pool, texts=[texts[row] for row in rows])
        block = slice(start, start + len(alone.text_rows))
        assert ranks.text_to_audio[block].tolist() == alone.text_to_audio.tolist()
        assert ranks.text_rows[block].tolist() == rows[alone.text_rows].tolist()
        start = block.stop
    assert start == len(ranks.text_rows)


@on_shared_data
def test_the_clips_of_audiocaps_share_229_of_their_4875_captions():
    with (SHARED / "annotations" / "audiocaps" / "v1" / "test.csv").open(encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    numbers = {}
    clips = np.array([numbers.setdefault(record["youtube_id"], len(numbers)) for record in records])
    texts = [record["caption"] for record in records]
    shared = shared_captions(texts, clips)
    assert (len(texts), len(set(texts)), shared.sum()) == (4875, 4633, 229)
    # A perfect model scores 1 for the texts of a clip and 0 for others. Only clips with a shared caption are in question.
    affected = np.unique(clips[shared])
    rows = np.flatnonzero(np.isin(clips, affected))
    own, texts = np.searchsorted(affected, clips[rows]), [texts[row] for row in rows]
    items = np.unique(texts, return_inverse=True)[1]
    text = np.eye(items.max() + 1)[items]
    audio = np.zeros((len(affected), text.shape[1]))
    audio[own, items] = 1
    wrong = {
        protocol: [
            int((best > 1).sum())
            for best in retrieval_ranks(audio, text, own, texts=texts, protocol=protocol).best.values()
        ]
        for protocol in ("text", "index")
    }
    assert wrong == {"text": [0, 0], "index": [229, 145]}


# --- single references -------------------------------------------------------------------------------------------------


def test_text_to_audio_recall_equals_sklearn_top_k_accuracy():
    audio, text, clips = random_case(3)
    metrics = retrieval_metrics(audio, text, clips, ks=(1, 2, 7))
    for k in (1, 2, 7):
        expected = top_k_accuracy_score(clips, text @ audio.T, k=k, labels=np.arange(len(audio)))
        assert metrics[f"text_to_audio/recall@{k}"] == pytest.approx(expected, abs=1e-12)


def test_tied_text_to_audio_ranks_equal_sklearn_coverage_error():
    audio, text, clips = tied_case(4)
    ranks = retrieval_ranks(audio, text, clips, protocol="index").text_to_audio[:, 0]
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
        (broken(texts=["a", "b"]), "`texts` must hold the text of each of the 4 captions, got 2"),
        (broken(protocol="strings"), "`protocol` must be one of text, index, got 'strings'"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(**arguments)


def test_pooled_metrics_equal_the_oracle_over_each_pool():
    audio, text, clips = random_case(10, n_audio=23, n_text=60)
    pools = retrieval_ranks(audio, text, clips, pool_size=10, seed=3).audio_clips.reshape(2, 10)
    queries = {"text_to_audio": [], "audio_to_text": []}
    for pool in pools:
        rows = [row for row, clip in enumerate(clips) if clip in pool]
        scores = text[rows].astype(np.float64) @ audio[pool].astype(np.float64).T
        own = clips[rows][:, None] == pool
        queries["text_to_audio"] += [relevant_ranks(s, o)[0] for s, o in zip(scores, own, strict=True)]
        queries["audio_to_text"] += [relevant_ranks(s, o)[0] for s, o in zip(scores.T, own.T, strict=True)]
    metrics = retrieval_metrics(audio, text, clips, pool_size=10, seed=3)
    for direction, ranks in queries.items():
        assert metrics[f"{direction}/recall@5"] == pytest.approx(np.mean(np.array(ranks) <= 5), abs=1e-12)
        assert metrics[f"{direction}/median_rank"] == np.median(ranks)
    assert metrics["n_text"] == len(queries["text_to_audio"])


def test_pools_are_disjoint_and_the_remainder_is_counted():
    audio, text, clips = random_case(11, n_audio=23, n_text=60)
    metrics = retrieval_metrics(audio, text, clips, pool_size=5)
    assert [metrics[key] for key in ("n_pools", "n_audio", "n_audio_left_out", "pool_size")] == [4, 20, 3, 5]
    assert len(set(retrieval_ranks(audio, text, clips, pool_size=5).audio_clips)) == 20


def test_one_pool_of_all_clips_equals_the_whole_set():
    audio, text, clips = random_case(12)
    whole = retrieval_metrics(audio, text, clips)
    pooled = retrieval_metrics(audio, text, clips, pool_size=len(audio))
    assert {name: pooled[name] for name in whole} == pytest.approx(whole, abs=1e-12)


def test_pools_follow_the_seed():
    case = random_case(13)
    first, again, other = (retrieval_ranks(*case, pool_size=5, seed=seed).audio_clips for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("pool_size", [0, 24])
def test_a_pool_that_cannot_be_filled_is_refused(pool_size):
    with pytest.raises(ValueError, match=r"`pool_size` must be from 1 to the number of clips \(23\)"):
        retrieval_metrics(*random_case(14), pool_size=pool_size)


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


@pytest.mark.parametrize("protocol", ["text", "index"])
def test_the_evaluate_module_takes_texts_and_protocol(protocol, tmp_path):
    import evaluate

    metric = evaluate.load(str(ROOT / "metrics" / "supclap_retrieval"), cache_dir=str(tmp_path))
    audio, text, clips, texts = shared_case(15)
    given = {"texts": texts, "protocol": protocol}
    computed = metric.compute(predictions=text, references=clips, audio_embeds=audio, **given)
    assert computed == retrieval_metrics(audio, text, clips, **given)
