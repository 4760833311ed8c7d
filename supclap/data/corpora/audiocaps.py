"""AudioCaps, versions 1 and 2, its translations, and the forms of it that WavCaps and ML-CLAP publish.

Official: `train.csv`, `val.csv`, `test.csv` with one row a caption, the rows of a clip not next to each other. A
translation is a file of the same columns in a folder named by its language: `ja/test.csv`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from supclap.errors import DataError

from ..audio_index import AudioIndex
from ..columns import one_or_more
from ..rows import join_captions
from ..text_files import annotation_file
from .common import Source, csv_rows, json_rows, numbered, whole_number, youtube_id, youtube_names


SPLITS = {"train": "train", "validation": "val", "test": "test"}
ALIASES = {"val": "validation"}
LICENCE = "captions MIT; audio under the terms of its YouTube video"


def load(source: Source, version: int | None = None, languages: str | Sequence[str] = ("en",)) -> Iterator[dict]:
    """Rows of a split.

    Args:
        source: The split; its annotations are CSV or JSON.
        version: 1 or 2, where both lie in the folder.
        languages: Languages of the captions. `en` is the split's own file, another one lies in its folder.
    """
    folder, name, index = source.folder, SPLITS[source.split], source.audio()
    places = {None: ("", "dataset/", "csv_files/", "v1/"), 1: ("v1/", "dataset/", ""), 2: ("v2/", "dataset2.0/", "")}
    if version not in places:
        raise DataError(f"AudioCaps has the versions 1 and 2, not {version!r}.")
    if version is None and (folder / "dataset2.0").is_dir() and (folder / "dataset").is_dir():
        raise DataError(f"{str(folder)!r} holds both versions of AudioCaps: choose one with `version`.")
    files = [f"{place}{name}.csv" for place in places[version]]
    files += [f"{name}.json", f"retrieval_json_files/{name}.json", f"AudioCaps_{name}.json"]
    languages = one_or_more(languages)
    found = []
    for language in languages:
        # a chosen file holds the first language; each other one lies in its folder
        chosen = source.annotations if language == languages[0] else None
        names = [f"{language}/{name}.csv", *(files if language == "en" and not source.annotations else [])]
        path = annotation_file(folder, chosen, names, f"{language} captions of AudioCaps {source.split}")
        found.append(_rows(path, index, language))
    yield from join_captions(chain.from_iterable(found))


def _rows(path: Path, index: AudioIndex, language: str) -> Iterator[dict]:
    """One row a line or record; the caller joins those of one clip, wherever they stand."""
    if path.suffix == ".json":
        for row in json_rows(path, index, "audiocaps", lambda _: None, language, LICENCE):
            yield _named(row, _video_of_file(row["file"], str(path)))
        return
    head = path.read_bytes()[:200].replace(b"\0", b"")
    if b"file_name" in head:
        for where, record in csv_rows(path, {"file_name": ()}):
            captions = [value for _, value in numbered(record)] or [record.get("caption", "")]
            file = record["file_name"]
            row = {"file": file, "audio": index.find(file), "captions": captions, "language": language}
            yield _named(row, _video_of_file(file, where))
        return
    columns = {"youtube_id": ("ytid",), "start_time": ("start",), "caption": ()}
    for where, record in csv_rows(path, columns):
        video = youtube_id(record["youtube_id"], where)
        start = whole_number(record["start_time"], where)
        names = youtube_names(video, start)
        if record.get("audiocap_id"):
            names.append(record["audiocap_id"].strip().removesuffix(".0"))
        row = {"file": f"{video}.wav", "audio": index.find(*names), "captions": [record["caption"]]}
        yield _named(row | {"language": language}, video)


def _video_of_file(file: str, where: str) -> str:
    stem = Path(file).stem
    return youtube_id(stem[1:] if len(stem) == 12 and stem.startswith("Y") else stem, where)


def _named(row: dict, video: str) -> dict:
    own = {"id": f"audiocaps/{video}", "recording": f"youtube:{video}", "source": f"youtube:{video}"}
    return row | own | {"licence": LICENCE}
