"""Uploads through the real client of the Hub to a local server, over connections that break, and back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from hub_server import Fault, Repo, running_hub
from huggingface_hub import HfApi

from processing_supclap.processing_supclap import SENTENCE_TRANSFORMERS_FILES
from supclap import SupClapZeroShotAudioClassificationPipeline
from supclap.cli.main import main
from supclap.errors import LicenseError, PushError
from supclap.publishing import hub as supclap_hub
from supclap.publishing.hub import push_checkpoint


REPO = "me/model"
ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": "hf_test"}


@pytest.fixture
def hub(monkeypatch):
    """The server, with `hub.api` to talk to it; our own waits are short, those of the client are as they are."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(supclap_hub, "MAX_WAIT", 0.02)
    huggingface_hub.close_session()
    with running_hub() as (server, address):
        server.address = address
        server.api = HfApi(endpoint=address, token="hf_test")
        yield server
    huggingface_hub.close_session()


@pytest.fixture
def client_without_waits(monkeypatch):
    """The client sends again what breaks while it uploads or lists, up to five times, and waits longer each time."""
    monkeypatch.setattr(huggingface_hub.utils._http, "time", SimpleNamespace(sleep=lambda seconds: None))


def push(hub, folder, **options):
    return push_checkpoint(folder, REPO, api=hub.api, **options)


def test_a_push_is_one_commit_of_model_processor_code_and_card(hub, checkpoint):
    (checkpoint / "training_args.bin").write_bytes(b"a pickle")
    (checkpoint / "_svr_criterion.safetensors").write_bytes(b"the radius")
    (checkpoint / "checkpoint-4").mkdir()
    (checkpoint / "checkpoint-4" / "model.safetensors").write_bytes(b"another model")
    info = push(hub, checkpoint, message="First")
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
    push(hub, checkpoint)
    config["text_config"]["_name_or_path"] = "encoder"
    assert json.loads(hub.repos[REPO].files()["config.json"]) == config
    assert (checkpoint / "config.json").read_text() == saved


@pytest.mark.parametrize("private", [True, False])
def test_a_new_repository_is_private_if_asked_for(hub, checkpoint, private):
    push(hub, checkpoint, private=private)
    assert hub.repos[REPO].private is private


