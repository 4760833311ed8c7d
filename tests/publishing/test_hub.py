"""Uploads through the real client of the Hub to a local server, over connections that break, and back."""

import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

import modeling_supclap
import processing_supclap
from processing_supclap.processing_supclap import SENTENCE_TRANSFORMERS_FILES
from supclap import SupClapZeroShotAudioClassificationPipeline
from supclap.errors import CheckpointError, LicenseError, PushError
from supclap.publishing.hub import CODE, push_checkpoint
from supclap_cli import main
from support.builders import set_text_architecture
from support.hub_server import Fault, Repo, running_hub


REPO = "me/model"
ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": "hf_test"}


@pytest.fixture
def hub(monkeypatch):
    """The server, at the other end of the client, which repeats what breaks without waiting."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.utils._http, "time", SimpleNamespace(sleep=lambda seconds: None))
    huggingface_hub.close_session()
    with running_hub() as (server, address):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        server.address = address
        yield server
    huggingface_hub.close_session()


def push(folder, **options):
    return push_checkpoint(folder, REPO, token="hf_test", **options)


def test_a_push_is_one_commit_of_model_processor_code_and_card(hub, checkpoint):
    (checkpoint / "training_args.bin").write_bytes(b"a pickle")
    (checkpoint / "_svr_criterion.safetensors").write_bytes(b"the radius")
    (checkpoint / "checkpoint-4").mkdir()
    (checkpoint / "checkpoint-4" / "model.safetensors").write_bytes(b"another model")
    info = push(checkpoint, message="First")
    repo = hub.repos[REPO]
    assert len(repo.branches["main"]) == 2
    assert repo.messages == ["First"]
    assert info.commit_url.startswith(f"{hub.address}/{REPO}/commit/")
    files = repo.files()
    assert files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert {"config.json", "processor_config.json", "tokenizer.json", "modules.json", "README.md"} <= files.keys()
    assert {"modeling_supclap.py", "processing_supclap.py", "pipeline_supclap.py"} <= files.keys()
    assert not {name for name in files if name.startswith(("_", "checkpoint")) or name.endswith(".bin")}
    assert f'AutoModel.from_pretrained("{REPO}"' in files["README.md"].decode()


def test_the_folder_of_an_encoder_stays_here_but_for_its_name(hub, checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["_name_or_path"] = str(tmp_path / "site-packages" / "encoder")
    config["audio_config"]["_name_or_path"] = "someone/ced"
    saved = json.dumps(config)
    (checkpoint / "config.json").write_text(saved)
    push(checkpoint)
    config["text_config"]["_name_or_path"] = "encoder"
    assert json.loads(hub.repos[REPO].files()["config.json"]) == config
    assert (checkpoint / "config.json").read_text() == saved


@pytest.mark.parametrize("private", [True, False])
def test_a_new_repository_is_private_if_asked_for(hub, checkpoint, private):
    push(checkpoint, private=private)
    assert hub.repos[REPO].private is private


def test_a_second_push_of_the_same_makes_no_commit(hub, checkpoint):
    push(checkpoint)
    push(checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2


def test_strangers_in_the_folder_stay_here_and_are_named(hub, checkpoint, capsys):
    strangers = ["credentials.json", "token.txt", "secrets.py", "screenshot.png", "other.safetensors", ".env"]
    for name in strangers:
        (checkpoint / name).write_text("{}")
    push(checkpoint)
    assert not set(strangers) & hub.repos[REPO].files().keys()
    assert f"no part of a checkpoint: {'; '.join(sorted(strangers))}" in capsys.readouterr().err


def test_files_of_an_older_version_go_with_the_same_commit_and_those_of_others_stay(hub, checkpoint):
    ours = {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "results.json", "old_supclap.py"}
    others = {"handler.py", "app.py", "notes.md", "requirements.txt", "onnx/model.safetensors"}
    hub.repos[REPO] = Repo(private=False, branches={"main": [dict.fromkeys(ours | others, b"old")]})
    push(checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2
    assert (ours | others) & hub.repos[REPO].files().keys() == others


@pytest.mark.parametrize("package", [modeling_supclap, processing_supclap])
def test_all_code_that_travels_is_known_by_its_name_in_a_repository(package):
    names = {file.name for file in Path(package.__file__).parent.glob("*.py")} - {"__init__.py"}
    assert names == {name for name in names if any(fnmatch(name, pattern) for pattern in CODE)}


def test_a_revision_is_a_branch_that_is_made(hub, checkpoint):
    push(checkpoint, revision="v1.0")
    push(checkpoint, revision="v1.0")
    assert "config.json" in hub.repos[REPO].files("v1.0")
    assert hub.repos[REPO].files("main") == {}


def test_a_pull_request_leaves_main_as_it_is(hub, checkpoint):
    info = push(checkpoint, create_pr=True)
    assert info.pr_url.endswith("/discussions/1")
    assert hub.repos[REPO].files("main") == {}
    assert "config.json" in hub.repos[REPO].files("refs/pr/1")


# --- what may go wrong on the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["cut", 503])
@pytest.mark.parametrize("where", ["/tree/", "/preupload/", "/info/lfs/objects/batch", "PUT /lfs/"])
def test_what_breaks_while_files_are_sent_is_sent_again(hub, checkpoint, where, what):
    hub.faults = [Fault(where, what, times=2)]
    push(checkpoint)
    assert hub.repos[REPO].files()["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()


@pytest.mark.parametrize("what", ["cut", 503])
@pytest.mark.parametrize("where", ["/repos/create", "/tree/", "/validate-yaml", "PUT /lfs/", "/commit/"])
def test_what_stays_broken_ends_in_one_line_and_leaves_the_repository_as_it_was(hub, checkpoint, where, what):
    push(checkpoint)
    before = dict(hub.repos[REPO].files())
    save_file({"other": torch.zeros(1)}, checkpoint / "model.safetensors")
    hub.faults = [Fault(where, what, times=100)]
    with pytest.raises(PushError, match=rf"^{REPO}: the upload failed \(.+\)\. .*Push again.*$"):
        push(checkpoint)
    assert hub.repos[REPO].files() == before


def test_a_push_after_a_broken_one_sends_no_weights_again(hub, checkpoint):
    hub.faults = [Fault("/commit/", "cut")]
    with pytest.raises(PushError):
        push(checkpoint)
    push(checkpoint)
    assert hub.asked("PUT /lfs/") == 1
    assert hub.repos[REPO].files()["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()


def test_a_commit_whose_answer_gets_lost_is_not_made_twice_by_the_next_push(hub, checkpoint):
    hub.faults = [Fault("/commit/", "cut answer")]
    with pytest.raises(PushError):
        push(checkpoint)
    push(checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2


def test_a_pull_request_whose_answer_gets_lost_is_opened_once_and_the_error_says_to_look(hub, checkpoint):
    hub.faults = [Fault("/commit/", "cut answer")]
    with pytest.raises(PushError, match="Whether the pull request was opened is not known: look"):
        push(checkpoint, create_pr=True)
    assert hub.repos[REPO].pull_requests == 1


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "hf auth login"),
        (403, "hf auth login"),
        (409, "Another commit"),
        (412, "Another commit"),
        (400, "refused"),
    ],
)
def test_a_refusal_says_what_to_do(hub, checkpoint, status, advice):
    hub.repos[REPO] = Repo(private=False)
    hub.faults = [Fault("/commit/", status)]
    with pytest.raises(PushError, match=f"the upload failed .*{advice}"):
        push(checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 1


@pytest.mark.parametrize("what", ["cut", 403])
def test_the_command_ends_with_one_line_when_weights_do_not_arrive(hub, checkpoint, monkeypatch, capsys, what):
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.faults = [Fault("PUT /lfs/", what, times=100)]
    assert main(["push", str(checkpoint), REPO]) == 1
    assert f"error: {REPO}: the upload failed" in capsys.readouterr().err.splitlines()[-1]  # behind the progress bar


# --- what is checked before anything is sent ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("processor_config.json", "has no processor_config.json"),
        ("model.safetensors", "lacks model.safetensors"),
        ("modeling_supclap.py", "lacks modeling_supclap.py"),
        ("pipeline_supclap.py", "lacks pipeline_supclap.py"),
        ("modeling_ced.py", "lacks modeling_ced.py"),
    ],
)
def test_a_folder_that_a_stranger_could_not_load_is_refused_before_anything_is_sent(hub, checkpoint, missing, message):
    (checkpoint / missing).unlink()
    with pytest.raises(CheckpointError, match=message):
        push(checkpoint)
    assert not hub.requests


def test_a_missing_shard_is_named(hub, checkpoint):
    weights = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(weights))
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00002\.safetensors"):
        push(checkpoint)


def test_a_shard_outside_the_folder_is_refused(hub, checkpoint):
    weights = {"weight_map": {"a": "../secret.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(weights))
    (checkpoint.parent / "secret.safetensors").write_bytes(b"secret")
    with pytest.raises(CheckpointError, match=r"lacks \.\./secret\.safetensors"):
        push(checkpoint)
    assert not hub.requests


def test_a_link_out_of_the_folder_is_refused(hub, checkpoint):
    (checkpoint.parent / "secret.json").write_text("{}")
    (checkpoint / "results.json").symlink_to(checkpoint.parent / "secret.json")
    with pytest.raises(PushError, match="outside the checkpoint"):
        push(checkpoint)
    assert not hub.requests


def test_a_license_that_the_text_encoder_forbids_is_refused_before_anything_is_sent(hub, checkpoint):
    set_text_architecture(checkpoint, "m2m_100")  # SONAR's
    with pytest.raises(LicenseError, match="no commercial use"):
        push(checkpoint, license="apache-2.0")
    assert not hub.requests
    push(checkpoint)
    assert "license: cc-by-nc-4.0" in hub.repos[REPO].files()["README.md"].decode()


@pytest.mark.parametrize(
    ("license", "stated"), [("mit", "license: mit"), ("My terms", "license: other\nlicense_name: my-terms")]
)
def test_the_license_of_the_card_that_is_there_is_kept(hub, checkpoint, license, stated):
    push(checkpoint, license=license)
    push(checkpoint)
    assert stated in hub.repos[REPO].files()["README.md"].decode()


def test_a_readme_of_someone_else_is_uploaded_as_it_is(hub, checkpoint):
    (checkpoint / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    push(checkpoint)
    assert hub.repos[REPO].files()["README.md"].endswith(b"# Mine\n")


def test_a_license_asked_for_beside_a_readme_of_someone_else_is_refused(hub, checkpoint):
    (checkpoint / "README.md").write_text("# Mine\n")
    with pytest.raises(PushError, match="State the license 'mit' in it yourself"):
        push(checkpoint, license="mit")
    assert not hub.requests


@pytest.mark.parametrize("license", ["apache-2.0", "[mit, cc-by-nc-4.0]"])
def test_a_readme_of_someone_else_that_states_what_the_text_encoder_forbids_is_refused(hub, checkpoint, license):
    set_text_architecture(checkpoint, "m2m_100")  # SONAR's
    readme = f"---\nlicense: {license}\n---\n# Mine\n"
    (checkpoint / "README.md").write_text(readme)
    with pytest.raises(LicenseError, match="README.md: The license .* is refused: .*no commercial use"):
        push(checkpoint)
    assert not hub.requests
    assert (checkpoint / "README.md").read_text() == readme


@pytest.mark.parametrize("front_matter", ["", "---\nlicense: cc-by-nc-4.0\n---\n", "---\nlicense: other\n---\n"])
def test_a_foreign_readme_that_claims_no_more_than_the_parts_allow_is_uploaded(hub, checkpoint, front_matter):
    set_text_architecture(checkpoint, "m2m_100")
    (checkpoint / "README.md").write_text(f"{front_matter}# Mine\n")
    push(checkpoint)
    assert hub.repos[REPO].files()["README.md"].endswith(b"# Mine\n")


# --- there and back -------------------------------------------------------------------------------------------------

LOAD = """
import json, sys
import torch
from transformers import AutoModel, AutoProcessor
repo = sys.argv[1]
model = AutoModel.from_pretrained(repo, trust_remote_code=True).eval()
processor = AutoProcessor.from_pretrained(repo, trust_remote_code=True)
with torch.no_grad():
    print("RESULT", json.dumps(model.get_text_features(**processor(text=["a dog"])).pooler_output.tolist()))
