"""Sound files to samples. soundfile reads WAV, FLAC, Ogg and MP3 without FFmpeg; torchcodec reads the rest if installed.

Libraries read a file that was cut short as if it were whole, so files are compared with what their headers state.
"""

import io
import urllib.request
from pathlib import Path
from typing import BinaryIO

import numpy as np


# Files that consist of chunks, each with its size in front: the byte order of a size, and the name of the chunk that
# holds the samples.
CHUNKED = {b"RIFF": ("little", b"data"), b"RF64": ("little", b"data"), b"FORM": ("big", b"SSND")}
# A program that writes to a pipe cannot go back to fill in the size of the samples. It leaves 0 there, or a number that
# is about the largest possible: 0xFFFFFFFF (FFmpeg), 0x7FFFF000 (SoX), 0x7FFFFFxx (arecord). Sizes from here on mean
# "unknown".
LARGEST = 2**31 - 2**16
# Some programs count their own header as samples. So few missing bytes are no sign of a cut.
HEADER_BYTES = 64
# An Ogg page has at most 65,307 bytes, so the last whole page of a file begins within two of that length from its end.
TWO_PAGES = 2 * 65_307
# The delay of an MP3 encoder, in samples, which a decoder may leave out.
MP3_DELAY = 2 * 1152


class CutShortError(ValueError):
    """A sound file ends before the length that its own header states."""


def decode(source: str | Path | bytes | bytearray | memoryview, name: str) -> tuple[np.ndarray, int]:
    """Decodes a sound file by its path, its bytes or its http(s) address, with the errors of `load_waveform`.

    Returns samples `(samples, channels)`, int16 where the file holds them and else float32 in [-1, 1], and their rate in
    Hz.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(source, timeout=60) as response:
                source = response.read()
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{name}: cannot be downloaded ({error}). Check the address or pass a local file."
            ) from error
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.is_file():
            kind = "is a directory, not a sound file" if path.is_dir() else "does not exist"
            raise FileNotFoundError(f"{name}: the path {kind}. Check it; the current folder is {Path.cwd()}.")
        source = str(path)
        size = path.stat().st_size
    else:
        source = bytes(source)
        size = len(source)
    if size == 0:
        raise ValueError(f"{name}: the file is empty (0 bytes). Drop this clip.")
    source = check_not_truncated(source, name)
    reasons = []
    for read in (_read_with_soundfile, _read_with_torchcodec):
        try:
            return read(source, name)
        except CutShortError:
            raise
        except (ImportError, RuntimeError, TypeError, ValueError) as error:  # TypeError: a .raw file without header
            reasons.append((str(error).strip() or type(error).__name__).splitlines()[0].rstrip("."))
    raise ValueError(
        f"{name}: cannot be decoded ({'; '.join(reasons)}). soundfile reads WAV, FLAC, Ogg and MP3. For another "
        "format (m4a, webm) install torchcodec and FFmpeg, or convert it to WAV. If it is no sound file, drop it."
    )


def check_not_truncated(source: str | bytes, name: str) -> str | bytes:
    """Refuses a WAV, AIFF or Ogg file that was cut short, and mends the header of a WAV file that came from a pipe.

    Only the headers are read, and the end of an Ogg file. Other formats are checked while they are decoded. A WAV file
    whose header left the size of the samples at 0 is returned as its content with the largest size instead, from which
    decoders read on to the end; of other files the source is returned as it is.
    """
    with open(source, "rb") if isinstance(source, str) else io.BytesIO(source) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        magic = file.read(12)[:4]
        if magic == b"OggS" and not _ogg_is_closed(file, size):
            raise _cut_short(name, f"its {size} bytes end without the page that closes an Ogg stream")
        if magic not in CHUNKED:
            return source
        order, samples = CHUNKED[magic]
        # A chunk is a name of 4 bytes, a size of 4 bytes, and the content, filled up to an even length. Walk from chunk
        # to chunk up to the one with the samples, without reading what lies between.
        unknown, wide = LARGEST, None
        while len(header := file.read(8)) == 8:
            stated, start = int.from_bytes(header[4:], order), file.tell()
            if header[:4] == b"ds64":  # RF64 states the size of the samples here, in 64 bits
                unknown, wide = 2**63, int.from_bytes(file.read(16)[8:], order)
            elif header[:4] == samples:
                break
            file.seek(start + stated + stated % 2)
        else:
            return source  # a file without samples, which the decoder refuses
        held = size - start
        stated = stated if wide is None else wide
        if held + HEADER_BYTES < stated < unknown:
            raise _cut_short(name, f"its header says {stated} bytes of samples, and {held} are there")
        if stated == 0 and held and magic == b"RIFF":
            file.seek(0)
            content = file.read()
            # If the size of the whole file was not left open too, the file is meant to have no samples.
            whole = int.from_bytes(content[4:8], "little")
            if whole == 0 or whole >= LARGEST:
                return content[: start - 4] + b"\xff" * 4 + content[start:]
    return source


def _ogg_is_closed(file: BinaryIO, size: int) -> bool:
    """Tells whether the last whole page of an Ogg file carries the flag that ends a stream.

    The search for the mark of a page goes backwards from the end. A page header has 27 bytes: the flags in byte 5, and
    in byte 26 the number of segments, whose lengths follow. A page that its file cuts off, or the mark of a page by chance
    among the samples at the very end, does not fit into the rest of the file, and the search goes on.
    """
    file.seek(max(size - TWO_PAGES, 0))
    tail = file.read()
    place = len(tail)
    while (place := tail.rfind(b"OggS", 0, place)) >= 0:
        page = tail[place : place + 27]
        segments = tail[place + 27 : place + 27 + page[26]] if len(page) == 27 else b""
        if segments and place + 27 + len(segments) + sum(segments) <= len(tail):
            return bool(page[5] & 4)
    return False


def _cut_short(name: str, what: str) -> CutShortError:
    return CutShortError(f"{name}: the file was cut short: {what}. Get it again, or drop this clip.")


def _read_with_soundfile(source: str | bytes, name: str) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: no libsndfile
        raise ImportError("soundfile is not installed; pip install soundfile") from error
    with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
        # 16-bit samples are read as they are. libsndfile takes three times as long as NumPy to make them floats, with the
        # same result.
        dtype = "int16" if file.subtype == "PCM_16" else "float32"
        rate, stated = file.samplerate, file.frames
        try:
            samples = file.read(dtype=dtype, always_2d=True)
            held = len(samples)
        except soundfile.SoundFileError:
            held = file.tell()
            if held >= stated:
                raise
        mpeg = file.subtype.startswith("MPEG")
        # The headers of FLAC and MP3 tell the length. The containers of other formats have been checked before.
        if (mpeg or file.format == "FLAC") and held + mpeg * MP3_DELAY < stated:
            raise _cut_short(name, f"its header says {stated / rate:.3f} s, and {held / rate:.3f} s can be decoded")
        return samples, rate


def _read_with_torchcodec(source: str | bytes, name: str) -> tuple[np.ndarray, int]:
    try:
        from torchcodec.decoders import AudioDecoder
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: no FFmpeg, or another torch
        raise ImportError("torchcodec is not installed or finds no FFmpeg") from error
    decoded = AudioDecoder(source).get_all_samples()
    return decoded.data.T.numpy(), decoded.sample_rate