def test_a_second_push_of_the_same_makes_no_commit(hub, checkpoint):
    push(hub, checkpoint)
    push(hub, checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2


def test_weights_and_code_of_an_older_model_go_with_the_same_commit(hub, checkpoint):
    old = {"model-00001-of-00002.safetensors": b"", "pytorch_model.bin": b"", "old.py": b"", "notes.md": b"kept"}
    hub.repos[REPO] = Repo(private=False, branches={"main": [old]})
    push(hub, checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2
    assert old.keys() & hub.repos[REPO].files().keys() == {"notes.md"}


def test_a_revision_is_a_branch_that_is_made(hub, checkpoint):
    push(hub, checkpoint, revision="v1.0")
    push(hub, checkpoint, revision="v1.0")
    assert "config.json" in hub.repos[REPO].files("v1.0")
    assert hub.repos[REPO].files("main") == {}


def test_a_pull_request_leaves_main_as_it_is(hub, checkpoint):
    info = push(hub, checkpoint, create_pr=True)
    assert info.pr_url.endswith("/discussions/1")
    assert hub.repos[REPO].files("main") == {}
    assert "config.json" in hub.repos[REPO].files("refs/pr/1")


# --- what may go wrong on the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", ["POST /api/repos/create", "/preupload/", "/info/lfs/objects/batch", "PUT /lfs/", "/commit/", "/tree/"]
)
def test_a_connection_that_breaks_in_the_middle_is_taken_up_again(hub, checkpoint, where):
    hub.faults = [Fault(where, "cut")]
    push(hub, checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2
    assert hub.repos[REPO].files()["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert len(hub.asked(where)) >= 2


def test_weights_that_arrived_are_not_sent_again_when_the_commit_breaks(hub, checkpoint):
    hub.faults = [Fault("/commit/", "cut", times=2)]
    push(hub, checkpoint)
    assert len(hub.asked("/commit/")) == 3
    assert len(hub.asked("PUT /lfs/")) == 1


def test_a_commit_whose_answer_gets_lost_is_not_made_twice(hub, checkpoint):
    hub.faults = [Fault("/commit/", "cut answer")]
    push(hub, checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2


@pytest.mark.parametrize("what", ["cut", 503])
@pytest.mark.parametrize("where", ["PUT /lfs/", "POST /verify"])
def test_weights_that_break_more_often_than_the_client_tries_arrive(
    hub, checkpoint, client_without_waits, where, what
):
    hub.faults = [Fault(where, what, times=8)]
    push(hub, checkpoint)
    assert hub.repos[REPO].files()["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("what", "message"), [("cut", "the connection broke 6 times"), (503, "the Hub turned it away 6 times")]
)
@pytest.mark.parametrize("create_pr", [False, True])
def test_weights_that_never_arrive_end_the_push_with_what_to_do(
    hub, checkpoint, client_without_waits, what, message, create_pr
):
    hub.faults = [Fault("PUT /lfs/", what, times=100)]
    with pytest.raises(PushError, match=rf"the upload to {REPO}: {message} .*push again"):
        push(hub, checkpoint, create_pr=create_pr)
    assert not hub.asked("/commit/")


@pytest.mark.parametrize("what", ["cut", 403])
def test_the_command_ends_with_an_error_and_no_traceback_when_weights_do_not_arrive(
    hub, checkpoint, client_without_waits, monkeypatch, capsys, what
):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.faults = [Fault("PUT /lfs/", what, times=100)]
    assert main(["push", str(checkpoint), REPO]) == 1
    assert "error: " in capsys.readouterr().err


def test_an_error_that_is_none_of_the_connection_is_not_repeated():
    def send():
        raise RuntimeError("a defect") from KeyError("a key")

    with pytest.raises(RuntimeError, match="a defect"):
        supclap_hub._retried(send, "the upload")


@pytest.mark.parametrize("where", ["/tree/", "/preupload/", "/info/lfs", "PUT /lfs/", "/validate-yaml"])
def test_what_breaks_before_a_pull_request_is_sent_is_tried_again(hub, checkpoint, client_without_waits, where):
    hub.faults = [Fault(where, "cut", times=7 if where != "/validate-yaml" else 4)]  # which the client sends only once
    push(hub, checkpoint, create_pr=True)
    assert hub.repos[REPO].pull_requests == 1


def test_a_pull_request_whose_answer_gets_lost_is_not_opened_twice(hub, checkpoint):
    hub.faults = [Fault("/commit/", "cut answer")]
    with pytest.raises(PushError, match="whether the pull request was opened is not known"):
        push(hub, checkpoint, create_pr=True)
    assert hub.repos[REPO].pull_requests == 1


def test_a_connection_that_stays_broken_is_said_so_and_leaves_the_repository_as_it_was(hub, checkpoint):
    push(hub, checkpoint)
    before = dict(hub.repos[REPO].files())
    (checkpoint / "tokenizer_config.json").write_text("{}")
    hub.faults = [Fault("/commit/", "cut", times=100)]
    with pytest.raises(PushError, match="the connection broke 6 times.*push again"):
        push(hub, checkpoint)
    assert hub.repos[REPO].files() == before


@pytest.mark.parametrize("status", [408, 412, 429, 500, 503])
@pytest.mark.parametrize("where", ["POST /api/repos/create", "/commit/"])
def test_a_server_that_turns_away_is_asked_again(hub, checkpoint, status, where):
    hub.faults = [Fault(where, status, times=2)]
    push(hub, checkpoint)
    assert len(hub.asked(where)) == 3
    assert len(hub.repos[REPO].branches["main"]) == 2


def test_retry_after_is_honoured(hub, checkpoint):
    hub.faults = [Fault("/commit/", 429, headers={"Retry-After": "1"})]
    push(hub, checkpoint)
    first, second = hub.asked("/commit/")
    assert second - first >= 1


def test_retry_after_may_be_a_date():
    from email.utils import formatdate
    from time import time

    assert 50 < supclap_hub._retry_after(formatdate(time() + 60, usegmt=True)) <= 60
    assert supclap_hub._retry_after(formatdate(time() - 60, usegmt=True)) == 0
    assert supclap_hub._retry_after("soon") is None


@pytest.mark.parametrize("status", [409, 412])
def test_another_commit_in_the_way_is_waited_for(hub, checkpoint, status):
    hub.faults = [Fault("/commit/", status)]
    push(hub, checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 2


@pytest.mark.parametrize("status", [409, 412, 429])
def test_a_pull_request_that_was_turned_away_is_sent_again(hub, checkpoint, status):
    hub.faults = [Fault("/commit/", status, times=2)]
    push(hub, checkpoint, create_pr=True)
    assert hub.repos[REPO].pull_requests == 1


def test_a_pull_request_of_which_it_is_not_known_whether_it_was_read_is_not_sent_again(hub, checkpoint):
    hub.faults = [Fault("/commit/", 408, times=100)]
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError):
        push(hub, checkpoint, create_pr=True)
    assert len(hub.asked("/commit/")) == 1


@pytest.mark.parametrize("status", [409, 412])
def test_another_commit_in_the_way_every_time_has_a_clear_outcome(hub, checkpoint, status):
    hub.faults = [Fault("/commit/", status, times=100)]
    with pytest.raises(PushError, match="another commit was in the way 6 times.*Nothing was changed.*--create-pr"):
        push(hub, checkpoint)
    assert len(hub.repos[REPO].branches["main"]) == 1


def test_a_refusal_is_not_repeated(hub, checkpoint):
    hub.repos[REPO] = Repo(private=False)
    hub.faults = [Fault("/commit/", 403, times=100)]
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError):
        push(hub, checkpoint)
    assert len(hub.asked("/commit/")) == 1


# --- what is checked before anything is sent ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("processor_config.json", "has no processor_config.json"),
        ("model.safetensors", "lacks model.safetensors"),
        ("modeling_supclap.py", "lacks modeling_supclap.py"),
        ("pipeline_supclap.py", "lacks pipeline_supclap.py"),
    ],
)
def test_a_folder_that_a_stranger_could_not_load_is_refused_before_anything_is_sent(hub, checkpoint, missing, message):
    (checkpoint / missing).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        push(hub, checkpoint)
    assert not hub.requests


def test_a_missing_shard_is_named(hub, checkpoint):
    weights = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(weights))
    with pytest.raises(FileNotFoundError, match=r"lacks model-00002-of-00002\.safetensors"):
        push(hub, checkpoint)


