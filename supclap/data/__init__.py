"""Clips with captions: the row format, loading, scenes, augmentation and batches."""

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
