"""Clips with captions, from files to batches.

Loaders (`corpora`, `tables`) yield rows in the format of `rows`. `splits` makes the rows of a recipe, `mixture`, `scenes`
and `streaming` draw from them, `dataset` makes training samples of rows, and `collator` makes batches of samples.
`check`, `shards` and `manifest` look at rows for `supclap data check`, `supclap data prepare` and the model card.
"""

from supclap.errors import DataError

from .augment import SpectrogramAugment, WaveformAugment
from .collator import ContrastiveCollator
from .corpora import load_corpus
from .dataset import CaptionedClips
from .manifest import build_manifest
from .mixture import CorpusMixture
from .rows import check_row
from .sampler import LengthGroupedSampler
from .scenes import SceneMixer
from .splits import load_splits
from .streaming import StreamedClips
from .tables import read_table


__all__ = [
    "CaptionedClips",
    "ContrastiveCollator",
    "CorpusMixture",
    "DataError",
    "LengthGroupedSampler",
    "SceneMixer",
    "SpectrogramAugment",
    "StreamedClips",
    "WaveformAugment",
    "build_manifest",
    "check_row",
    "load_corpus",
    "load_splits",
    "read_table",
]
