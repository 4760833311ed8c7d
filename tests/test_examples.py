"""The examples run as they stand."""

import importlib.util
import json

import pytest

from supclap_cli import main
from support.paths import ROOT


EXAMPLES = ROOT / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_pipelines_classify_the_sound_of_the_repository_alike(checkpoint):
    example = load("classify_sound")
    stock, ours = example.classify(checkpoint).values()
    assert {score["label"] for score in stock} == set(example.LABELS)
    expected = {score["label"]: score["score"] for score in stock}
    assert {score["label"]: score["score"] for score in ours} == pytest.approx(expected, abs=1e-5)


def test_the_suite_of_the_quickstart_finds_its_recordings(checkpoint, tmp_path, capsys):
    arguments = ["--suite", str(EXAMPLES / "quickstart_suite.yaml"), "--output-dir", str(tmp_path), "--format", "json"]
    assert main(["evaluate", str(checkpoint), *arguments]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    found = {entry["task"]: entry["n_clips"] for entry in summary["results"]}
    assert found == {"held-out": 27, "trained-on": 153, "classes": 27}
