"""Losses for the embeddings of any dual encoder: `SupClapLoss` and the functions it is made of."""

from supclap.losses.contrastive import info_nce, siglip, similarity_logits
from supclap.losses.distributed import gather_columns, gather_rows
from supclap.losses.loss import ContrastiveLossOutput, SupClapLoss
from supclap.losses.radius import SimilarityRadius, StaticRadius, SummaryRadius, positive_first
from supclap.losses.support_vectors import PaperReadings, radius_constraint, support_vectors


__all__ = [
    "ContrastiveLossOutput",
    "PaperReadings",
    "SimilarityRadius",
    "StaticRadius",
    "SummaryRadius",
    "SupClapLoss",
    "gather_columns",
    "gather_rows",
    "info_nce",
    "positive_first",
    "radius_constraint",
    "siglip",
    "similarity_logits",
    "support_vectors",
]
