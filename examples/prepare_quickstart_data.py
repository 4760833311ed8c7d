"""Build `examples/quickstart_data` from two Debian packages of freely licensed sounds.

The result is committed, so users of the examples never run this. To rebuild it:

    apt-get install sonic-pi-samples minetest-data
    python examples/prepare_quickstart_data.py --root /usr/share

It needs soundfile 0.13 or newer, which can set the quality of the encoder. Everything but the encoder is
deterministic: a second run leaves the CSV files byte-identical. A file whose new encoding decodes to the samples it
already holds is left alone, because an Ogg stream carries a random serial number; another libsndfile or libvorbis
version may still change the audio bytes.
"""

import argparse
import csv
import io
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml


SAMPLING_RATE = 16_000
MAX_SECONDS = 8.0
SEED = 0
# Two takes of one class that correlate more than this hold the same recording (see `same_recording`).
SAME_RECORDING = 0.85
SPLITS = ("train", "test")
COLUMNS = ("id", "file_name", "label", "take", "captions", "duration", "source", "author", "licence")
LICENCE_URLS = {
    "CC0 1.0": "https://creativecommons.org/publicdomain/zero/1.0/",
    "CC BY 3.0": "https://creativecommons.org/licenses/by/3.0/",
    "CC BY-SA 3.0": "https://creativecommons.org/licenses/by-sa/3.0/",
}

TABLE = yaml.safe_load(Path(__file__).with_name("quickstart_sounds.yaml").read_text(encoding="utf-8"))
CLASSES = {label: (entry["takes"], entry["captions"]) for label, entry in TABLE["classes"].items()}
MINETEST = TABLE["minetest"]
FOLDERS = {
    "cc0_sonic_pi": (
        "Sounds of Sonic Pi",
        "Samples shipped with Sonic Pi (Debian package sonic-pi-samples), placed in the public domain by their makers.",
    ),
    "minetest": (
        "Sounds of Minetest Game",
        "Sounds of Minetest Game (Debian package minetest-data). Each file stays under the licence of its original.",
    ),
}
CHANGES = (
    "Changes: every file was converted to 16 kHz mono Ogg Vorbis; digital silence at the ends was removed, recordings\n"
    "over 8 s were cut to their first 8 s, and those whose peak exceeded full scale were turned down."
)
README = """# Quickstart sounds

{files} real sounds ({minutes:.1f} minutes) in {classes} classes that a person can name by ear, with five captions a
class: enough to train an audio-text model from scratch in minutes, and small enough to live in the repository.

{sizes}

`train.csv` and `test.csv` load without decoding any audio:

```python
from datasets import load_dataset

folder = "examples/quickstart_data"
data = load_dataset("csv", data_files={{split: f"{{folder}}/{{split}}.csv" for split in ("train", "test")}})
```

| column | content |
| --- | --- |
| `id` | name of the sound, unique |
| `file_name` | 16 kHz mono Ogg Vorbis, relative to this folder |
| `label` | class |
| `take` | performance the file holds; files of one take are copies or cuts of it |
| `captions` | JSON list of the five captions of the class (also in `classes.json`) |
| `duration` | seconds |
| `source` | package, path in it, page of the recording where the package names one |
| `author` | attribution the licence asks for; empty under CC0 |
| `licence` | CC0 1.0, CC BY 3.0 or CC BY-SA 3.0 |

## Splits

A *take* is one performance of a sound: a step, a stroke, a blow. Takes of one sound by one maker, as the packages name them
(`default_snow_footstep.1` to `.5`, the hard and the soft stroke of a tom) form a series; of each series one take in four
tests, or one of two or three. A seeded shuffle decides which. Copies and files that correlate with one another are one
take, and a take never spans two splits; the script verifies by cross-correlation that different takes hold different
audio. Sounds without a series (most loops, doors, synthesizers) only train, so scores cover the classes with a test take.

What this measures is whether the model knows a sound again in a take it has not heard, and in mixtures it has not heard.
The takes of a series share a maker, and most an instrument and a room, so it says little about the sounds of the world at
large. Several minutes of audio are no benchmark.

## Classes (takes per split)

{table}

## Levels and bandwidth

Levels are those of the originals, so steps on grass (peak below 0.13), the minecart (below 0.22) and the gunpowder
fuse (0.18) are quiet. `tnt_gunpowder_burning` was recorded at 8 kHz and `doors_door_*`, `env_sounds_lava.*`
and two footsteps at 22 kHz. Being lossy, a few decoded files exceed full scale by up to 6 %.

## Licences

The CC0 sounds are in the public domain. The others ask for attribution, which the two `NOTICE` files give file by file
with the changes made; the CC BY-SA ones also ask that you share adaptations of the *sounds* alike. Captions, tables and
this description come under the licence of this repository. `minetest/` keeps the sounds that carry obligations apart,
so `cc0_sonic_pi/` can be used without any. The packaged minecart mod does not
name its sounds' maker; its upstream `license.txt` does (YleArkisto, CC BY 3.0), and that is what is stated here.

## Choice of sounds

Labels follow the names and descriptions the packages give, checked against spectrograms and not by listening tests.
Left out: sounds nobody could name, sounds too short or too alike to tell apart (placing, electronic clicks),
copies under another name, and loops made from a well-known commercial drum break.

## Rebuilding

```bash
apt-get install sonic-pi-samples minetest-data
python examples/prepare_quickstart_data.py --root /usr/share
```

The tables come out byte-identical; the audio depends on the version of the Vorbis encoder.
"""
SONIC_PI_FOLDER = "sonic-pi/samples"
MINETEST_FOLDER = "games/minetest/games/minetest_game/mods"


