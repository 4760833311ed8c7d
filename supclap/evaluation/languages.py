"""Retrieval of embedded clips by captions in one or several languages: each on its own, and their unweighted mean.

This is how the paper reports multilingual retrieval. The evaluation of a suite and the validation in training both use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from supclap.data.languages import nllb_code
from supclap.data.rows import caption_languages, check_row, clean_captions
from supclap.evaluation.cache import ClipEncoder
from supclap.evaluation.intervals import grouped_mean, value_with_interval
from supclap.evaluation.results import mean_over_languages, metric_queries, retrieval_queries
from supclap.evaluation.retrieval import (
    DEFAULT_PROTOCOL,
    RetrievalRanks,
    other_protocol,
    retrieval_ranks,
    shared_captions,
)


NOT_STATED = "not stated"


class Caption(NamedTuple):
    """A caption, the index of its clip, and the NLLB code of its language, `None` where that is not known."""

    clip: int
    text: str
    language: str | None


@dataclass(frozen=True)
class EmbeddedClips:
    """Clips of a set: their ids, embeddings `(N, D)`, and hashes of their audio."""

    ids: Sequence[str]
    embeds: torch.Tensor
    contents: Sequence[str]


@dataclass(frozen=True)
class Retrieval:
    """The captions in one language, ranked with the clips that have one.

    Attributes:
        clips: `(n,)` index of each of these clips in the whole set.
        captions: `(m,)` index of each caption in the whole set.
        text: `(m, D)` embeddings of the captions.
        languages: The languages of the captions, `None` among them where that of a caption is not known.
        pool_size: The number of clips in a pool; `None` where all are in one.
        ranks: The ranks, whose indices count the clips and captions of this language.
        queries: The arrays that are filed beside the results.
        n_different: The number of different texts among the captions.
        n_shared: The number of captions whose text another clip has too.
        protocol: The protocol of the ranks.
        other: The same under the other protocol, where that was asked for and differs: some text occurs twice.
    """

    clips: np.ndarray
    captions: np.ndarray
    text: torch.Tensor
    languages: set[str | None]
    pool_size: int | None
    ranks: RetrievalRanks
    queries: dict[str, np.ndarray]
    n_different: int
    n_shared: int
    protocol: str = DEFAULT_PROTOCOL
    other: "Retrieval | None" = None


def captions_of(rows: Sequence[Mapping[str, Any]]) -> list[Caption]:
    """All captions of rows, which need not have their audio.

    Raises:
        ValueError: A row has no usable caption or no id; it is named.
    """
    captions = []
    for clip, row in enumerate(rows):
        check_row({"audio": "is read later", **row}, clip)
        codes = map(nllb_code, caption_languages(row))
        captions += [Caption(clip, text, code) for text, code in zip(row["captions"], codes, strict=True)]
    return captions


def languages_of(captions: Sequence[Caption]) -> list[str]:
    """The languages of captions; `not stated` is one of them where some state none."""
    return sorted({caption.language or NOT_STATED for caption in captions})


def retrieve(
    encoder: ClipEncoder,
    clips: EmbeddedClips,
    captions: Sequence[Caption],
    language: str | None = None,
    pool_size: int | None = None,
    protocol: str = DEFAULT_PROTOCOL,
    both: bool = False,
) -> Retrieval | None:
    """Embeds the captions in a language and ranks them with their clips; `None` where there is no such caption.

    Args:
        encoder: What embeds the captions.
        clips: All clips. Those without a caption in the language are left out.
        captions: All captions.
        language: The language, or `not stated`; all captions together when omitted, of which equal texts are one item also
            where their languages differ.
        pool_size: As in [`~supclap.evaluation.retrieval.retrieval_ranks`]; a size that all clips fit into makes one pool.
        protocol: As there.
        both: Whether to rank by the other protocol too where it differs.
    """
    code = None if language in (None, NOT_STATED) else nllb_code(language)
    chosen = [index for index, one in enumerate(captions) if language is None or one.language == code]
    if not chosen:
        return None
    texts, codes = [captions[index].text for index in chosen], [captions[index].language for index in chosen]
    own_clips, clip_of = np.unique([captions[index].clip for index in chosen], return_inverse=True)
    # an encoder takes one language for each text or none, so it is told only what is known of every caption
    text = encoder.embed_texts(texts, None if None in codes else codes)
    pool_size = pool_size if pool_size and pool_size < len(own_clips) else None
    ids, contents = ([values[clip] for clip in own_clips] for values in (clips.ids, clips.contents))

    def ranked(by: str) -> dict[str, Any]:
        ranks = retrieval_ranks(clips.embeds[own_clips], text, clip_of, pool_size, texts=texts, protocol=by)
        return {"protocol": by, "ranks": ranks, "queries": retrieval_queries(ranks, ids, texts, contents)}

    one = Retrieval(
        own_clips,
        np.array(chosen),
        text,
        set(codes),
        pool_size,
        n_different=len(set(clean_captions(texts))),
        n_shared=int(shared_captions(texts, clip_of).sum()),
        **ranked(protocol),
    )
    if both and one.n_different < len(texts):
        return replace(one, other=replace(one, **ranked(other_protocol(protocol))))
    return one


def retrieval_scores(
    by_language: Mapping[str | None, Retrieval], intervals: bool = True
) -> dict[str, dict[str, float | int | None]]:
    """Each metric as `{"value", "low", "high", "n"}`; of several languages their unweighted mean.

    Args:
        by_language: One or several retrievals over the same clips.
        intervals: Whether to compute the 95 % intervals, which resample a clip in all its languages.
    """
    metrics = {}
    queries = mean_over_languages(
        {str(language): metric_queries(one.queries) for language, one in by_language.items()}
    )
    for name, query in queries.items():
        if intervals:
            metrics[name] = value_with_interval(query.values, query.clusters, groups=query.groups)
        else:
            value = grouped_mean(query.values, query.groups)
            metrics[name] = {"value": value, "low": None, "high": None, "n": len(query.values)}
    for direction in ("text_to_audio", "audio_to_text"):
        best = [one.ranks.best[direction] for one in by_language.values()]
        value = float(np.mean([np.median(ranks) for ranks in best]))
        metrics[f"{direction}/median_rank"] = {"value": value, "low": None, "high": None, "n": sum(map(len, best))}
    return metrics