"""


def test_what_was_uploaded_loads_from_the_hub_without_the_package(checkpoint, tiny_model, processor, tmp_path):
    with running_hub() as (server, address):
        environment = {**os.environ, **ONLINE, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        environment.pop("HF_MODULES_CACHE", None)
        root = str(Path(modeling_supclap.__file__).parent.parent)
        pushed = subprocess.run(
            [sys.executable, "-m", "supclap_cli", "push", str(checkpoint), REPO, "--private"],
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": root},
            timeout=300,
        )
        assert pushed.returncode == 0, pushed.stderr[-3000:]
        assert f"{address}/{REPO}/commit/" in pushed.stdout
        assert server.repos[REPO].private
        loaded = subprocess.run(
            [sys.executable, "-c", LOAD, REPO],
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": ""},
            cwd=tmp_path,
            timeout=300,
        )
    assert loaded.returncode == 0, loaded.stderr[-3000:]
    with torch.no_grad():
        expected = tiny_model.get_text_features(**processor(text=["a dog"])).pooler_output
    np.testing.assert_allclose(json.loads(loaded.stdout.split("RESULT")[1]), expected, atol=1e-6)


def point_transformers_at(hub, monkeypatch):
    resolve = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # the client that transformers shares


def save_both(model, processor, folder, **options):
    model.save_pretrained(folder, **options)
    processor.save_pretrained(folder, **options)


def save_pipeline(model, processor, folder, **options):
    pipe = SupClapZeroShotAudioClassificationPipeline(
        model=model, tokenizer=processor.tokenizer, feature_extractor=processor.feature_extractor
    )
    pipe.save_pretrained(folder, **options)


@pytest.mark.parametrize("save", [save_both, save_pipeline])
@pytest.mark.parametrize("kind", [str, Path])
def test_saving_with_push_to_hub_uploads_the_files_of_a_sentence_transformer(
    hub, tiny_model, processor, tmp_path, monkeypatch, save, kind
):
    point_transformers_at(hub, monkeypatch)
    save(tiny_model, processor, kind(tmp_path / "model"), push_to_hub=True, repo_id=REPO, token="hf_test")
    files = hub.repos[REPO].files()
    for name in SENTENCE_TRANSFORMERS_FILES:
        assert files[name] == (tmp_path / "model" / name).read_bytes()
    assert {"model.safetensors", "processor_config.json", "pipeline_supclap.py"} <= files.keys()


def test_the_trainer_pushes_what_it_saved_with_its_card_and_not_before(
    hub, tiny_model, processor, tmp_path, monkeypatch
):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.publishing.model_card import write_card

    point_transformers_at(hub, monkeypatch)
    args = SupClapTrainingArguments(
        str(tmp_path / "run"), push_to_hub=True, hub_model_id=REPO, hub_private_repo=True, hub_token="hf_test"
    )
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor)
    assert hub.repos[REPO].private
    trainer.save_model()
    assert len(hub.repos[REPO].branches["main"]) == 1
    write_card(tmp_path / "run", trainer.hub_model_id)
    trainer.push_to_hub()
    files = hub.repos[REPO].files()
    assert hub.repos[REPO].messages == ["End of training"]
    assert {"model.safetensors", "processor_config.json", "pipeline_supclap.py", "README.md"} <= files.keys()
    assert not {"training_args.bin", "_svr_criterion.safetensors"} & files.keys()


def test_uploads_in_the_middle_of_training_are_refused_when_they_are_asked_for(tmp_path):
    from supclap import SupClapTrainingArguments

    with pytest.raises(ValueError, match="hub_strategy must be .end"):
        SupClapTrainingArguments(str(tmp_path), push_to_hub=True, hub_strategy="every_save")