def test_a_shard_outside_the_folder_is_refused(hub, checkpoint):
    weights = {"weight_map": {"a": "../secret.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(weights))
    (checkpoint.parent / "secret.safetensors").write_bytes(b"secret")
    with pytest.raises(ValueError, match="leads out of it"):
        push(hub, checkpoint)
    assert not hub.requests


def test_a_link_out_of_the_folder_is_refused(hub, checkpoint):
    (checkpoint.parent / "secret.json").write_text("{}")
    (checkpoint / "notes.json").symlink_to(checkpoint.parent / "secret.json")
    with pytest.raises(PushError, match="outside the checkpoint"):
        push(hub, checkpoint)
    assert not hub.requests


def test_a_licence_that_the_text_encoder_forbids_is_refused_before_anything_is_sent(hub, checkpoint, tmp_path):
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    (checkpoint / "recipe.json").write_text(
        json.dumps({"text_model": str(encoder), "audio_model": "random:ced-tiny", "objective": "infonce", "svr": None})
    )
    with pytest.raises(LicenseError, match="no commercial use"):
        push(hub, checkpoint, licence="apache-2.0")
    assert not hub.requests
    push(hub, checkpoint)
    assert "license: cc-by-nc-4.0" in hub.repos[REPO].files()["README.md"].decode()


def test_the_licence_of_the_card_that_is_there_is_kept(hub, checkpoint):
    push(hub, checkpoint, licence="mit")
    push(hub, checkpoint)
    assert "license: mit" in hub.repos[REPO].files()["README.md"].decode()


def test_a_readme_of_someone_else_is_uploaded_as_it_is(hub, checkpoint):
    (checkpoint / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    push(hub, checkpoint)
    assert hub.repos[REPO].files()["README.md"].endswith(b"# Mine\n")


def set_text_architecture(folder, model_type):
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["model_type"] = model_type
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("licence", ["apache-2.0", "[mit, cc-by-nc-4.0]"])
def test_a_readme_of_someone_else_that_states_what_the_text_encoder_forbids_is_refused(hub, checkpoint, licence):
    set_text_architecture(checkpoint, "m2m_100")  # SONAR's
    readme = f"---\nlicense: {licence}\n---\n# Mine\n"
    (checkpoint / "README.md").write_text(readme)
    with pytest.raises(LicenseError, match="README.md: The licence .* is refused: .*no commercial use"):
        push(hub, checkpoint)
    assert not hub.requests
    assert (checkpoint / "README.md").read_text() == readme


@pytest.mark.parametrize("front_matter", ["", "---\nlicense: cc-by-nc-4.0\n---\n", "---\nlicense: other\n---\n"])
def test_a_readme_of_someone_else_that_claims_no_more_than_the_parts_allow_is_uploaded(hub, checkpoint, front_matter):
    set_text_architecture(checkpoint, "m2m_100")
    (checkpoint / "README.md").write_text(f"{front_matter}# Mine\n")
    hub.faults = [Fault("/api/validate-yaml", 200)]  # this server wants metadata
    push(hub, checkpoint)
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


def test_what_the_command_uploads_loads_from_the_hub_in_a_process_without_the_package(
    checkpoint, tiny_model, processor, tmp_path
):
    with running_hub() as (server, address):
        environment = {**os.environ, **ONLINE, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        environment.pop("HF_MODULES_CACHE", None)
        root = str(Path(supclap_hub.__file__).parent.parent)
        pushed = subprocess.run(
            [sys.executable, "-m", "supclap.cli.main", "push", str(checkpoint), REPO, "--private"],
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
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
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

    with pytest.raises(ValueError, match="hub_strategy must be end"):
        SupClapTrainingArguments(str(tmp_path), push_to_hub=True, hub_strategy="every_save")
