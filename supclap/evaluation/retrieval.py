"""Cross-modal retrieval metrics: recall@k, mAP@10 and median rank, both directions, any number of captions a clip.

Conventions, stated because published numbers differ in them:

* Embeddings are compared by dot product, so pass L2-normalised ones for cosine. A score is computed in float64 and
  rounded to float32 before it is compared, so that equal pairs tie whatever the block size or order of summation.
* **Ties are pessimistic**: a wrong candidate whose score equals the right one's is ranked before it. A collapsed
  encoder, which gives every pair the same score, therefore ranks last and not first.
* Text to audio: each caption is a query with one relevant clip; its rank is 1 + the number of other clips that score
  at least as high.
* Audio to text: each clip is a query with all its captions relevant. Sorted by score, the k-th best relevant caption
  has rank k + the number of *irrelevant* captions that score at least as high. `recall@k` and the median look at the
  best of them (any-of-k). `mAP@10` is the sum of k / rank_k over those with rank_k <= 10, divided by min(10, number of
  captions), as in the ml-clap lineage; `mAP@10_any` is the reciprocal of the best rank, 0 beyond 10.
* Rates are fractions from 0 to 1; ranks count from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from supclap.evaluation.inputs import as_clip_index, as_embeddings


MAP_CUTOFF = 10
DEFAULT_KS = (1, 5, 10)
# What each direction's numbers mean, for the record of a score.
PROTOCOLS = {
    "text_to_audio": "each caption is a query with one relevant clip (single-caption); ties count as errors",
    "audio_to_text": "each clip is a query with all its captions relevant; recall and median rank by the best of them "
    f"(any-of-k); mAP@{MAP_CUTOFF} over all of them, divided by min({MAP_CUTOFF}, k); ties count as errors",
}


@dataclass(frozen=True)
class RetrievalRanks:
    """Ranks of the relevant items of every query (see the module's docstring for their definition).

    Attributes:
        text_to_audio: `(n_text,)` rank of each caption's clip.
        audio_to_text: `(n_audio, 10)` ranks of each clip's ten best captions, ascending; 0 where a clip has fewer.
        n_references: `(n_audio,)` number of captions of each clip.
        text_rows: `(n_text,)` row of each caption in the embeddings; captions of pools come pool by pool.
        text_clips: `(n_text,)` index of each caption's clip, the cluster of a text query.
        audio_clips: `(n_audio,)` index of each clip, the cluster of an audio query.
    """

    text_to_audio: np.ndarray
    audio_to_text: np.ndarray
    n_references: np.ndarray
    text_rows: np.ndarray
    text_clips: np.ndarray
    audio_clips: np.ndarray


@dataclass(frozen=True)
class QueryValues:
    """A metric before averaging: one value a query `(Q,)`, and the clip each query belongs to `(Q,)`."""

    values: np.ndarray
    clusters: np.ndarray


def _pad_captions(captions: list[np.ndarray]) -> np.ndarray:
    """`(B, K)` caption indices of a block of clips, padded with -1 to the most captions in the block."""
    padded = np.full((len(captions), max(map(len, captions))), -1, dtype=np.int64)
    for row, own in zip(padded, captions, strict=True):
        row[: len(own)] = own
    return padded


def _rank_clips(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Ranks `(B,)` of the clips `target` (B,) in the scores (B, n_audio). The target's own >= supplies the 1."""
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
    block_size: int = 256,
) -> RetrievalRanks:
    """Rank every clip for every caption and the reverse, `block_size` queries at a time.

    Args:
        audio_embeds: `(n_audio, D)` embeddings.
        text_embeds: `(n_text, D)` embeddings, n_text >= n_audio.
        text_to_audio: `(n_text,)` row of `audio_embeds` that each caption describes, in any order.
        block_size: Queries scored at once; bounds the memory (13 bytes x block_size x candidates, beside the float64
            copies of the embeddings) and changes nothing else.

    Raises:
        ValueError: Shapes that do not match, NaN or infinite embeddings, a caption without a clip or a clip without a
            caption; the message names them.
    """
    if block_size < 1:
        raise ValueError(f"`block_size` must be at least 1, got {block_size}.")
    audio = as_embeddings(audio_embeds, "audio_embeds")
    text = as_embeddings(text_embeds, "text_embeds").to(audio.device)
    if audio.shape[1] != text.shape[1]:
        raise ValueError(f"Audio embeddings have {audio.shape[1]} dimensions and text embeddings {text.shape[1]}.")
    clip_index = as_clip_index(text_to_audio, len(audio), len(text))
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
    """Every metric that is a mean over queries, before the mean: what intervals and paired tests resample."""
    text_ranks, best = ranks.text_to_audio, ranks.audio_to_text[:, 0]
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


