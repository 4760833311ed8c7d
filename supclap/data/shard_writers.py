"""What `supclap data prepare` writes: the codecs of the audio, and the files that the clips lie in."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .corpora.webdataset import KEPT
from .rows import caption_languages


# Arguments of soundfile. The level sets the bit rate of Opus between 6 and 256 kbit/s, here to 64: what Opus chooses by
# itself for 16 kHz, 13 to 25 kbit/s, changes mel spectrograms of ESC-10 by 2 dB in the mean, and this one by 0.4.
CODECS = {
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    "opus": {"format": "OGG", "subtype": "OPUS", "compression_level": 1 - (64 - 6) / (256 - 6)},
}
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
ROW_GROUP = 100  # clips of a Parquet file that are held in memory and read together


def encode(waveform: np.ndarray, sampling_rate: int, codec: str) -> bytes:
    """A waveform in [-1, 1] as a file of one of the `CODECS`."""
    import soundfile

    # soundfile reads by the same scale, so that 16-bit audio at this rate stays what it is to the last bit
    samples = np.clip(np.round(32768 * waveform), -32768, 32767).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sampling_rate, **CODECS[codec])
    return buffer.getvalue()


class TarWriter:
    """A WebDataset shard: `key.flac` or `key.opus` and `key.json` side by side."""

    def __init__(self, path: Path, sampling_rate: int):
        self._tar = tarfile.TarFile(path, "w", format=tarfile.PAX_FORMAT)

    def close(self) -> None:
        self._tar.close()

    def add(self, file_name: str, audio: bytes, row: dict) -> None:
        details = json.dumps(row, ensure_ascii=False).encode()
        for name, data in ((file_name, audio), (f"{Path(file_name).stem}.json", details)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))


class ParquetWriter:
    """A Parquet shard as `datasets` writes it: a column `audio` of kind `Audio`, and what a row says, as text.

    The language is one a caption, null where it is not known.
    """

    def __init__(self, path: Path, sampling_rate: int):
        import pyarrow.parquet
        from datasets import Audio, Features, List, Value

        text = Value("string")
        columns = {"id": text, "audio": Audio(sampling_rate=sampling_rate), "captions": List(text)}
        columns |= {"language": List(text)} | dict.fromkeys(KEPT, text)
        columns |= {"labels": List(text), "duration": Value("float64")}
        self._schema = Features(columns).arrow_schema
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema)
        self._waiting: list[dict] = []

    def close(self) -> None:
        self._flush()
        self._file.close()

    def add(self, file_name: str, audio: bytes, row: dict) -> None:
        record = {name: _as_text(value) for name, value in row.items()} | {"duration": row["duration"]}
        record |= {"audio": {"bytes": audio, "path": file_name}, "language": caption_languages(row)}
        self._waiting.append(record)
        if len(self._waiting) == ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if self._waiting:
            self._file.write_table(pyarrow.Table.from_pylist(self._waiting, schema=self._schema))
            self._waiting = []


def _as_text(value: object) -> str | list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else str(value)


# By the name of the form: the writer, and the file of a shard of `total`. The names of Parquet files are those of
# `datasets`, by which `load_dataset` knows the splits, whatever lies beside them.
FORMS: dict[str, tuple[Callable[[Path, int], TarWriter | ParquetWriter], Callable[[str, int, int], str]]] = {
    "webdataset": (TarWriter, lambda split, number, total: f"{split}-{number:06d}.tar"),
    "parquet": (ParquetWriter, lambda split, number, total: f"data/{split}-{number:05d}-of-{total:05d}.parquet"),
}
