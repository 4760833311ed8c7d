"""Cross-modal retrieval metrics in both directions, with any number of captions per clip.

Published numbers differ in their conventions. Those used here are:

* Embeddings are compared by dot product, so pass L2-normalized ones for cosine similarity. A score is computed in float64
  and rounded to float32 before it is compared. Equal pairs so tie whatever the block size or the order of summation.
* **Ties are pessimistic**: a wrong candidate whose score equals that of the right one is ranked before it. A collapsed
  encoder, which gives every pair the same score, therefore ranks last and not first.
* **Equal texts are one item** (the protocol `text`, the default). A string that several clips have is one query and one
  candidate, and is right for each of them. Texts are equal where their strings are, after the white space around them and
  in excess inside is gone; case counts. Where no string occurs twice, both protocols give the same numbers.
* The protocol `index` is that of ML-CLAP, WavCaps and others: each caption is an item of its own and belongs to one clip.
  A caption that another clip has too then counts as a wrong answer, and ties with the right one.
* A query may have several relevant candidates: a text its clips, a clip its texts. Sorted by score, the k-th best of them
  has the rank k + the number of *irrelevant* candidates that score at least as high. `recall@k` and the median rank look
  at the best of them (any-of-k). `mAP@10` is the sum of k / rank_k over those with rank_k <= 10, divided by min(10, their
  number), as in ML-CLAP and its predecessors. `audio_to_text/mAP@10_any` is the reciprocal of the best rank, or 0 beyond
  rank 10.
* Rates are fractions from 0 to 1; ranks count from 1.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from supclap.data.rows import clean_captions
from supclap.evaluation.inputs import as_clip_index, as_embeddings


MAP_CUTOFF = 10
DEFAULT_KS = (1, 5, 10)
_OF_SEVERAL = (
    f"recall and median rank by the best of them (any-of-k); mAP@{MAP_CUTOFF} over all of them, divided by "
    f"min({MAP_CUTOFF}, k); ties count as errors"
)
# The meaning of the numbers of each direction under each protocol, which is kept on record beside a score.
PROTOCOLS = {
    "text": {
        "text_to_audio": f"each different text is a query with all clips that have it relevant; {_OF_SEVERAL}",
        "audio_to_text": "each clip is a query with all its texts relevant; a text that several clips have is one "
        f"candidate; {_OF_SEVERAL}",
    },
    "index": {
        "text_to_audio": "each caption is a query with one relevant clip (single-caption), also where another clip has "
        "the same text; ties count as errors",
        "audio_to_text": "each clip is a query with all its captions relevant; the same text of another clip is a wrong "
        f"answer; {_OF_SEVERAL}",
    },
}
DEFAULT_PROTOCOL = "text"


def other_protocol(protocol: str) -> str:
    """The one of the two protocols that `protocol` is not."""
    return next(name for name in PROTOCOLS if name != protocol)


@dataclass(frozen=True)
class RetrievalRanks:
    """Ranks of the relevant items of every query; the docstring of the module defines them.

    A text is an item of the protocol: a different string, or under `index` a caption.

    Attributes:
        text_to_audio: `(n_texts, 10)` ranks of the ten best clips of each text, ascending; 0 where a text has fewer.
        audio_to_text: `(n_audio, 10)` ranks of the ten best texts of each clip, likewise.
        n_clips: `(n_texts,)` number of clips that have each text.
        n_references: `(n_audio,)` number of texts of each clip.
        text_rows: `(n_texts,)` first row of each text in the embeddings; the texts of pools come pool by pool.
        text_clips: `(n_texts,)` index of the clip of that row, the cluster of a text query.
        audio_clips: `(n_audio,)` index of each clip, the cluster of an audio query.
    """

    text_to_audio: np.ndarray
    audio_to_text: np.ndarray
    n_clips: np.ndarray
    n_references: np.ndarray
    text_rows: np.ndarray
    text_clips: np.ndarray
    audio_clips: np.ndarray

    @property
    def best(self) -> dict[str, np.ndarray]:
        """The best rank of each query by direction: `(n_texts,)` and `(n_audio,)`."""
        return {"text_to_audio": self.text_to_audio[:, 0], "audio_to_text": self.audio_to_text[:, 0]}


@dataclass(frozen=True)
class QueryValues:
    """A metric before its mean: the value of each query `(Q,)`, and the clip that each query belongs to `(Q,)`."""

    values: np.ndarray
    clusters: np.ndarray


def shared_captions(texts: Sequence[str], text_to_audio: np.ndarray) -> np.ndarray:
    """Whether another clip has the text of each caption too: `(n_text,)` booleans.

    Args:
        texts: The text of each caption. Equality is that of the protocol `text`.
        text_to_audio: `(n_text,)` clip of each caption.
    """
    items, clips = _items_of(texts), np.asarray(text_to_audio)
    pairs = np.unique(np.stack([items, clips]), axis=1)
    return np.bincount(pairs[0])[items] > 1


def _number(keys: Iterable[Hashable]) -> np.ndarray:
    """The number of each key among the different ones, in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _items_of(texts: Sequence[str]) -> np.ndarray:
    """The number of each caption's text among the different texts."""
    return _number(clean_captions(texts))


