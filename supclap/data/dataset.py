"""The data set that turns rows into training samples, and the drawing of captions."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch.utils.data import Dataset

from processing_supclap.audio_supclap import load_waveform
from supclap.errors import DataError, SettingsError

from .cropping import header_duration, load_crop
from .rows import caption_languages, check_row, without_audio


def stable_hash(*parts: object) -> int:
    """A 63-bit integer from the parts, the same in every process and run; Python's own `hash` of a text is not."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def draw_caption(row: dict, rng: np.random.Generator, weights: Mapping[str, float] | None = None) -> int:
    """Draws one caption of a row and returns its index.

    Without weights all captions are drawn alike. With weights a language is drawn first, by its weight among the
    languages of the row, and then one of the captions in it.

    Args:
        row: A row.
        rng: Generator of the draw.
        weights: Weight of each language.

    Raises:
        SettingsError: No caption of the row is in a language that has a weight.
    """
    if weights is None:
        return int(rng.integers(len(row["captions"])))
    by_language: dict[str | None, list[int]] = {}
    for index, language in enumerate(caption_languages(row)):
        if weights.get(language, 0) > 0:
            by_language.setdefault(language, []).append(index)
    if not by_language:
        raise SettingsError(
            f"clip {row['id']!r} has captions in {sorted(set(map(str, caption_languages(row))))}, and language_weights "
            f"weights {sorted(weights)}. Add the language, or leave such clips out."
        )
    languages = sorted(by_language, key=str)
    share = np.array([weights[language] for language in languages], dtype=float)
    return int(rng.choice(by_language[languages[rng.choice(len(languages), p=share / share.sum())]]))


@contextmanager
def advising_data_check() -> Iterator[None]:
    """Adds to an error about one clip's audio the advice how to find all such clips before training."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise DataError(
            f"{error} Not all audio is decoded before training: `supclap data check` does that and names every such "
            "clip; skip_bad: true does it and leaves them out."
        ) from error


@dataclass(eq=False, repr=False)
class CaptionedClips(Dataset):
    """Training samples from rows: one waveform and one of its captions, a function of (seed, epoch, row) alone.

    Args:
        rows: Rows in the format of `supclap.data.rows`; a list, a `datasets.Dataset` or a
            [`~supclap.data.scenes.SceneMixer`].
        sampling_rate: Rate of the waveforms in Hz.
        max_duration: Longer clips are cropped at random to so many seconds.
        augment: Changes a waveform, called as `augment(waveform, rng)`.
        seed: Seed of the caption draw, the crop and the augmentation.
        language_weights: Weight of each language in the draw of a caption; all captions alike when omitted.

    Example:
        >>> import numpy as np
        >>> audio = {"array": np.zeros(16000, np.float32), "sampling_rate": 16000}
        >>> clips = CaptionedClips([{"id": "1", "audio": audio, "captions": ["silence"]}])
        >>> clips[0]["text"], clips[0]["audio"].shape
        ('silence', (16000,))
    """

    rows: Sequence[dict]
    sampling_rate: int = 16000
    max_duration: float | None = None
    augment: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None
    seed: int = 0
    language_weights: Mapping[str, float] | None = None

    def __post_init__(self):
        if not len(self.rows):
            raise ValueError("No rows to train on.")
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[float] | None:
        """Length of each clip, in any one unit, or `None` where some are not known without decoding them.

        Mixed scenes know theirs in samples; rows tell theirs in seconds by their `duration` or the header of the file.
        """
        return self.rows.lengths if hasattr(self.rows, "lengths") else self._durations

    @cached_property
    def _durations(self) -> list[float] | None:
        """Seconds of each sample, crops counted as such."""
        durations = []
        for index in range(len(self.rows)):
            row = without_audio(self.rows, index)
            seconds = header_duration(row.get("audio")) if row.get("duration") is None else float(row["duration"])
            if seconds is None:
                return None
            durations.append(min(seconds, self.max_duration or seconds))
        return durations

    def __getitem__(self, index: int) -> dict:
        return self._sample(self.rows[index], index)

    def __getitems__(self, indices: Sequence[int]) -> list[dict]:
        """The samples of a batch, as a data loader asks for them."""
        if not hasattr(self.rows, "scenes"):
            return [self[index] for index in indices]
        return [self._sample(row, index) for row, index in zip(self.rows.scenes(indices), indices, strict=True)]

    def _sample(self, row: dict, index: int) -> dict:
        check_row(row, index)
        # a clip that a mixture repeats within an epoch is drawn anew
        rng = np.random.default_rng([self.seed, self.epoch, stable_hash(row["id"]), *row.get("repeat", [])])
        caption = draw_caption(row, rng, self.language_weights)
        name = f"clip {row['id']!r}"
        with advising_data_check():
            if self.max_duration is None:
                waveform = load_waveform(row["audio"], target_sampling_rate=self.sampling_rate, name=name).numpy()
            else:
                longest = int(self.max_duration * self.sampling_rate)
                waveform = load_crop(row["audio"], self.sampling_rate, longest, rng, name)
        if self.augment is not None:
            waveform = self.augment(waveform, rng)
        return {
            "audio": waveform,
            "text": row["captions"][caption],
            "language": caption_languages(row)[caption],
            "id": row["id"],
            "group": row["id"] if row.get("group") in (None, "") else row["group"],
            "label": row.get("label"),
            "draw": int(rng.integers(2**31)),
        }


def same_clip_ids(groups: Sequence[str]) -> torch.Tensor:
    """Integer ids `(n,)` of the groups, equal exactly where the groups are."""
    return torch.tensor([stable_hash(group) for group in groups], dtype=torch.long)
