"""Your own folder, in the layout of `datasets`' audiofolder: files beside `metadata.csv`, or one folder a class.

`train/metadata.csv` and `test/metadata.csv` are splits; so are `train/dog/1.wav` and `test/dog/1.wav`, whose classes
are their folders. Names of files never decide a split, as they do in `datasets`.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..files import AUDIO_SUFFIXES, DataError
from ..tables import read_table, table_rows
from .common import LABEL_TEMPLATE, label_caption


SPLITS: dict[str, str] = {}  # any
ALIASES: dict[str, str] = {}
FOLDERS = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
METADATA = tuple(f"metadata{suffix}" for suffix in (".csv", ".jsonl", ".parquet"))


def load(
    folder: Path,
    split: str,
    audio_column: str = "file_name",
    caption_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    template: str = LABEL_TEMPLATE,
    language: str | None = None,
    licence: str | None = None,
) -> Iterator[dict]:
    """Rows of a split.

    Args:
        folder: The folder.
        split: The name of a folder in it; `train` is the whole folder where there is none of that name.
        audio_column: Column of the file, relative to the metadata.
        caption_columns: Columns of captions; each may hold a list. Those that go by a usual name when omitted.
        label_column: Column of the class, whose template caption stands in where there are no captions.
        template: Caption of a class.
        language: Language of the captions where the metadata has no column `language`.
        licence: Licence where the metadata has no column `licence`.
    """
    own = [folder / name for name in FOLDERS.get(split, (split,)) if (folder / name).is_dir()]
    if not own and split != "train":
        raise DataError(f"{str(folder)!r} has no folder {split!r}.")
    place = own[0] if own else folder
    given = {"language": language, "licence": licence}
    tables = [place / name for name in METADATA if (place / name).is_file()]
    if tables:
        yield from table_rows(
            read_table(tables[0]), tables[0], audio_column, caption_columns, label_column, template, defaults=given
        )
        return
    found = 0
    for root, folders, files in os.walk(place):
        folders.sort()
        for file in sorted(files):
            if Path(file).suffix.lower() not in AUDIO_SUFFIXES:
                continue
            found += 1
            path = Path(root) / file
            label = path.relative_to(place).parts[0]
            if path.parent == place:
                raise DataError(f"{path} has no class: put it into a folder of its class, or write {METADATA[0]}.")
            yield {
                "id": str(path.relative_to(folder)),
                "file": file,
                "audio": str(path),
                "captions": label_caption(template, [label]),
                "label": label,
                "group": label,
                "source": folder.name,
                **given,
            }
    if not found:
        raise DataError(f"{str(place)!r} holds neither {', '.join(METADATA)} nor folders of audio files.")
