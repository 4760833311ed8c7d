"""`streaming: true` in a recipe: from each kind of source, resumed, and honest about what was not looked at before."""

import itertools
import json
import shutil
import tarfile

import datasets
import pytest
import yaml
from torch.utils.data import DataLoader

from supclap.cli.train import train
from supclap.data import StreamedClips, build_manifest, load_splits
from supclap.data.arguments import DataArguments
from supclap.data.manifest import NOT_HASHED
from supclap.errors import DataError, RecipeError
from supclap.files import MANIFEST
from supclap.recipes.parser import parse_recipe
from support import processes
from support.builders import add_to_tar, noise_bytes, write_recipe


def streamed(recipe, **data):
    """A recipe that reads a stream; `None` takes a key out."""
    content = yaml.safe_load(recipe.read_text())
    content["data"] = {"streaming": True, "shuffle_buffer": 8, **content["data"], **data}
    content["data"] = {key: value for key, value in content["data"].items() if value is not None}
    recipe.write_text(yaml.safe_dump(content))
    return recipe


def corpus_keys(corpus, folder):
    table = dict.fromkeys(
        ["train_file", "validation_file", "test_file", "split_column", "caption_columns", "label_column"]
    )
    splits = {"train_splits": ["train"], "validation_splits": ["validation"], "test_splits": None}
    return {"corpus": corpus, "data_dir": str(folder), **table, **splits}


@pytest.mark.parametrize("source", ["table", "webdataset", "hub"])
def test_a_run_on_a_stream_resumes_to_the_same_losses(source, request, tmp_path, tones, text_encoder):
    recipe = write_recipe(tmp_path, tones, text_encoder, max_steps=4, save_steps=2, eval_steps=4)
    keys = {} if source == "table" else {"webdataset": ("webdataset", "shards"), "hub": ("hub", "parquet")}[source]
    if keys:
        keys = corpus_keys(keys[0], request.getfixturevalue(keys[1]))
    processes.finish(streamed(recipe, **keys))
    reference = processes.history(tmp_path / "run", 4)
    assert any("eval_loss" in entry for entry in reference)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    processes.finish(recipe, "--output_dir", str(tmp_path / "killed"))
    assert processes.history(tmp_path / "killed", 4) == reference


def test_two_processes_on_a_stream_resume_to_the_same_losses(tmp_path, tones, text_encoder):
    recipe = streamed(write_recipe(tmp_path, tones, text_encoder, max_steps=4, save_steps=2, eval_steps=4))
    processes.finish_on_ranks(2, recipe)
    reference = processes.history(tmp_path / "run", 4)
    assert any("eval_loss" in entry for entry in reference)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    processes.finish_on_ranks(2, recipe, "--output_dir", str(tmp_path / "killed"))
    assert processes.history(tmp_path / "killed", 4) == reference


def test_the_manifest_and_the_card_say_that_the_audio_was_not_hashed(tmp_path, tones, text_encoder, shards):
    recipe = streamed(write_recipe(tmp_path, tones, text_encoder, max_steps=1), **corpus_keys("webdataset", shards))
    processes.finish(recipe)
    splits = json.loads((tmp_path / "run" / MANIFEST).read_text())["splits"]
    assert splits["train"]["streamed"] == NOT_HASHED
    assert splits["train"]["n_clips"] is None
    assert all(digest for _, digest in splits["validation"]["clips"])
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"| train | a stream | unknown | not stated | {NOT_HASHED} |" in card


def test_the_manifest_lists_the_clips_of_a_table_without_their_hashes(recipe):
    _, data, _ = parse_recipe([str(streamed(recipe))])
    train = build_manifest(load_splits(data))["splits"]["train"]
    assert train["streamed"] == NOT_HASHED
    assert train["n_clips"] == len(train["clips"]) == 16
    assert {digest for _, digest in train["clips"]} == {None}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--max_steps", "-1"), "set max_steps"),
        (("--eval_strategy", "epoch"), "eval_strategy: epoch never comes"),
        (("--train_sampling_strategy", "group_by_length"), "group_by_length needs to know all lengths"),
    ],
)
def test_arguments_that_count_the_clips_are_refused(recipe, option, message):
    with pytest.raises(RecipeError, match=message):
        train([str(streamed(recipe)), *option])


