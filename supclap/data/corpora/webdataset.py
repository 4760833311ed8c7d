"""WebDataset shards: tar files in which `key.flac` and `key.json` (or `key.txt`) are one clip.

The shards are indexed once and clips are read by their place in them, so that access is random and nothing is copied.
JSON in the forms of `supclap data prepare` (a row), ML-CLAP (`{"captions": {language: [...]}}`) and LAION
(`{"text": ...}`) is understood.
"""

import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supclap.errors import DataError, name_some

from ..audio_index import AUDIO_SUFFIXES
from ..rows import LazyRows, clean_captions
from ..text_files import read_json


if TYPE_CHECKING:
    from datasets import IterableDataset

SPLITS: dict[str, str] = {}  # any
# What the reports of `supclap data prepare` have as their `format`.
REPORT = "supclap-shards"
# What the JSON of a clip may say beside its id and captions; these keys of it are keys of the row.
KEPT = ("label", "labels", "group", "recording", "source", "licence", "author", "duration", "fold")


class ShardRows(LazyRows):
    """Rows of shards in the row format; the bytes of a clip are read when its row is asked for.

    `places` has `(row without audio, shard, offset in bytes, size in bytes)` of each clip.
    """

    def __getitem__(self, index: int) -> dict:
        row, shard, offset, size = self.places[index]
        with open(shard, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) != size:
            raise DataError(f"{shard} has become shorter since it was indexed. Get it again.")
        return row | {"audio": data}

    def without_audio(self, index: int) -> dict:
        return self.places[index][0]

    def audio_place(self, index: int) -> tuple[tuple[str, ...], tuple[int, int]]:
        _, shard, offset, size = self.places[index]
        return (shard,), (offset, size)


def load(folder: Path, split: str, language: str | None = None, licence: str | None = None) -> ShardRows:
    """Rows of the shards of a split.

    Args:
        folder: The folder of the shards.
        split: The shards `SPLIT-*.tar`, else those in the folder of that name; `train` is all of them where there is
            neither.
        language: Language of captions that do not say theirs; it stays unknown when omitted.
        licence: Licence of clips that do not say theirs.

    Raises:
        DataError: No shards, two clips of one id in a shard, or a shard that ends early or differs from the report of
            `supclap data prepare`.
    """
    shards = find_shards(folder, split)
    clips: list[tuple[dict, str, int, int]] = []
    seen: dict[str, str] = {}
    for shard in shards:
        for row, offset, size in _clips_of_shard(shard, language, licence):
            # keys are unique in their shard only
            if seen.setdefault(row["id"], shard.name) != shard.name:
                row["id"] = f"{shard.stem}/{row['id']}"
            clips.append((row, str(shard), offset, size))
    if not clips:
        raise DataError(f"The shards of {split} in {str(folder)!r} hold no audio.")
    return ShardRows(clips)


def stream(folder: Path, split: str, language: str | None = None, licence: str | None = None) -> "IterableDataset":
    """A stream of the rows of a split with their audio, shard by shard; arguments and errors are those of [`load`]."""
    from datasets import IterableDataset

    # a list among the arguments is what `datasets` shuffles, and divides among ranks and workers
    shards = [str(shard) for shard in find_shards(folder, split)]
    options = {"shards": shards, "language": language, "licence": licence}
    return IterableDataset.from_generator(_rows_of_shards, gen_kwargs=options)


def _rows_of_shards(shards: list[str], language: str | None, licence: str | None) -> Iterator[dict]:
    for shard in map(Path, shards):
        with shard.open("rb") as file:
            for row, offset, size in _clips_of_shard(shard, language, licence):
                file.seek(offset)
                # The shard stands before each id, as another one, which is not open now, may have a clip of that key too.
                yield row | {"id": f"{shard.stem}/{row['id']}", "audio": file.read(size)}