def _items_of_embeddings(text: torch.Tensor) -> np.ndarray:
    """The same where only embeddings `(n_text, D)` are known: rows that are exactly equal are one text.

    Where all rows are equal, each remains a text of its own. The encoder has collapsed, and must rank last and not first.
    """
    rows = text.cpu().numpy() + 0.0  # this makes the negative zeros positive, whose bytes would differ
    items = _number(row.tobytes() for row in rows)
    return items if items.any() else np.arange(len(rows))


def _grouped(groups: np.ndarray, members: np.ndarray, n_groups: int) -> list[np.ndarray]:
    """The members of each group, in ascending order."""
    order = np.lexsort((members, groups))
    return np.split(members[order], np.cumsum(np.bincount(groups, minlength=n_groups))[:-1])


def _padded(lists: list[np.ndarray]) -> np.ndarray:
    """Indices of a block of queries as a matrix `(B, K)`; the rows of those with fewer than others are filled with -1."""
    matrix = np.full((len(lists), max(map(len, lists))), -1, dtype=np.int64)
    for row, own in zip(matrix, lists, strict=True):
        row[: len(own)] = own
    return matrix


def _ranks_of_block(scores: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    """Ranks `(B, 10)` of the `relevant` candidates (B, K, padded with -1) in the scores (B, candidates)."""
    own = scores.gather(1, relevant.clamp(min=0)).masked_fill(relevant < 0, -torch.inf)
    own = own.sort(dim=1, descending=True).values
    n_relevant = (relevant >= 0).sum(dim=1)
    ranks = torch.zeros(len(scores), MAP_CUTOFF, dtype=torch.int64, device=scores.device)
    for k in range(min(MAP_CUTOFF, relevant.shape[1])):
        bar = own[:, k : k + 1]
        irrelevant_above = (scores >= bar).sum(dim=1) - (own >= bar).sum(dim=1)
        ranks[:, k] = torch.where(k < n_relevant, k + 1 + irrelevant_above, 0)
    return ranks


def _rank(queries: torch.Tensor, candidates: torch.Tensor, relevant: list[np.ndarray], block_size: int) -> np.ndarray:
    """Ranks `(Q, 10)` of the relevant candidates of each query, whose indices `relevant` lists."""
    ranks = np.zeros((len(queries), MAP_CUTOFF), dtype=np.int64)
    for start in range(0, len(queries), block_size):
        block = slice(start, start + block_size)
        own = torch.from_numpy(_padded(relevant[block])).to(queries.device)
        ranks[block] = _ranks_of_block((queries[block] @ candidates.T).float(), own).cpu().numpy()
    return ranks


def retrieval_ranks(
    audio_embeds: np.ndarray | torch.Tensor,
    text_embeds: np.ndarray | torch.Tensor,
    text_to_audio: np.ndarray | torch.Tensor,
    pool_size: int | None = None,
    seed: int = 0,
    block_size: int = 256,
    texts: Sequence[str] | None = None,
    protocol: str = DEFAULT_PROTOCOL,
) -> RetrievalRanks:
    """Ranks the clips for every text and the texts for every clip, `block_size` queries at a time.

    With `pool_size`, a seeded permutation splits the clips into disjoint pools, and a query ranks the items of its own pool
    only. The `n_audio % pool_size` clips at the end of the permutation are not ranked.

    Args:
        audio_embeds: `(n_audio, D)` embeddings.
        text_embeds: `(n_text, D)` embeddings, n_text >= n_audio.
        text_to_audio: `(n_text,)` row of `audio_embeds` that each caption describes, in any order.
        pool_size: Number of clips in a pool; all clips are in one pool when omitted.
        seed: Seed of the permutation.
        block_size: Number of queries that are scored at once. It bounds the memory (13 bytes x block_size x candidates,
            beside the float64 copies of the embeddings) and changes nothing else.
        texts: The text of each caption, by which the protocol `text` knows equal ones; the embedding of an item is that
            of its first caption. When omitted, captions whose embeddings are exactly equal count as one text (unless
            all are equal). Give the texts where you have them: an encoder may put different texts on one point, which
            would then count for it, and equal texts of different batches may differ in the last bits.
        protocol: `text` or `index`; see the docstring of the module. Under `index` the texts do not matter.

    Returns:
        The ranks, those of all pools one after another. Indices are those of the whole set.

    Raises:
        ValueError: Shapes that do not match, NaN or infinite embeddings, a caption without a clip, a clip without a
            caption, texts of another number than the captions, an unknown protocol, or a pool that cannot be filled;
            the message names them.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"`protocol` must be one of {', '.join(PROTOCOLS)}, got {protocol!r}.")
    if block_size < 1:
        raise ValueError(f"`block_size` must be at least 1, got {block_size}.")
    audio = as_embeddings(audio_embeds, "audio_embeds")
    text = as_embeddings(text_embeds, "text_embeds").to(audio.device)
    if audio.shape[1] != text.shape[1]:
        raise ValueError(f"Audio embeddings have {audio.shape[1]} dimensions and text embeddings {text.shape[1]}.")
    clip_index = as_clip_index(text_to_audio, len(audio), len(text))
    if texts is not None and len(texts) != len(text):
        raise ValueError(f"`texts` must hold the text of each of the {len(text)} captions, got {len(texts)}.")
    if protocol == "index":
        items = np.arange(len(text))
    else:
        items = _items_of_embeddings(text) if texts is None else _items_of(texts)
    if pool_size is None:
        return _ranks_of_a_pool(audio, text, clip_index, items, block_size)
    if not 1 <= pool_size <= len(audio):
        raise ValueError(f"`pool_size` must be from 1 to the number of clips ({len(audio)}), got {pool_size}.")
    n_pooled = len(audio) // pool_size * pool_size
    pools = np.random.default_rng(seed).permutation(len(audio))[:n_pooled].reshape(-1, pool_size)
    parts = []
    for pool in pools:
        row_in_pool = np.full(len(audio), -1)
        row_in_pool[pool] = np.arange(pool_size)
        captions = np.flatnonzero(row_in_pool[clip_index] >= 0)
        clips = row_in_pool[clip_index[captions]]
        part = _ranks_of_a_pool(audio[pool], text[captions], clips, _number(items[captions].tolist()), block_size)
        rows = captions[part.text_rows]
        # in place of the indices within the pool those of the whole set
        parts.append(replace(part, text_rows=rows, text_clips=clip_index[rows], audio_clips=pool))
    names = [field.name for field in fields(RetrievalRanks)]
    return RetrievalRanks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _ranks_of_a_pool(
    audio: torch.Tensor, text: torch.Tensor, clip_index: np.ndarray, items: np.ndarray, block_size: int
) -> RetrievalRanks:
    """The ranks where every item competes with every other.

    Args:
        audio: `(n_audio, D)` embeddings, checked like the next two.
        text: `(n_text, D)` embeddings.
        clip_index: `(n_text,)` clip of each caption.
        items: `(n_text,)` number of each caption's text, from 0 in the order of their first captions.
        block_size: As in [`retrieval_ranks`].
    """
    text_rows = np.unique(items, return_index=True)[1]
    # A clip may have a text twice, and has it once all the same.
    item_of, clip_of = np.unique(np.stack([items, clip_index]), axis=1)
    clips = _grouped(item_of, clip_of, len(text_rows))
    texts = _grouped(clip_of, item_of, len(audio))
    text = text[text_rows]
    return RetrievalRanks(
        text_to_audio=_rank(text, audio, clips, block_size),
        audio_to_text=_rank(audio, text, texts, block_size),
        n_clips=np.array([len(own) for own in clips]),
        n_references=np.array([len(own) for own in texts]),
        text_rows=text_rows,
        text_clips=clip_index[text_rows],
        audio_clips=np.arange(len(audio)),
    )


def _average_precision(ranks: np.ndarray, n_relevant: np.ndarray) -> np.ndarray:
    """The average precision `(Q,)` at the cut-off, from the best ranks (Q, 10) and the number of relevant items (Q,)."""
    hit = (ranks > 0) & (ranks <= MAP_CUTOFF)
    precision = np.where(hit, np.arange(1, MAP_CUTOFF + 1) / np.maximum(ranks, 1), 0.0)
    return precision.sum(axis=1) / np.minimum(MAP_CUTOFF, n_relevant)


def query_values(ranks: RetrievalRanks, ks: Sequence[int] = DEFAULT_KS) -> dict[str, QueryValues]:
    """The value of every query in each metric that is a mean over queries. Intervals and paired tests resample them."""
    text_ranks, best = ranks.best.values()
    bad_ks = [k for k in ks if isinstance(k, bool) or not isinstance(k, int) or k < 1]
    if bad_ks:
        raise ValueError(f"`ks` must hold positive integers, got {bad_ks}.")

    by_text = {f"text_to_audio/recall@{k}": (text_ranks <= k).astype(float) for k in ks}
    by_text[f"text_to_audio/mAP@{MAP_CUTOFF}"] = _average_precision(ranks.text_to_audio, ranks.n_clips)
    by_audio = {f"audio_to_text/recall@{k}": (best <= k).astype(float) for k in ks}
    by_audio[f"audio_to_text/mAP@{MAP_CUTOFF}"] = _average_precision(ranks.audio_to_text, ranks.n_references)
    by_audio[f"audio_to_text/mAP@{MAP_CUTOFF}_any"] = np.where(best <= MAP_CUTOFF, 1.0 / best, 0.0)
    return {
        **{name: QueryValues(values, ranks.text_clips) for name, values in by_text.items()},
        **{name: QueryValues(values, ranks.audio_clips) for name, values in by_audio.items()},
    }


def retrieval_metrics(
    audio_embeds: np.ndarray | torch.Tensor,
    text_embeds: np.ndarray | torch.Tensor,
    text_to_audio: np.ndarray | torch.Tensor,
    ks: Sequence[int] = DEFAULT_KS,
    pool_size: int | None = None,
    seed: int = 0,
    block_size: int = 256,
    texts: Sequence[str] | None = None,
    protocol: str = DEFAULT_PROTOCOL,
) -> dict[str, float | int]:
    """Retrieval metrics, averaged over all queries; arguments and errors as in [`retrieval_ranks`].

    Metrics within pools of one size compare between sets of any size.

    Returns:
        For both `text_to_audio` and `audio_to_text`: `/recall@k` for each k, `/mAP@10` and `/median_rank`; also
        `audio_to_text/mAP@10_any`, `n_audio` and `n_text`, the numbers of clips and texts that were queries. With a `pool_size`
        also that, `n_pools` and `n_audio_left_out`. Rates are fractions from 0 to 1.

    Example:

    ```python
    >>> import torch
    >>> from supclap.evaluation import retrieval_metrics

    >>> audio = torch.eye(3)  # three clips, and two captions of each that lie where their clip does
    >>> text = audio.repeat(2, 1)
    >>> retrieval_metrics(audio, text, torch.arange(3).repeat(2))["text_to_audio/recall@1"]
    1.0
    ```
    """
    ranks = retrieval_ranks(audio_embeds, text_embeds, text_to_audio, pool_size, seed, block_size, texts, protocol)
    n_ranked = len(ranks.audio_clips)
    metrics = {
        **{name: float(query.values.mean()) for name, query in query_values(ranks, ks).items()},
        **{f"{direction}/median_rank": float(np.median(best)) for direction, best in ranks.best.items()},
        "n_audio": n_ranked,
        "n_text": len(ranks.text_clips),
    }
    if pool_size is None:
        return metrics
    pools = {"n_pools": n_ranked // pool_size, "n_audio_left_out": len(audio_embeds) - n_ranked}
    return {**metrics, "pool_size": pool_size, **pools}
