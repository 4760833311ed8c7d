"""The evaluation: retrieval, zero-shot classification, and confidence intervals for both."""

from supclap.evaluation.embed import embed_audio, embed_texts
from supclap.evaluation.intervals import (
    PairedDifference,
    bootstrap_interval,
    metrics_with_intervals,
    paired_difference,
)
from supclap.evaluation.retrieval import (
    QueryValues,
    RetrievalRanks,
    query_values,
    retrieval_metrics,
    retrieval_ranks,
)
from supclap.evaluation.tables import format_table
from supclap.evaluation.zero_shot import (
    multi_label_metrics,
    zero_shot_metrics,
)


__all__ = [
    "PairedDifference",
    "QueryValues",
    "RetrievalRanks",
    "bootstrap_interval",
    "embed_audio",
    "embed_texts",
    "format_table",
    "metrics_with_intervals",
    "multi_label_metrics",
    "paired_difference",
    "query_values",
    "retrieval_metrics",
    "retrieval_ranks",
    "zero_shot_metrics",
]