def find_shards(folder: Path, split: str) -> list[Path]:
    """The shards of a split, as [`load`] takes them, compared with the report that was written with them.

    Raises:
        DataError: There are none, or some are missing or incomplete.
    """
    shards = shards_of(folder, split)
    if not shards and split == "train":
        shards = sorted(folder.glob("*.tar"))
    if not shards:
        packed = sorted(folder.glob("*.tar.*"))
        hint = f"; unpack {packed[0].name} first, compressed shards allow no random access" if packed else ""
        raise DataError(f"No shards {split}-*.tar in {str(folder)!r}{hint}.")
    check_report(folder / f"{split}.json", shards)
    return shards


def shards_of(folder: Path, split: str) -> list[Path]:
    """The shards of a split: those that begin with its name, else those in its folder."""
    return sorted(folder.glob(f"{split}-*.tar")) or sorted((folder / split).glob("*.tar"))


def check_report(path: Path, shards: Sequence[Path]) -> None:
    """Compares shards with the report that `supclap data prepare` wrote with them, if there is one."""
    if not path.is_file():
        return
    report = read_json(path)
    if not isinstance(report, dict) or report.get("format") != REPORT:
        return
    expected = {shard["name"]: shard["bytes"] for shard in report["shards"]}
    found = {shard.name: shard.stat().st_size for shard in shards}
    wrong = [
        f"{name} ({found.get(name, 0)} of {size} bytes)" for name, size in expected.items() if found.get(name) != size
    ]
    if wrong:
        raise DataError(
            f"{path}: shards are missing or incomplete: {name_some(wrong)}. Run `supclap data prepare` again."
        )


def _clips_of_shard(shard: Path, language: str | None, licence: str | None) -> Iterator[tuple[dict, int, int]]:
    """The row of each clip of a shard, and the offset and size of its audio in bytes.

    One walk over the headers of the tar file notes where each audio member lies and reads the small members, JSON and
    text, at once. A clip is what has one key: the path of its members up to the first dot of the file's name. Its
    members need not stand side by side, so rows are made only when all headers are known.
    """
    members: dict[str, dict] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, _, suffix = file.partition(".")
                found = members.setdefault(f"{folder}/{stem}" if folder else stem, {})
                suffix = "." + suffix.lower()
                if suffix in AUDIO_SUFFIXES:
                    found["audio"] = (member.offset_data, member.size)
                elif suffix == ".json":
                    found["json"] = json.loads(tar.extractfile(member).read())
                elif suffix == ".txt":
                    found["text"] = tar.extractfile(member).read().decode()
            # tarfile takes a file that was cut between two members, or inside the last, for a whole one; but its offset
            # is then where the next header would stand
            if tar.offset > shard.stat().st_size:
                raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{shard}: {error}. It is no tar file or ends early; get it again.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{shard}: a member is broken ({error}).") from None
    keys: dict[str, str] = {}
    for key, found in members.items():
        if "audio" in found:
            row = _row(key, found, language, licence)
            if first := keys.get(row["id"]):
                raise DataError(
                    f"{shard}: the clips {first} and {key} have the same id {row['id']!r}. Give one another."
                )
            keys[row["id"]] = key
            yield row, *found["audio"]


def _row(key: str, members: dict, language: str | None, licence: str | None) -> dict:
    """The row of a clip but for its audio, from its JSON in any of the known forms, or its text."""
    details = members.get("json")
    details = dict(details) if isinstance(details, dict) else {}
    captions = next((details[name] for name in ("captions", "caption", "text") if details.get(name)), None)
    captions = captions or members.get("text")
    languages = details.get("language") or language
    if isinstance(captions, dict):  # the form of ML-CLAP: captions by language
        pairs = [(code, text) for code, texts in captions.items() for text in _as_list(texts)]
        languages, captions = [code for code, _ in pairs], [text for _, text in pairs]
    own_id = details.get("id")
    row = {"id": key if own_id is None else str(own_id), "captions": clean_captions(_as_list(captions))}
    row |= {"language": languages} if languages else {}
    row |= {"licence": licence} if licence else {}
    return row | {name: details[name] for name in KEPT if details.get(name) is not None}


def _as_list(captions: Any) -> list:
    """Captions as a list: one may stand by itself, and `null` is none. What is no text is refused later, by its row."""
    if captions is None:
        return []
    return captions if isinstance(captions, list) else [captions]