@dataclass(frozen=True)
class Original:
    """Where one recording comes from and under which terms.

    Attributes:
        path: The file, relative to the root that holds the packages.
        folder: Its folder in the data set.
        source: Package, path and page of the recording.
        author: The attribution its licence asks for; empty under CC0.
        licence: A key of `LICENCE_URLS`.
    """

    path: str
    folder: str
    source: str
    author: str
    licence: str


def find_original(name: str, links: dict[str, str]) -> Original:
    """Look up a recording by its name without extension; `links` maps Sonic Pi names to pages (`read_links`)."""
    for pattern, of in MINETEST.items():
        if re.match(pattern, name):
            path = f"{MINETEST_FOLDER}/{of['mod']}/sounds/{name}.ogg"
            source = f"minetest-data: {path} {of['pages']}".rstrip()
            return Original(path, "minetest", source, of["author"], of["licence"])
    path = f"{SONIC_PI_FOLDER}/{name}.flac"
    return Original(path, "cc0_sonic_pi", f"sonic-pi-samples: {path} {links[name.replace('_', '')]}", "", "CC0 1.0")


def read_links(readme: Path) -> dict[str, str]:
    """Freesound page of each Sonic Pi sample, by name without underscores (the README places them differently)."""
    rows = re.findall(r"`:(\w+)`\s*-\s*(https?://\S+)", readme.read_text(encoding="utf-8"))
    return {name.replace("_", ""): link for name, link in rows}


def load(path: Path) -> np.ndarray:
    """Read a file as 16 kHz mono `(samples,)`, without digital silence at its ends, at most 8 s long.

    Levels are kept, except that a peak above full scale (a lossy decoder may overshoot) is scaled down to 0.95.
    """
    import soundfile
    import soxr

    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    audio = soxr.resample(audio.mean(axis=1), rate, SAMPLING_RATE)
    (sounding,) = np.nonzero(np.abs(audio) > 2**-15)
    if not sounding.size:
        raise ValueError(f"{path} is silent: the package holds something else than expected.")
    audio = audio[sounding[0] : sounding[-1] + 1][: int(MAX_SECONDS * SAMPLING_RATE)]
    peak = np.abs(audio).max()
    return audio * (0.95 / peak) if peak > 1.0 else audio


