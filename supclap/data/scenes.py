"""Scenes from short recordings, with captions that say what happens: for any clip collection with captions."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from processing_supclap.audio_supclap import load_waveform

from .augment import change_speed
from .dataset import advising_data_check, stable_hash
from .rows import check_row
from .waveform_cache import WaveformCache


TEMPLATES = {
    "clip": "{a}",
    "single": "{a}",
    "sequence": "{a}, followed by {b}",
    "background": "{a}, with {b} in the background",
}
SILENCE = 1e-3  # a share of the peak: 60 dB below it
ALONE = ("clip", "single")


@dataclass(eq=False, repr=False)
class SceneMixer:
    """A sequence of scenes of a few seconds, each a function of `(seed, epoch, index)` alone.

    A scene is one sound, one sound after another, or one sound over a quieter other one. Silence at the ends of a
    recording is left out; short recordings repeat with pauses, long ones are cut. A `"clip"` is a recording as it is.
    Scenes are rows in the row format, with one caption per pair of source captions.

    Args:
        rows: Recordings in the row format; those of one `label` (the first caption when absent) are never mixed
            with each other.
        size: Number of scenes.
        kinds: Weight of each kind of scene, of `"clip"`, `"single"`, `"sequence"`, `"background"`; the last three
            alike when omitted.
        duration: Shortest and longest scene in seconds.
        block: Scenes in a row that belong together, usually a batch (keep their order: `train_sampling_strategy:
            sequential`): they are of one length, which needs no padding, and share their labels.
        block_labels: Number of labels that the scenes of a block are drawn from; all when omitted. Few labels make
            hard negatives: scenes that differ in one sound, in the order or in what is louder.
        curriculum: Other `kinds`, `duration` and `block_labels` for the first epochs, one dictionary an epoch.
        background_db: How far the sound in the background is below the one in front, in dB of RMS level.
        level_db: Range of the RMS level of the sound in front, in dBFS.
        noise_db: Range of the level of a noise floor below the sound in front, in dB; none when omitted.
        pairs: `"all"` combinations of labels, or only those that are `"seen"` in training or kept `"unseen"`.
        unseen_fraction: Share of the combinations that are kept unseen, chosen by a hash of the two labels.
        unseen_labels: Keep the combinations of any two of these labels unseen, and no others; instead of
            `unseen_fraction`.
        speeds: Speeds in percent, one drawn for each recording in a scene (pitch and length change together).
        augment: Changes a recording before it is mixed, called as `augment(waveform, rng)`.
        distinct: Whether no two scenes may have the same meaning; for evaluation.
        seed: Seed of all choices.
        sampling_rate: Rate of the scenes in Hz.
        cache_bytes: Bytes of decoded recordings that each process keeps in memory.

    Raises:
        ValueError: The rows do not allow the scenes that were asked for; the message says which.
    """

    rows: Sequence[dict]
    size: int
    kinds: dict[str, float] | None = None
    duration: tuple[float, float] = (4.0, 8.0)
    block: int = 1
    block_labels: int | None = None
    curriculum: Sequence[dict] = ()
    background_db: float = 12.0
    level_db: tuple[float, float] = (-26.0, -20.0)
    noise_db: tuple[float, float] | None = None
    pairs: str = "all"
    unseen_fraction: float = 0.2
    unseen_labels: Sequence[str] | None = None
    speeds: Sequence[int] = (100,)
    augment: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None
    distinct: bool = False
    seed: int = 0
    sampling_rate: int = 16000
    cache_bytes: int = 2**29

    def __post_init__(self):
        self.kinds = dict.fromkeys(("single", "sequence", "background"), 1.0) if self.kinds is None else self.kinds
        for stage in [{}, *self.curriculum]:
            _check_stage(stage.get("kinds", self.kinds), stage.get("duration", self.duration), set(stage))
        if self.block < 1 or (self.block_labels is not None and self.block_labels < 2):
            raise ValueError(
                f"block must be at least 1 and block_labels at least 2, got {self.block} and {self.block_labels}."
            )
        if self.pairs not in ("all", "seen", "unseen"):
            raise ValueError(f"pairs must be 'all', 'seen' or 'unseen', got {self.pairs!r}.")
        self.rows = list(self.rows)
        for index, row in enumerate(self.rows):
            check_row(row, index)
        self.epoch = 0

        self.takes: dict[str, list[int]] = {}
        for index, row in enumerate(self.rows):
            self.takes.setdefault(row.get("label") or row["captions"][0], []).append(index)
        labels = sorted(self.takes)
        # the pairs of labels that may be mixed
        self.mixable = [(a, b) for a in labels for b in labels if a != b and self._is_wanted(a, b)]
        if not self.mixable and any(self.kinds.get(kind, 0) for kind in ("sequence", "background")):
            raise ValueError(f"{len(labels)} labels give no {self.pairs} pair to mix; the labels are {labels}.")
        self._noise_floor: np.ndarray | None = None
        self._meanings_of_block: dict[tuple[int, int], tuple] = {}
        self._load = WaveformCache(self._prepare, self.cache_bytes)
        self._plan = self._distinct_plan(labels) if self.distinct else None

    def _is_wanted(self, a: str, b: str) -> bool:
        """Whether `pairs` asks for a combination of two labels, which is unseen or not in any order."""
        if self.unseen_labels is not None:
            unseen = a in self.unseen_labels and b in self.unseen_labels
        else:
            unseen = stable_hash(*sorted((a, b))) % 10_000 < self.unseen_fraction * 10_000
        return self.pairs == "all" or (self.pairs == "unseen") == unseen

    def _distinct_plan(self, labels: list[str]) -> list[tuple[str, str, str | None]]:
        """Meanings of all scenes, each at most once and each kind by its weight."""
        rng = np.random.default_rng([self.seed, stable_hash("plan")])
        meanings = {
            kind: [(kind, label, None) for label in labels]
            if kind in ALONE
            else [(kind, *pair) for pair in self.mixable]
            for kind, weight in self.kinds.items()
            if weight > 0
        }
        # kinds with few meanings first: what they cannot fill goes to the others
        plan: list[tuple[str, str, str | None]] = []
        weight = sum(self.kinds[kind] for kind in meanings)
        for kind, all_of_kind in sorted(meanings.items(), key=lambda item: len(item[1])):
            count = round((self.size - len(plan)) * self.kinds[kind] / weight)
            weight -= self.kinds[kind]
            plan += [all_of_kind[i] for i in rng.permutation(len(all_of_kind))[:count]]
        if len(plan) < self.size:
            raise ValueError(
                f"Only {sum(map(len, meanings.values()))} scenes of different meaning can be made of {len(labels)} labels "
                f"and {len(self.mixable)} pairs with these kinds, fewer than the {self.size} asked for."
            )
        return [plan[i] for i in rng.permutation(len(plan))]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def _prepare(self, key: tuple[int, bool, int]) -> np.ndarray:
        """The recording of a take at unit RMS level and at a speed, with or without the silence at its ends."""
        take, trim, speed = key
        row = self.rows[take]
        name = f"clip {row['id']!r}"
        with advising_data_check():
            wave = load_waveform(row["audio"], target_sampling_rate=self.sampling_rate, name=name).numpy()
        if trim:
            sounding = np.flatnonzero(np.abs(wave) > SILENCE * np.abs(wave).max())
            wave = wave[sounding[0] : sounding[-1] + 1] if len(sounding) else wave
        return unit_level(change_speed(wave, speed))

    def scenes(self, indices: Sequence[int]) -> list[dict]:
        """Several scenes, mixed by as many threads as torch computes with: in a data worker that is one."""
        threads = torch.get_num_threads()
        if threads == 1:
            return [self[index] for index in indices]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.__getitem__, indices))

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self.size:
            raise IndexError(f"scene {index} of {self.size}")
        rng = np.random.default_rng([self.seed, self.epoch, index])
        length = self._length(index)
        kind, label_a, label_b = self._plan[index] if self._plan else self._draw(index, rng)
        take_a = rng.choice(self.takes[label_a])
        take_b = rng.choice(self.takes[label_b]) if label_b is not None else None
        wave_a = self._sound(take_a, rng, trim=kind != "clip")
        if kind == "clip":
            scene = wave_a[: int(self._stage("duration")[1] * self.sampling_rate)]
        elif kind == "single":
            scene = fill(wave_a, length, rng, self.sampling_rate)
        elif kind == "sequence":
            first = int(length * rng.uniform(0.4, 0.6))
            second = fill(self._sound(take_b, rng), length - first, rng, self.sampling_rate)
            scene = np.concatenate([fill(wave_a, first, rng, self.sampling_rate), second])
        else:
            scene = fill(wave_a, length, rng, self.sampling_rate)
            background = fill(self._sound(take_b, rng), length, rng, self.sampling_rate)
            scene = scene + background * 10 ** (-self.background_db / 20)
        scene = self._finish(scene, rng)

        captions = self.rows[take_a]["captions"]
        if take_b is not None:
            others = self.rows[take_b]["captions"]
            partners = [others[i % len(others)] for i in rng.permutation(len(captions))]
            captions = [TEMPLATES[kind].format(a=a, b=b) for a, b in zip(captions, partners, strict=True)]
        meaning = label_a if kind in ALONE else f"{kind}|{label_a}|{label_b}"
        return {
            "id": f"scene-{self.seed}-{self.epoch}-{index}",
            "audio": {"array": scene, "sampling_rate": self.sampling_rate},
            "captions": list(captions),
            "labels": [label for label in (label_a, label_b) if label is not None],
            "group": meaning,
            "sources": [self.rows[take]["id"] for take in (take_a, take_b) if take is not None],
        }

    @property
    def lengths(self) -> list[int]:
        """Samples of each scene, known without making it; their order is the same in every epoch."""
        return [self._length(index) for index in range(self.size)]

    def _stage(self, name: str):
        stage = self.curriculum[self.epoch] if self.epoch < len(self.curriculum) else {}
        return stage.get(name, getattr(self, name))

    def _length(self, index: int) -> int:
        rng = np.random.default_rng([self.seed, index // self.block])
        return int(rng.uniform(*self._stage("duration")) * self.sampling_rate)

    def _draw(self, index: int, rng: np.random.Generator) -> tuple[str, str, str | None]:
        kinds = self._stage("kinds")
        names = sorted(kinds)
        weights = np.array([kinds[name] for name in names], dtype=float)
        kind = names[rng.choice(len(names), p=weights / weights.sum())]
        labels, pairs = self._block_meanings(self.epoch, index // self.block)
        if kind in ALONE or not pairs:
            return kind if kind in ALONE else "single", labels[rng.integers(len(labels))], None
        return kind, *pairs[rng.integers(len(pairs))]

    def _block_meanings(self, epoch: int, block: int) -> tuple[list[str], list[tuple[str, str]]]:
        """The labels of a block, and the pairs of them that may be mixed."""
        # the last draw is kept: the scenes of a block come one after another
        kept = self._meanings_of_block  # another thread may replace it
        if (epoch, block) in kept:
            return kept[epoch, block]
        labels, count = sorted(self.takes), self._stage("block_labels")
        if count is None or count >= len(labels):
            return labels, self.mixable
        rng = np.random.default_rng([self.seed, epoch, block, stable_hash("labels")])
        chosen = rng.choice(labels, count, replace=False).tolist()
        drawn = chosen, [pair for pair in self.mixable if pair[0] in chosen and pair[1] in chosen]
        self._meanings_of_block = {(epoch, block): drawn}
        return drawn

    def _sound(self, take: int, rng: np.random.Generator, trim: bool = True) -> np.ndarray:
        """A recording at unit RMS level, augmented."""
        wave = self._load((take, trim, int(self.speeds[rng.integers(len(self.speeds))])))
        return wave if self.augment is None else unit_level(self.augment(wave, rng))

    def _noise(self, length: int, rng: np.random.Generator) -> np.ndarray:
        """White noise at unit level, cut from a stretch that is drawn once: drawing takes longer than all the mixing."""
        if self._noise_floor is None:
            longest = max(stage.get("duration", self.duration)[1] for stage in [{}, *self.curriculum])
            size = 4 * int(longest * self.sampling_rate)
            self._noise_floor = np.random.default_rng(self.seed).standard_normal(size, np.float32)
        start = rng.integers(len(self._noise_floor) - length)
        return self._noise_floor[start : start + length]

    def _finish(self, scene: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sets the level, adds the noise floor and keeps the peak in range."""
        if self.noise_db is not None:
            scene = scene + np.float32(10 ** (-rng.uniform(*self.noise_db) / 20)) * self._noise(len(scene), rng)
        scene = scene * 10 ** (rng.uniform(*self.level_db) / 20)
        peak = np.abs(scene).max()
        return (scene / max(peak, 1.0)).astype(np.float32)


