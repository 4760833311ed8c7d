"""The `data` section of a recipe."""

from dataclasses import dataclass, field

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from .augment import SpectrogramAugment, WaveformAugment
from .field_types import fields_of
from .scenes import SceneMixer


Scenes = fields_of(SceneMixer)


@dataclass
class DataArguments:
    """The `data` section: where the clips are, how they are split, what is done to them in training."""

    corpus: str | None = field(
        default=None, metadata={"help": "A corpus by name (audiocaps, clotho, …) in place of tables; in data_dir."}
    )
    corpus_options: dict | None = field(default=None, metadata={"help": "Options of the corpus, by its module."})
    corpora: list | None = field(
        default=None, metadata={"help": "Mixture to train on: corpus, data_dir, splits, weight, options of each."}
    )
    epoch_size: PositiveInt | None = field(
        default=None, metadata={"help": "Clips of an epoch of a mixture; all when null."}
    )
    skip_bad: bool = field(
        default=False, metadata={"help": "Leave clips without usable audio or captions out, counted and listed."}
    )
    exclude_leaks_of: list | None = field(
        default=None, metadata={"help": "Evaluation sets (or leak lists) whose recordings are not trained on."}
    )
    leak_lists: str | None = field(
        default=None, metadata={"help": "Folder of published leak lists; data_dir if null."}
    )
    language_weights: dict[str, NonNegativeFloat] | None = field(
        default=None, metadata={"help": "Weight of each language in the draw of a caption; all alike if null."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read the training clips as they are needed, without end; needs max_steps."}
    )
    shuffle_buffer: NonNegativeInt = field(
        default=1000, metadata={"help": "Clips of a stream that the order is drawn from, held in memory; 0 keeps it."}
    )
    content_hashes: bool = field(
        default=True, metadata={"help": "Hash the audio for the manifest, which reads all of it once."}
    )
    data_dir: str | None = field(default=None, metadata={"help": "Folder of the clips and their metadata."})
    train_file: str | None = field(default=None, metadata={"help": "CSV or JSON lines of the training clips."})
    validation_file: str | None = field(default=None, metadata={"help": "The same for validation."})
    test_file: str | None = field(default=None, metadata={"help": "The same for the final test."})
    split_column: str | None = field(default=None, metadata={"help": "Column that assigns clips to splits."})
    train_splits: list | None = field(
        default=None, metadata={"help": "Its values for training; of a corpus, the splits or folds."}
    )
    validation_splits: list | None = field(default=None, metadata={"help": "Its values for validation."})
    test_splits: list | None = field(default=None, metadata={"help": "Its values for the test."})
    audio_column: str = field(default="file_name", metadata={"help": "Column of the file, relative to the metadata."})
    caption_columns: list[str] = field(
        default_factory=lambda: ["captions"], metadata={"help": "Columns of captions; each may hold a list."}
    )
    label_column: str | None = field(default=None, metadata={"help": "Column of the class, for zero-shot evaluation."})
    group_column: str | None = field(
        default=None, metadata={"help": "Recordings of one group must not be split: training drops those that are."}
    )
    label_captions: dict | None = field(default=None, metadata={"help": "Captions of each class, by its label."})
    max_duration: PositiveFloat | None = field(
        default=None, metadata={"help": "Crop training clips to so many seconds."}
    )
    scenes: Scenes | None = field(
        default=None, metadata={"help": "Arguments of SceneMixer for training; none if null."}
    )
    validation_scenes: Scenes | None = field(
        default=None, metadata={"help": "Arguments of SceneMixer for validation; the clips themselves if null."}
    )
    test_scenes: Scenes | None = field(default=None, metadata={"help": "The same for the test."})
    waveform_augment: fields_of(WaveformAugment) | None = field(
        default=None, metadata={"help": "Arguments of WaveformAugment."}
    )
    spectrogram_augment: fields_of(SpectrogramAugment) | None = field(
        default=None, metadata={"help": "Arguments of SpectrogramAugment."}
    )
    input_statistics_batches: PositiveInt = field(
        default=16, metadata={"help": "Training batches to set the input normalisation of a random encoder from."}
    )
