"""Sound files to samples: soundfile reads WAV, FLAC, Ogg and MP3 without FFmpeg, torchcodec the rest if installed."""

import io
import urllib.request
from pathlib import Path
from typing import BinaryIO

import numpy as np


# Containers of chunks: the order of the bytes in a size, and the chunk of the samples.
CHUNKED = {b"RIFF": ("little", b"data"), b"RF64": ("little", b"data"), b"FORM": ("big", b"SSND")}
# What writes to a pipe cannot go back to fill the size of the samples in: it leaves 0, or about the largest there is
# (0xFFFFFFFF of FFmpeg, 0x7FFFF000 of SoX, 0x7FFFFFxx of arecord).
LARGEST = 2**31 - 2**16
# Some writers count their own header as samples; so few bytes are no loss.
HEADER_BYTES = 64
# An Ogg page has at most 65,307 bytes: in so many the last whole one begins.
TWO_PAGES = 2 * 65_307
# Samples of MP3 that the decoder may leave out as the delay of the encoder.
MP3_DELAY = 2 * 1152


class CutShortError(ValueError):
    """A sound file that ends before its own header says."""


def decode(source: str | Path | bytes | bytearray | memoryview, name: str) -> tuple[np.ndarray, int]:
    """Decodes a sound file, the bytes of one, or an http(s) address.

    Args:
        source: Path, address, or the content of a file.
        name: What error messages call this clip.

    Returns:
        Samples of shape (samples, channels), int16 where the file holds them and else float32 in [-1, 1], and their
        rate in Hz.

    Raises:
        FileNotFoundError: The path is no file.
        CutShortError: The file ends early.
        ValueError: Empty, not a sound file, or a format that needs torchcodec where that is missing.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        source = _download(source, name)
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
    source = check_whole(source, name)
    reasons = []
    for read in (_read_with_soundfile, _read_with_torchcodec):
        try:
            return read(source, name)
        except CutShortError:
            raise
        except (ImportError, RuntimeError, TypeError, ValueError) as error:  # TypeError: a headerless .raw
            reasons.append((str(error).strip() or type(error).__name__).splitlines()[0].rstrip("."))
    raise ValueError(
        f"{name}: cannot be decoded ({'; '.join(reasons)}). soundfile reads WAV, FLAC, Ogg and MP3. For another "
        "format (m4a, webm) install torchcodec and FFmpeg, or convert it to WAV. If it is no sound file, drop it."
    )


def check_whole(source: str | bytes, name: str) -> str | bytes:
    """Refuses a WAV, AIFF or Ogg file that was cut short, which libsndfile reads as if it were whole.

    Only the headers are read, and the end of an Ogg file.

    Args:
        source: Path, or the content of a file.
        name: What the error message calls this clip.

    Returns:
        The source; where the header of a stream gives the samples no bytes, the content with a size that decoders take.

    Raises:
        CutShortError: The file ends early; the message tells both lengths.
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
        largest, wide = LARGEST, None  # RF64 has the size elsewhere, in 64 bits
        while len(header := file.read(8)) == 8:
            stated, start = int.from_bytes(header[4:], order), file.tell()
            if header[:4] == b"ds64":
                largest, wide = 2**63, int.from_bytes(file.read(16)[8:], order)
            elif header[:4] == samples:
                break
            file.seek(start + stated + stated % 2)
        else:
            return source  # no samples: for the decoder to say
        held = size - start
        stated = stated if wide is None else wide
        if held + HEADER_BYTES < stated < largest:
            raise _cut_short(name, f"its header says {stated} bytes of samples, and {held} are there")
        if stated == 0 and held and magic == b"RIFF" and _is_placeholder(file):
            file.seek(0)
            content = file.read()
            return content[: start - 4] + b"\xff" * 4 + content[start:]
    return source


def _is_placeholder(file: BinaryIO) -> bool:
    """Whether the size of the whole RIFF file was left open too: else a chunk of no samples is what was meant."""
    file.seek(4)
    whole = int.from_bytes(file.read(4), "little")
    return whole == 0 or whole >= LARGEST


def _ogg_is_closed(file: BinaryIO, size: int) -> bool:
    """Whether the last whole page has the flag of the end of a stream."""
    file.seek(max(size - TWO_PAGES, 0))
    tail = file.read()
    place = len(tail)
    while (place := tail.rfind(b"OggS", 0, place)) >= 0:
        page = tail[place : place + 27]  # its header, which ends with the number of segments
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
        # as stored: the conversion by libsndfile takes three times as long as one by NumPy, with the same result
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
        # of FLAC and MP3, whose header tells the length; others are known by their container
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


def _download(address: str, name: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            return response.read()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: cannot be downloaded ({error}). Check the address or pass a local file.") from error