def metrics_from_ranks(ranks: RetrievalRanks, ks: Sequence[int] = DEFAULT_KS) -> dict[str, float | int]:
    """Average the ranks into the dictionary that [`retrieval_metrics`] describes."""
    return {
        **{name: float(query.values.mean()) for name, query in query_values(ranks, ks).items()},
        "text_to_audio/median_rank": float(np.median(ranks.text_to_audio)),
        "audio_to_text/median_rank": float(np.median(ranks.audio_to_text[:, 0])),
        "n_audio": len(ranks.audio_clips),
        "n_text": len(ranks.text_clips),
    }


def retrieval_metrics(
    audio_embeds: np.ndarray | torch.Tensor,
    text_embeds: np.ndarray | torch.Tensor,
    text_to_audio: np.ndarray | torch.Tensor,
    ks: Sequence[int] = DEFAULT_KS,
    block_size: int = 256,
) -> dict[str, float | int]:
    """Retrieval metrics over the whole set; arguments and errors as in [`retrieval_ranks`].

    Returns:
        For both `text_to_audio` and `audio_to_text`: `/recall@k` for each k, `/mAP@10` and `/median_rank`; also
        `audio_to_text/mAP@10_any`, `n_audio` and `n_text`. Rates are fractions from 0 to 1.
    """
    return metrics_from_ranks(retrieval_ranks(audio_embeds, text_embeds, text_to_audio, block_size), ks)


def pooled_retrieval_ranks(
    audio_embeds: np.ndarray | torch.Tensor,
    text_embeds: np.ndarray | torch.Tensor,
    text_to_audio: np.ndarray | torch.Tensor,
    pool_size: int = 100,
    seed: int = 0,
    block_size: int = 256,
) -> RetrievalRanks:
    """Ranks within disjoint pools of `pool_size` clips and their captions, all pools one after another.

    A seeded permutation splits the clips; the `n_audio % pool_size` clips left at its end are not ranked. `text_rows`,
    `text_clips` and `audio_clips` keep the indices of the whole set. Other arguments and errors as in [`retrieval_ranks`].
    """
    audio = as_embeddings(audio_embeds, "audio_embeds")
    text = as_embeddings(text_embeds, "text_embeds")
    clip_index = as_clip_index(text_to_audio, len(audio), len(text))
    if not 1 <= pool_size <= len(audio):
        raise ValueError(f"`pool_size` must be from 1 to the number of clips ({len(audio)}), got {pool_size}.")
    n_pooled = len(audio) // pool_size * pool_size
    pools = np.random.default_rng(seed).permutation(len(audio))[:n_pooled].reshape(-1, pool_size)

    ranks = []
    for pool in pools:
        row_in_pool = np.full(len(audio), -1)
        row_in_pool[pool] = np.arange(pool_size)
        captions = np.flatnonzero(row_in_pool[clip_index] >= 0)
        in_pool = retrieval_ranks(audio[pool], text[captions], row_in_pool[clip_index[captions]], block_size)
        ranks.append(replace(in_pool, text_rows=captions, text_clips=clip_index[captions], audio_clips=pool))
    names = [field.name for field in fields(RetrievalRanks)]
    return RetrievalRanks(**{name: np.concatenate([getattr(part, name) for part in ranks]) for name in names})


def pooled_retrieval_metrics(
    audio_embeds: np.ndarray | torch.Tensor,
    text_embeds: np.ndarray | torch.Tensor,
    text_to_audio: np.ndarray | torch.Tensor,
    pool_size: int = 100,
    seed: int = 0,
    ks: Sequence[int] = DEFAULT_KS,
) -> dict[str, float | int]:
    """[`retrieval_metrics`] within pools, averaged over all queries of all pools: comparable between sets of any size.

    Returns:
        The keys of [`retrieval_metrics`] over the ranked clips and captions, and `pool_size`, `n_pools` and
        `n_audio_left_out`.
    """
    ranks = pooled_retrieval_ranks(audio_embeds, text_embeds, text_to_audio, pool_size, seed)
    n_pooled = len(ranks.audio_clips)
    return {
        **metrics_from_ranks(ranks, ks),
        "pool_size": pool_size,
        "n_pools": n_pooled // pool_size,
        "n_audio_left_out": len(audio_embeds) - n_pooled,
    }
