"""From a sound file to the model's input: decode, resample, log-mel, against the paths of LAION-CLAP and transformers.

All paths read the same 44.1 kHz files in the same run and take turns; the medians over the turns are compared. Each
runs in one process with one thread, as in one worker of a data loader: workers multiply all paths alike. Ours is what
training calls (`CaptionedClips` and the feature extractor, all checks on) at 16 kHz. The others, at their 48 kHz:

* LAION-CLAP: the steps by which it goes from a file to the input of its fusion model (`get_audio_embedding_from_filelist`
  and `get_audio_features`), written anew: load as librosa does (soundfile as float32, mean of the channels, soxr),
  through 16-bit integers, log-mel by a torchaudio transform that is made for each clip, four of them stacked.
* LAION-CLAP, lean: the same without what is not needed for the features: the transform is made once, a long clip is cut
  before its mel, nothing is stacked. At 16 kHz as well, for what of the ratio is the rate.
* transformers: `load_audio`, then `ClapFeatureExtractor`.

With `--seconds 60`, files are longer than what a step uses of them, as in FreeSound's part of WavCaps: the others
decode all of a file before they cut it, ours decodes the crop.

Memory: the peak of the process after one pass of ours over the files, and after passes over a corpus `--growth` times
as large. Exit status 1 if we are not `--min-ratio` times as fast as LAION-CLAP and transformers, by time of the processor:
where other programs use the cores, it says more than the clips per second.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import soxr
import torch
import torchaudio
from transformers import ClapFeatureExtractor
from transformers.audio_utils import load_audio

from processing_supclap import SupClapFeatureExtractor
from supclap.data import CaptionedClips


SECONDS = 10


def write_files(folder: Path, count: int, suffix: str, seconds: int = SECONDS) -> list[str]:
    """Stereo files of tones in noise that changes in level, at 44.1 kHz."""
    rng = np.random.default_rng(0)
    time_axis = np.arange(seconds * 44100) / 44100
    paths = []
    for index in range(count):
        tone = np.sin(2 * np.pi * rng.uniform(100, 8000) * time_axis) * np.sin(2 * np.pi * 0.5 * time_axis)
        noise = rng.standard_normal((len(time_axis), 2)) * rng.uniform(0.001, 0.1)
        paths.append(str(folder / f"{index}.{suffix}"))
        soundfile.write(paths[-1], np.clip(0.3 * tone[:, None] + noise, -1, 1), 44100)
    return paths


def rows_of(paths: list[str], times: int = 1) -> list[dict]:
    return [
        {"id": f"{turn}/{path}", "audio": path, "captions": ["a sound"]} for turn in range(times) for path in paths
    ]


def our_path() -> Callable[[list[str]], object]:
    extractor = SupClapFeatureExtractor()

    def run(paths: list[str]):
        clips = CaptionedClips(rows_of(paths), max_duration=SECONDS)
        waves = [clips[index]["audio"] for index in range(len(clips))]
        return extractor(waves, sampling_rate=extractor.sampling_rate)

    return run


def laion_mel(rate: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torchaudio.transforms.MelSpectrogram(
            sample_rate=rate,
            n_fft=1024,
            win_length=1024,
            hop_length=rate // 100,
            f_min=50,
            f_max=min(14000, rate // 2),
            n_mels=64,
        ),
        torchaudio.transforms.AmplitudeToDB(top_db=None),
    )


def laion_wave(path: str, rate: int) -> np.ndarray:
    wave, own = soundfile.read(path, dtype="float32")
    wave = wave.mean(axis=1) if wave.ndim == 2 else wave
    wave = soxr.resample(wave, own, rate)
    integers = (np.clip(wave, -1, 1) * 32767).astype(np.int16)
    return (integers / 32767).astype(np.float32)


def laion_path() -> Callable[[list[str]], object]:
    rate, frames = 48000, SECONDS * 100 + 1
    rng = np.random.default_rng(0)

    def one(path: str) -> torch.Tensor:
        wave = laion_wave(path, rate)
        if len(wave) < SECONDS * rate:
            repeats = SECONDS * rate // len(wave)
            wave = np.pad(np.tile(wave, repeats), (0, SECONDS * rate - repeats * len(wave)))
        mel = laion_mel(rate)(torch.from_numpy(wave)).T
        if len(mel) == frames:
            return torch.stack([mel] * 4)
        starts = [rng.choice(part) for part in np.array_split(np.arange(len(mel) - frames + 1), 3)]
        shrunk = torch.nn.functional.interpolate(mel[None, None], (frames, 64), mode="bilinear", antialias=True)[0, 0]
        return torch.stack([shrunk, *(mel[start : start + frames] for start in starts)])

    return lambda paths: torch.stack([one(path) for path in paths])


def lean_laion_path(rate: int) -> Callable[[list[str]], object]:
    mel = laion_mel(rate)

    def one(path: str) -> torch.Tensor:
        wave = np.resize(laion_wave(path, rate), SECONDS * rate)
        return mel(torch.from_numpy(wave)).T

    return lambda paths: torch.stack([one(path) for path in paths])


def transformers_path() -> Callable[[list[str]], object]:
    extractor = ClapFeatureExtractor()
    rate = extractor.sampling_rate

    def run(paths: list[str]):
        # cut by us, to the same 10 s: the extractor would cut at random
        waves = [load_audio(path, sampling_rate=rate, **LOAD_OPTIONS)[: SECONDS * rate] for path in paths]
        return extractor(waves, sampling_rate=rate, return_tensors="pt")

    return run


def load_options(path: str) -> dict:
    """The first way of `load_audio` that works here; each resamples by soxr or FFmpeg."""
    errors = []
    for options in ({}, {"backend": "librosa"}, {"backend": "soundfile"}):
        try:
            load_audio(path, sampling_rate=48000, **options)
            return options
        except (ImportError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            errors.append(str(error).splitlines()[0])
    sys.exit(f"transformers cannot load audio here: {'; '.join(errors)}")


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=16, help="number of files")
    parser.add_argument("--seconds", type=int, default=10, help="length of a file; all paths use 10 s of it")
    parser.add_argument("--format", default="wav", help="ending of the files: wav, flac, ogg")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each path")
    parser.add_argument("--growth", type=int, default=8, help="how much larger the second corpus is, for memory")
    parser.add_argument(
        "--min-ratio", type=float, help="fail if we are not this many times as fast as each of the two"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder), args.files, args.format, args.seconds)
        LOAD_OPTIONS.update(load_options(paths[0]))

        ours = our_path()
        ours(paths)
        before = peak_memory()
        for _ in range(args.growth):
            ours(paths)
        growth = peak_memory() - before

        runs = {
            "supclap (16 kHz)": ours,
            "LAION-CLAP (48 kHz)": laion_path(),
            "transformers CLAP (48 kHz)": transformers_path(),
            "LAION-CLAP, lean (48 kHz)": lean_laion_path(48000),
            "LAION-CLAP, lean, at 16 kHz": lean_laion_path(16000),
        }
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(args.repeats + 1):
            for name, run in runs.items():
                start, cpu = time.perf_counter(), time.process_time()
                run(paths)
                if turn:  # the first turn warms up
                    speeds[name].append(len(paths) / (time.perf_counter() - start))
                    times[name].append(1000 * (time.process_time() - cpu) / len(paths))

    first = statistics.median(speeds["supclap (16 kHz)"])
    own_time, laion, transformers, *_ = (statistics.median(values) for values in times.values())
    print(
        f"{len(paths)} {args.format} files of {args.seconds} s at 44.1 kHz in stereo, {args.repeats} turns, one thread"
    )
    for name, values in speeds.items():
        middle, cpu = statistics.median(values), statistics.median(times[name])
        ratio = f"ours is {first / middle:.2f} times as fast, {cpu / own_time:.2f} times by time of the processor"
        print(
            f"{name:>28}: {middle:6.1f} clips/s (min {min(values):.1f}, max {max(values):.1f}), {cpu:5.1f} ms of the "
            f"processor a clip" + ("" if name.startswith("supclap") else f"; {ratio}")
        )
    print(
        f"peak memory grew by {growth:.1f} MiB over a corpus {args.growth} times as large (before: {before:.0f} MiB)"
    )
    if args.min_ratio is not None and min(laion, transformers) / own_time < args.min_ratio:
        print(f"below the required {args.min_ratio:g}")
        return 1
    return 0


LOAD_OPTIONS: dict = {}


if __name__ == "__main__":
    raise SystemExit(main())
