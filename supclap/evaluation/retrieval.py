"""Cross-modal retrieval metrics in both directions, with any number of captions per clip.

Published numbers differ in their conventions. Those used here are:

* Embeddings are compared by dot product, so pass L2-normalized ones for cosine similarity. A score is computed in float64
  and rounded to float32 before it is compared. Equal pairs so tie whatever the block size or the order of summation.
* **Ties are pessimistic**: a wrong candidate whose score equals that of the right one is ranked before it. A collapsed
  encoder, which gives every pair the same score, therefore ranks last and not first.
* Text to audio: each caption is a query with one relevant clip. The rank of the clip is 1 + the number of other clips
  that score at least as high.
* Audio to text: each clip is a query, and all its captions are relevant. Sorted by score, the k-th best relevant caption
  has the rank k + the number of *irrelevant* captions that score at least as high. `recall@k` and the median rank look at
  the best of them (any-of-k). `mAP@10` is the sum of k / rank_k over those with rank_k <= 10, divided by min(10, number of
  captions), as in ML-CLAP and its predecessors. `mAP@10_any` is the reciprocal of the best rank, or 0 beyond rank 10.
* Rates are fractions from 0 to 1; ranks count from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from supclap.evaluation.inputs import as_clip_index, as_embeddings


MAP_CUTOFF = 10
DEFAULT_KS = (1, 5, 10)
# The meaning of the numbers of each direction, which is kept on record beside a score.
PROTOCOLS = {
    "text_to_audio": "each caption is a query with one relevant clip (single-caption); ties count as errors",
    "audio_to_text": "each clip is a query with all its captions relevant; recall and median rank by the best of them "
    f"(any-of-k); mAP@{MAP_CUTOFF} over all of them, divided by min({MAP_CUTOFF}, k); ties count as errors",
}


@dataclass(frozen=True)
class RetrievalRanks:
    """Ranks of the relevant items of every query; the docstring of the module defines them.

    Attributes:
        text_to_audio: `(n_text,)` rank of each caption's clip.
        audio_to_text: `(n_audio, 10)` ranks of each clip's ten best captions, ascending; 0 where a clip has fewer.
        n_references: `(n_audio,)` number of captions of each clip.
        text_rows: `(n_text,)` row of each caption in the embeddings; the captions of pools come pool by pool.
        text_clips: `(n_text,)` index of each caption's clip, the cluster of a text query.
        audio_clips: `(n_audio,)` index of each clip, the cluster of an audio query.
    """

    text_to_audio: np.ndarray
    audio_to_text: np.ndarray
    n_references: np.ndarray
    text_rows: np.ndarray
    text_clips: np.ndarray
    audio_clips: np.ndarray

    @property
    def best(self) -> dict[str, np.ndarray]:
        """The best rank of each query by direction: `(n_text,)` and `(n_audio,)`."""
        return {"text_to_audio": self.text_to_audio, "audio_to_text": self.audio_to_text[:, 0]}


@dataclass(frozen=True)
class QueryValues:
    """A metric before its mean: the value of each query `(Q,)`, and the clip that each query belongs to `(Q,)`."""

    values: np.ndarray
    clusters: np.ndarray


def _pad_captions(captions: list[np.ndarray]) -> np.ndarray:
    """The caption indices of a block of clips as a matrix `(B, K)`; clips with fewer captions than others are filled with -1."""
    padded = np.full((len(captions), max(map(len, captions))), -1, dtype=np.int64)
    for row, own in zip(padded, captions, strict=True):
        row[: len(own)] = own
    return padded


def _rank_clips(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Ranks `(B,)` of the clips `target` (B,) in the scores (B, n_audio); ranks count from 1, as the target equals itself."""
    return (scores >= scores.gather(1, target[:, None])).sum(dim=1)


