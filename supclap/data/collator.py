"""Makes a padded batch of samples."""

from dataclasses import dataclass
from typing import Literal

import torch

from supclap.errors import SettingsError

from .augment import SpectrogramAugment
from .dataset import same_clip_ids
from .languages import tokenizer_codes


@dataclass
class ContrastiveCollator:
    """Batches samples of [`~supclap.data.dataset.CaptionedClips`] for contrastive training.

    Args:
        processor: A `SupClapProcessor`, or any processor called with `audio=`, `text=` and `sampling_rate=`.
        spectrogram_augment: Changes the features of training batches.
        seed: Seed of that change; each batch draws from its seed and its samples, so that a resumed run repeats it.
        positives: Which pairs of a batch are no negatives of each other: those of one `clip` (rows of one `group`), or
            those of one `label`.
        features_later: Whether to leave the waveforms in the batch, so that `add_features` is called where the model is.
    """

    processor: object
    spectrogram_augment: SpectrogramAugment | None = None
    seed: int = 0
    positives: Literal["clip", "label"] = "clip"
    features_later: bool = False

    def __call__(self, samples: list[dict]) -> dict[str, torch.Tensor | list[str]]:
        languages = tokenizer_codes(
            getattr(self.processor, "tokenizer", None), [sample.get("language") for sample in samples]
        )
        batch = dict(
            self.processor(
                text=[sample["text"] for sample in samples],
                return_tensors="pt",
                **({"text_lang": languages} if languages else {}),
            )
        )
        # These stay arrays on the CPU, where the extractor checks them: only tensors are moved to the device of the model.
        batch["audio"] = [sample["audio"] for sample in samples]
        batch["draw"] = samples[0].get("draw")
        if not self.features_later:
            self.add_features(batch)
        batch["ids"] = [sample.get("id") for sample in samples]  # to name the clips of a batch that fails
        key = "group" if self.positives == "clip" else "label"
        if any(sample.get(key) is None for sample in samples):
            raise SettingsError(
                f"positives {self.positives!r} needs a {key} in every training row: set label_column, or use 'clip'. Scenes "
                "have no single label: there, 'clip' already means all scenes of one meaning."
            )
        batch["clip_ids"] = same_clip_ids([sample[key] for sample in samples])
        return batch

    def add_features(self, batch: dict, device: torch.device | None = None) -> None:
        """Replaces the waveforms of a batch by their augmented features.

        Args:
            batch: A batch that still holds its waveforms; it is changed.
            device: Where the features are made; the CPU when omitted.
        """
        draw = batch.pop("draw")  # seeds the augmentation
        inputs = self.processor(
            audio=batch.pop("audio"),
            sampling_rate=self.processor.feature_extractor.sampling_rate,
            return_tensors="pt",
            **({} if device is None else {"device": device}),
        )
        batch.update(inputs)
        if self.spectrogram_augment is not None:
            generator = torch.Generator().manual_seed(self.seed + draw)
            batch["input_features"] = self.spectrogram_augment(
                batch["input_features"], batch["input_features_mask"], generator
            )
