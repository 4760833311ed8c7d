"""Clips with captions: the row format, loading, scenes, augmentation and batches."""

from .augment import SpectrogramAugment, WaveformAugment
from .captions import CaptionedClips, check_row
from .collator import ContrastiveCollator
from .mixing import SceneMixer
from .sampler import LengthGroupedSampler
from .sources import DataError, load_splits, read_table
from .streaming import StreamedClips


__all__ = [
    "CaptionedClips",
    "ContrastiveCollator",
    "DataError",
    "LengthGroupedSampler",
    "SceneMixer",
    "SpectrogramAugment",
    "StreamedClips",
    "WaveformAugment",
    "check_row",
    "load_splits",
    "read_table",
]