def _check_stage(kinds: dict[str, float], duration: tuple[float, float], keys: set[str]) -> None:
    if keys - {"kinds", "duration", "block_labels"}:
        raise ValueError(f"a stage of the curriculum has kinds, duration and block_labels, got {sorted(keys)}.")
    if set(kinds) - set(TEMPLATES) or sum(kinds.values()) <= 0:
        raise ValueError(f"kinds must weight some of {sorted(TEMPLATES)}, got {kinds}.")
    if not 0 < duration[0] <= duration[1]:
        raise ValueError(f"duration must be (shortest, longest) in seconds, got {duration}.")


def unit_level(wave: np.ndarray) -> np.ndarray:
    """A waveform at an RMS level of 1; silence as it is."""
    level = np.sqrt(np.mean(np.square(wave)))
    return wave / level if level > 0 else wave


def fill(wave: np.ndarray, length: int, rng: np.random.Generator, sampling_rate: int) -> np.ndarray:
    """Fills `length` samples with a recording: a long one is cut, a short one repeats with random pauses."""
    fade = min(len(wave), length, sampling_rate // 100)
    if len(wave) >= length:
        start = rng.integers(len(wave) - length + 1)
        wave = wave[start : start + length].copy()
        wave[-fade:] *= np.linspace(1, 0, fade, dtype=np.float32)
        return wave
    scene = np.zeros(length, dtype=np.float32)
    position = int(min(rng.uniform(0, 0.5) * sampling_rate, length - len(wave)))
    while position + len(wave) <= length:
        scene[position : position + len(wave)] = wave
        position += len(wave) + int(rng.uniform(0.1, 0.6) * sampling_rate)
    return scene