def _rank_captions(scores: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """Ranks `(B, 10)` of the relevant `captions` (B, K, padded with -1) in the scores (B, n_text)."""
    relevant = scores.gather(1, captions.clamp(min=0)).masked_fill(captions < 0, -torch.inf)
    relevant = relevant.sort(dim=1, descending=True).values
    n_relevant = (captions >= 0).sum(dim=1)
    ranks = torch.zeros(len(scores), MAP_CUTOFF, dtype=torch.int64, device=scores.device)
    for k in range(min(MAP_CUTOFF, captions.shape[1])):
        bar = relevant[:, k : k + 1]
        irrelevant_above = (scores >= bar).sum(dim=1) - (relevant >= bar).sum(dim=1)
        ranks[:, k] = torch.where(k < n_relevant, k + 1 + irrelevant_above, 0)
    return ranks


def retrieval_ranks(
    audio_embeds: np.ndarray | torch.Tensor,
    text_embeds: np.ndarray | torch.Tensor,
    text_to_audio: np.ndarray | torch.Tensor,
    pool_size: int | None = None,
    seed: int = 0,
    block_size: int = 256,
) -> RetrievalRanks:
    """Ranks the clips for every caption and the captions for every clip, `block_size` queries at a time.

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

    Returns:
        The ranks, those of all pools one after another. Indices are those of the whole set.

    Raises:
        ValueError: Shapes that do not match, NaN or infinite embeddings, a caption without a clip, a clip without a
            caption, or a pool that cannot be filled; the message names them.
    """
    if block_size < 1:
        raise ValueError(f"`block_size` must be at least 1, got {block_size}.")
    audio = as_embeddings(audio_embeds, "audio_embeds")
    text = as_embeddings(text_embeds, "text_embeds").to(audio.device)
    if audio.shape[1] != text.shape[1]:
        raise ValueError(f"Audio embeddings have {audio.shape[1]} dimensions and text embeddings {text.shape[1]}.")
    clip_index = as_clip_index(text_to_audio, len(audio), len(text))
    if pool_size is None:
        return _ranks_of_a_pool(audio, text, clip_index, block_size)
    if not 1 <= pool_size <= len(audio):
        raise ValueError(f"`pool_size` must be from 1 to the number of clips ({len(audio)}), got {pool_size}.")
    n_pooled = len(audio) // pool_size * pool_size
    pools = np.random.default_rng(seed).permutation(len(audio))[:n_pooled].reshape(-1, pool_size)
    parts = []
    for pool in pools:
        row_in_pool = np.full(len(audio), -1)
        row_in_pool[pool] = np.arange(pool_size)
        captions = np.flatnonzero(row_in_pool[clip_index] >= 0)
        part = _ranks_of_a_pool(audio[pool], text[captions], row_in_pool[clip_index[captions]], block_size)
        # in place of the indices within the pool those of the whole set
        parts.append(replace(part, text_rows=captions, text_clips=clip_index[captions], audio_clips=pool))
    names = [field.name for field in fields(RetrievalRanks)]
    return RetrievalRanks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _ranks_of_a_pool(
    audio: torch.Tensor, text: torch.Tensor, clip_index: np.ndarray, block_size: int
) -> RetrievalRanks:
    """The ranks where every item competes with every other; arguments as in [`retrieval_ranks`], and checked."""
    n_references = np.bincount(clip_index, minlength=len(audio))
    captions = np.split(np.argsort(clip_index, kind="stable"), np.cumsum(n_references)[:-1])

    text_ranks = np.zeros(len(text), dtype=np.int64)
    for start in range(0, len(text), block_size):
        block = slice(start, start + block_size)
        target = torch.from_numpy(clip_index[block]).to(audio.device)
        text_ranks[block] = _rank_clips((text[block] @ audio.T).float(), target).cpu().numpy()
    audio_ranks = np.zeros((len(audio), MAP_CUTOFF), dtype=np.int64)
    for start in range(0, len(audio), block_size):
        block = slice(start, start + block_size)
        relevant = torch.from_numpy(_pad_captions(captions[block])).to(audio.device)
        audio_ranks[block] = _rank_captions((audio[block] @ text.T).float(), relevant).cpu().numpy()

    return RetrievalRanks(
        text_to_audio=text_ranks,
        audio_to_text=audio_ranks,
        n_references=n_references,
        text_rows=np.arange(len(text)),
        text_clips=clip_index,
        audio_clips=np.arange(len(audio)),
    )


def query_values(ranks: RetrievalRanks, ks: Sequence[int] = DEFAULT_KS) -> dict[str, QueryValues]:
    """The value of every query in each metric that is a mean over queries. Intervals and paired tests resample them."""
    text_ranks, best = ranks.best.values()
    bad_ks = [k for k in ks if isinstance(k, bool) or not isinstance(k, int) or k < 1]
    if bad_ks:
        raise ValueError(f"`ks` must hold positive integers, got {bad_ks}.")

    def reciprocal(rank: np.ndarray) -> np.ndarray:
        return np.where(rank <= MAP_CUTOFF, 1.0 / rank, 0.0)

    captions = ranks.audio_to_text
    hit = (captions > 0) & (captions <= MAP_CUTOFF)
    precision = np.where(hit, np.arange(1, MAP_CUTOFF + 1) / np.maximum(captions, 1), 0.0)
    average_precision = precision.sum(axis=1) / np.minimum(MAP_CUTOFF, ranks.n_references)

    by_text = {f"text_to_audio/recall@{k}": (text_ranks <= k).astype(float) for k in ks}
    by_text[f"text_to_audio/mAP@{MAP_CUTOFF}"] = reciprocal(text_ranks)
    by_audio = {f"audio_to_text/recall@{k}": (best <= k).astype(float) for k in ks}
    by_audio[f"audio_to_text/mAP@{MAP_CUTOFF}"] = average_precision
    by_audio[f"audio_to_text/mAP@{MAP_CUTOFF}_any"] = reciprocal(best)
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
) -> dict[str, float | int]:
    """Retrieval metrics, averaged over all queries; arguments and errors as in [`retrieval_ranks`].

    Metrics within pools of one size compare between sets of any size.

    Returns:
        For both `text_to_audio` and `audio_to_text`: `/recall@k` for each k, `/mAP@10` and `/median_rank`; also
        `audio_to_text/mAP@10_any`, `n_audio` and `n_text`, the numbers of ranked clips and captions. With a `pool_size`
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
    ranks = retrieval_ranks(audio_embeds, text_embeds, text_to_audio, pool_size, seed, block_size)
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
