"""Sound files to samples: soundfile reads WAV, FLAC, Ogg and MP3 without FFmpeg, torchcodec the rest if installed."""

import io
import urllib.request
from pathlib import Path

import numpy as np


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
    reasons = []
    for read in (_read_with_soundfile, _read_with_torchcodec):
        try:
            return read(source)
        except (ImportError, RuntimeError, TypeError, ValueError) as error:  # TypeError: a headerless .raw
            reasons.append((str(error).strip() or type(error).__name__).splitlines()[0].rstrip("."))
    raise ValueError(
        f"{name}: cannot be decoded ({'; '.join(reasons)}). soundfile reads WAV, FLAC, Ogg and MP3. For another "
        "format (m4a, webm) install torchcodec and FFmpeg, or convert it to WAV. If it is no sound file, drop it."
    )


def _read_with_soundfile(source: str | bytes) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: no libsndfile
        raise ImportError("soundfile is not installed; pip install soundfile") from error
    with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
        # as stored: the conversion by libsndfile takes three times as long as one by NumPy, with the same result
        dtype = "int16" if file.subtype == "PCM_16" else "float32"
        return file.read(dtype=dtype, always_2d=True), file.samplerate


def _read_with_torchcodec(source: str | bytes) -> tuple[np.ndarray, int]:
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