@pytest.mark.parametrize("key", ["scenes", "corpora", "epoch_size"])
def test_keys_that_need_all_clips_at_hand_are_refused(shards, key):
    data = DataArguments(corpus="webdataset", data_dir=str(shards), streaming=True, **{key: {}})
    with pytest.raises(DataError, match=f"and {key} "):
        load_splits(data)


def test_a_dry_run_counts_the_clips_it_would_draw(recipe, capsys):
    train([str(streamed(recipe)), "--dry-run", "--max_steps", "5"])
    text = capsys.readouterr().out
    assert "a stream of train, 4 validation" in text
    assert "5 of 8 pairs (8 on each of 1 processes), 40 clips" in text


def ids(stream, count, rank=0, world_size=1):
    clips = StreamedClips(stream.rows, rank, world_size, shuffle_buffer=4)
    return [sample["id"] for sample in itertools.islice(clips, count)]


@pytest.mark.parametrize("source", ["table", "webdataset", "hub", "saved"])
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_share_an_epoch(source, workers, recipe, shards, parquet, tmp_path):
    if source == "table":
        data, expected = parse_recipe([str(streamed(recipe))])[1], 16
    else:
        folder = shards if source == "webdataset" else parquet
        if source == "saved":
            folder = tmp_path / "saved"
            datasets.load_dataset(str(parquet), split="train", cache_dir=str(tmp_path / "cache")).save_to_disk(folder)
        corpus = "webdataset" if source == "webdataset" else "hub"
        data = DataArguments(corpus=corpus, data_dir=str(folder), streaming=True)
        expected = 11 if source == "webdataset" else 12  # one is of a recording of validation
    clips = StreamedClips(load_splits(data)["train"].rows, shuffle_buffer=4)
    loader = DataLoader(clips, batch_size=None, num_workers=workers)
    found = {sample["id"] for sample in itertools.islice(loader, expected)}
    # of an odd number, the worker that takes the first turn may come to its next epoch before the other
    assert len(found) >= expected - (workers > 0)


def test_two_ranks_share_the_shards(shards):
    splits = load_splits(DataArguments(corpus="webdataset", data_dir=str(shards), streaming=True))
    found = ids(splits["train"], 6, 0, 2) + ids(splits["train"], 6, 1, 2)
    # the first clip is of a recording of validation
    assert set(found) == {f"train-{shard}/{key}" for shard in range(4) for key in range(3)} - {"train-0/0"}


def test_recordings_of_leak_lists_are_not_streamed(shards, tmp_path):
    (tmp_path / "list.csv").write_text("recording\ntrain3\ntrain4\n")
    data = DataArguments(
        corpus="webdataset", data_dir=str(shards), streaming=True, exclude_leaks_of=[str(tmp_path / "list.csv")]
    )
    stream = load_splits(data)["train"]
    found = {row["id"] for row in stream.rows}
    assert {"train-1/0", "train-1/1"} & found == set()
    assert "train-1/2" in found


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_clip_that_is_no_audio_is_named_or_left_out(tmp_path, skip_bad):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for key, content in {"good": noise_bytes(0), "bad": b"no sound"}.items():
            add_to_tar(tar, f"{key}.txt", b"a noise")
            add_to_tar(tar, f"{key}.wav", content)
    data = DataArguments(corpus="webdataset", data_dir=str(tmp_path), streaming=True)
    clips = StreamedClips(load_splits(data)["train"].rows, shuffle_buffer=0, skip_bad=skip_bad)
    if skip_bad:
        assert [sample["id"] for sample in itertools.islice(clips, 3)] == ["train-0/good"] * 3
    else:
        with pytest.raises(ValueError, match="clip 'train-0/bad': cannot be decoded"):
            list(itertools.islice(clips, 3))


def test_the_audio_of_a_listed_row_is_not_opened_before_its_turn(recipe, tmp_path, tones):
    folder = shutil.copytree(tones, tmp_path / "tones")
    (folder / "low0.wav").write_bytes(b"no sound")
    data = parse_recipe([str(streamed(recipe, data_dir=str(folder)))])[1]
    assert len(load_splits(data)["train"].listed) == 16
