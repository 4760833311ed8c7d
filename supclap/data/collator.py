"""Samples to a padded batch."""

from dataclasses import dataclass
from typing import Literal

import torch

from supclap.errors import SettingsError

from .augment import SpectrogramAugment
from .captions import same_clip_ids
from .languages import tokenizer_codes


@dataclass
class ContrastiveCollator:
    """Batches samples of [`~supclap.data.captions.CaptionedClips`] for contrastive training.

    Args:
        processor: A `SupClapProcessor`, or any processor called with `audio=`, `text=` and `sampling_rate=`.
        spectrogram_augment: Changes the features of training batches.
        seed: Seed of that change; each batch draws from its seed and its samples, so that a resumed run repeats it.
        positives: Pairs that are no negatives of each other: those of a `clip` (one group of rows), or of a `label`.
    """

    processor: object
    spectrogram_augment: SpectrogramAugment | None = None
    seed: int = 0
    positives: Literal["clip", "label"] = "clip"

    def __call__(self, samples: list[dict]) -> dict[str, torch.Tensor | list[str]]:
        rate = self.processor.feature_extractor.sampling_rate
        languages = tokenizer_codes(
            getattr(self.processor, "tokenizer", None), [sample.get("language") for sample in samples]
        )
        batch = dict(
            self.processor(
                audio=[sample["audio"] for sample in samples],
                text=[sample["text"] for sample in samples],
                sampling_rate=rate,
                return_tensors="pt",
                **({"text_lang": languages} if languages else {}),
            )
        )
        if self.spectrogram_augment is not None:
            generator = torch.Generator().manual_seed(self.seed + samples[0]["draw"])
            batch["input_features"] = self.spectrogram_augment(
                batch["input_features"], batch["input_features_mask"], generator
            )
        batch["ids"] = [sample.get("id") for sample in samples]  # to name the clips of a batch that fails
        key = "group" if self.positives == "clip" else "label"
        if any(sample.get(key) is None for sample in samples):
            raise SettingsError(
                f"positives {self.positives!r} needs a {key} in every training row: set label_column, or use 'clip'. Scenes "
                "have no single label: there, 'clip' already means all scenes of one meaning."
            )
        batch["clip_ids"] = same_clip_ids([sample[key] for sample in samples])
        return batch
