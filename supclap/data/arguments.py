"""The `data` section of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from transformers.hf_argparser import HfArg

from .augment import SpectrogramAugment, WaveformAugment
from .field_types import Share, fields_of
from .scenes import SceneMixer


GIVEN_TO_SCENES = ("rows", "augment", "sampling_rate")
Scenes = fields_of(SceneMixer, GIVEN_TO_SCENES, size=PositiveInt, speeds=Sequence[PositiveInt], unseen_fraction=Share)
Masks = dict.fromkeys(("frequency_masks", "frequency_width", "time_masks", "time_width"), NonNegativeInt)


@dataclass
class DataArguments:
    """The `data` section: where the clips are, how they are split, what is done to them in training."""

    corpus: str | None = HfArg(
        default=None, help="A corpus by name (audiocaps, clotho, …) in place of tables; in data_dir."
    )
    corpus_options: dict | None = HfArg(default=None, help="Options of the corpus, by its module.")
    corpora: list | None = HfArg(
        default=None, help="Mixture to train on: corpus, data_dir, splits, weight, options of each."
    )
    epoch_size: PositiveInt | None = HfArg(default=None, help="Clips of an epoch of a mixture; all when null.")
    skip_bad: bool = HfArg(default=False, help="Leave clips without usable audio or captions out, counted and listed.")
    exclude_leaks_of: list | None = HfArg(
        default=None, help="Evaluation sets (or leak lists) whose recordings are not trained on."
    )
    leak_lists: str | None = HfArg(default=None, help="Folder of published leak lists; data_dir if null.")
    language_weights: dict[str, NonNegativeFloat] | None = HfArg(
        default=None, help="Weight of each language in the draw of a caption; all alike if null."
    )
    streaming: bool = HfArg(
        default=False, help="Read the training clips as they are needed, without end; needs max_steps."
    )
    shuffle_buffer: NonNegativeInt = HfArg(
        default=1000, help="Clips of a stream that the order is drawn from, held in memory; 0 keeps it."
    )
    content_hashes: bool = HfArg(default=True, help="Hash the audio for the manifest, which reads all of it once.")
    data_dir: str | None = HfArg(default=None, help="Folder of the clips and their metadata.")
    train_file: str | None = HfArg(default=None, help="CSV or JSON lines of the training clips.")
    validation_file: str | None = HfArg(default=None, help="The same for validation.")
    test_file: str | None = HfArg(default=None, help="The same for the final test.")
    split_column: str | None = HfArg(default=None, help="Column that assigns clips to splits.")
    train_splits: list | None = HfArg(default=None, help="Its values for training; of a corpus, the splits or folds.")
    validation_splits: list | None = HfArg(default=None, help="Its values for validation.")
    test_splits: list | None = HfArg(default=None, help="Its values for the test.")
    audio_column: str = HfArg(default="file_name", help="Column of the file, relative to the metadata.")
    caption_columns: list[str] = HfArg(
        default_factory=lambda: ["captions"], help="Columns of captions; each may hold a list."
    )
    label_column: str | None = HfArg(default=None, help="Column of the class, for zero-shot evaluation.")
    group_column: str | None = HfArg(
        default=None, help="Recordings of one group must not be split: training drops those that are."
    )
    label_captions: dict | None = HfArg(default=None, help="Captions of each class, by its label.")
    max_duration: PositiveFloat | None = HfArg(default=None, help="Crop training clips to so many seconds.")
    scenes: Scenes | None = HfArg(default=None, help="Arguments of SceneMixer for training; none if null.")
    validation_scenes: Scenes | None = HfArg(
        default=None, help="Arguments of SceneMixer for validation; the clips themselves if null."
    )
    test_scenes: Scenes | None = HfArg(default=None, help="The same for the test.")
    waveform_augment: fields_of(WaveformAugment, speeds=Sequence[PositiveInt]) | None = HfArg(
        default=None, help="Arguments of WaveformAugment."
    )
    spectrogram_augment: fields_of(SpectrogramAugment, **Masks, response_points=PositiveInt) | None = HfArg(
        default=None, help="Arguments of SpectrogramAugment."
    )
    input_statistics_batches: PositiveInt = HfArg(
        default=16, help="Training batches to set the input normalization of a random encoder from."
    )