def same_recording(first: np.ndarray, second: np.ndarray) -> float:
    """Largest normalised cross-correlation, in [0, 1], of half-second pieces of one recording with the other.

    Both are high-passed at 250 Hz first: any two low thumps correlate.
    """
    first, second = sorted((_high_pass(first), _high_pass(second)), key=len)
    size = min(len(first), SAMPLING_RATE // 2)
    length = 1 << (len(second) + size).bit_length()
    spectrum = np.fft.rfft(second, length)
    energy = np.concatenate([[0.0], np.cumsum(second**2)])
    local = np.maximum(energy[size:] - energy[:-size], 1e-3 * energy[-1])
    best = 0.0
    for start in range(0, len(first) - size + 1, size):
        piece = first[start : start + size]
        if (piece**2).sum() < 1e-3 * (first**2).sum():
            continue
        products = np.fft.irfft(spectrum * np.conj(np.fft.rfft(piece, length)), length)[: len(local)]
        best = max(best, float((np.abs(products) / np.sqrt((piece**2).sum() * local)).max()))
    return best


def _high_pass(audio: np.ndarray, cutoff: float = 250.0) -> np.ndarray:
    spectrum = np.fft.rfft(audio.astype(np.float64))
    spectrum[np.fft.rfftfreq(len(audio), 1 / SAMPLING_RATE) < cutoff] = 0.0
    return np.fft.irfft(spectrum, len(audio))


def split_takes(label: str, series: list[str]) -> dict[str, str]:
    """Deal the takes of each series of a class to the splits: of n takes, one in four tests, and one of two or three.

    A single take trains. The order is drawn from the seed, the label and the series alone, so that adding one moves
    no other.
    """
    splits = {}
    for takes in series:
        order = sorted(takes.split())
        random.Random(f"{SEED}:{label}:{order[0]}").shuffle(order)
        tests = 0 if len(order) == 1 else max(1, len(order) // 4)
        splits |= {take: "test" if i < tests else "train" for i, take in enumerate(order)}
    return splits


def files_of(take: str) -> list[str]:
    """The names of the files of a take."""
    return take.split("+")


def check_takes(audios: dict[str, np.ndarray]) -> None:
    """Raise `ValueError` when two takes of one class hold the same recording."""
    for label, (series, _) in CLASSES.items():
        names = [(name, take) for takes in series for take in takes.split() for name in files_of(take)]
        for i, (first, first_take) in enumerate(names):
            for second, second_take in names[i + 1 :]:
                if first_take != second_take:
                    score = same_recording(audios[first], audios[second])
                    if score > SAME_RECORDING:
                        raise ValueError(
                            f"{first} and {second} ({label}) correlate at {score:.2f}: join them by + in CLASSES."
                        )


def write_audio(path: Path, audio: np.ndarray) -> None:
    """Write Ogg Vorbis, unless the file there already decodes to the same samples."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, audio, SAMPLING_RATE, format="OGG", subtype="VORBIS", compression_level=0.3)
    buffer.seek(0)
    if path.exists():
        old, _ = soundfile.read(path, dtype="float32")
        new, _ = soundfile.read(buffer, dtype="float32")
        if np.array_equal(old, new):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


def write_rows(output: Path, rows: dict[str, list[dict]]) -> None:
    """Write one CSV per split and the captions of each class."""
    for split in SPLITS:
        with open(output / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(rows[split], key=lambda row: row["id"]))
    captions = {label: captions for label, (_, captions) in CLASSES.items()}
    (output / "classes.json").write_text(json.dumps(captions, indent=2) + "\n", encoding="utf-8")


def write_notices(output: Path, rows: dict[str, list[dict]]) -> None:
    """Write one NOTICE per folder: who made each file, under which licence, and what was changed."""
    for folder, (title, origin) in FOLDERS.items():
        files = [row for split in SPLITS for row in rows[split] if row["file_name"].startswith(f"{folder}/")]
        licences = sorted({row["licence"] for row in files})
        lines = [title, "=" * len(title), "", origin, "", CHANGES, "", "Licences:"]
        lines += [f"  {licence}: {LICENCE_URLS[licence]}" for licence in licences]
        for licence in licences:
            lines += ["", licence, "-" * len(licence)]
            for row in sorted(files, key=lambda row: row["id"]):
                if row["licence"] == licence:
                    author = f"by {row['author']}; " if row["author"] else ""
                    lines.append(f"  {Path(row['file_name']).name}: {author}from {row['source']}")
        (output / folder / "NOTICE").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_readme(output: Path, rows: dict[str, list[dict]]) -> None:
    """Write the description of the data set, with its counts."""
    every = [row for split in SPLITS for row in rows[split]]
    minutes = sum(float(row["duration"]) for row in every) / 60
    sizes = ["| split | files | takes | classes |", "| --- | ---: | ---: | ---: |"]
    for split in SPLITS:
        takes, labels = ({row[key] for row in rows[split]} for key in ("take", "label"))
        sizes.append(f"| {split} | {len(rows[split])} | {len(takes)} | {len(labels)} |")
    table = ["| class | train | test | licences |", "| --- | ---: | ---: | --- |"]
    for label in sorted(CLASSES):
        counts = (len({row["take"] for row in rows[split] if row["label"] == label}) for split in SPLITS)
        licences = sorted({row["licence"] for row in every if row["label"] == label})
        table.append(f"| {label} | {' | '.join(map(str, counts))} | {', '.join(licences)} |")
    text = README.format(
        files=len(every), classes=len(CLASSES), minutes=minutes, sizes="\n".join(sizes), table="\n".join(table)
    )
    (output / "README.md").write_text(text, encoding="utf-8")


def build(root: Path, output: Path) -> dict[str, list[dict]]:
    """Build the data set in `output` from the packages under `root`; returns the rows of each split."""
    readme = root / SONIC_PI_FOLDER / "README.md"
    for needed, package in ((readme, "sonic-pi-samples"), (root / MINETEST_FOLDER, "minetest-data")):
        if not needed.exists():
            raise FileNotFoundError(f"{needed} is missing. Run `apt-get install {package}`, or pass another --root.")
    links = read_links(readme)
    takes = [take for series, _ in CLASSES.values() for line in series for take in line.split()]
    names = [name for take in takes for name in files_of(take)]
    originals = {name: find_original(name, links) for name in names}
    audios = {name: load(root / original.path) for name, original in originals.items()}
    check_takes(audios)
    rows = {split: [] for split in SPLITS}
    for label, (series, captions) in CLASSES.items():
        for take, split in split_takes(label, series).items():
            for name in files_of(take):
                original = originals[name]
                file_name = f"{original.folder}/{name}.ogg"
                write_audio(output / file_name, audios[name])
                values = (
                    name,
                    file_name,
                    label,
                    files_of(take)[0],
                    json.dumps(captions),
                    f"{len(audios[name]) / SAMPLING_RATE:.3f}",
                    original.source,
                    original.author,
                    original.licence,
                )
                rows[split].append(dict(zip(COLUMNS, values, strict=True)))
    write_rows(output, rows)
    write_notices(output, rows)
    write_readme(output, rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Build examples/quickstart_data from two Debian packages.")
    parser.add_argument("--root", type=Path, default=Path("/usr/share"), help="where the packages are unpacked")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "quickstart_data")
    arguments = parser.parse_args()
    rows = build(arguments.root, arguments.output)
    print({split: len(rows[split]) for split in SPLITS})


if __name__ == "__main__":
    main()
