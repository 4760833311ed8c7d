"""A saved folder opens through the Auto classes and the stock pipeline, with the package and with remote code only."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, AutoTokenizer, pipeline

import supclap


LABELS = ["a dog barks", "rain", "a violin"]


def test_auto_classes_give_our_classes(checkpoint):
    assert type(AutoConfig.from_pretrained(checkpoint)) is supclap.SupClapConfig
    assert type(AutoModel.from_pretrained(checkpoint)) is supclap.SupClapModel
    assert type(AutoProcessor.from_pretrained(checkpoint)) is supclap.SupClapProcessor
    assert type(AutoFeatureExtractor.from_pretrained(checkpoint)) is supclap.SupClapFeatureExtractor
    assert AutoTokenizer.from_pretrained(checkpoint)("a dog").input_ids


@torch.no_grad()
def test_the_stock_pipeline_scores_as_the_model_does(checkpoint, tiny_model, processor, clips):
    classifier = pipeline("zero-shot-audio-classification", model=str(checkpoint))
    scores = {s["label"]: s["score"] for s in classifier(clips[0], candidate_labels=LABELS, hypothesis_template="{}")}
    inputs = processor(text=LABELS, audio=[clips[0]], sampling_rate=16000, return_tensors="pt")
    expected = tiny_model(**inputs).logits_per_audio.softmax(-1)[0]
    np.testing.assert_allclose([scores[label] for label in LABELS], expected, atol=1e-5)


def test_the_stock_pipeline_in_batches_scores_as_one_by_one(checkpoint, clips):
    classifier = pipeline("zero-shot-audio-classification", model=str(checkpoint))

    def scores(result):
        return [[entry["score"] for entry in sorted(clip, key=lambda e: e["label"])] for clip in result]

    alone = [classifier(clip, candidate_labels=LABELS) for clip in clips]
    together = classifier(clips, candidate_labels=LABELS, batch_size=3)
    np.testing.assert_allclose(scores(together), scores(alone), atol=1e-5)


def test_the_stock_pipeline_takes_a_label_longer_than_the_text_encoder(checkpoint, clips):
    classifier = pipeline("zero-shot-audio-classification", model=str(checkpoint))
    scores = classifier(clips[0], candidate_labels=["dog " * 500, "rain"])
    assert sum(entry["score"] for entry in scores) == pytest.approx(1)


WITHOUT_PACKAGE = """
import sys
blocked = ("supclap", "modeling_supclap", "processing_supclap")
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocker())
import json, numpy as np
from transformers import AutoModel, AutoProcessor, pipeline
folder = sys.argv[1]
clip = np.load(sys.argv[2])
labels = json.loads(sys.argv[3])
model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
inputs = processor(text=labels, audio=[clip], sampling_rate=16000, return_tensors="pt")
auto = model(**inputs).logits_per_audio.softmax(-1)[0].tolist()
stock = pipeline("zero-shot-audio-classification", model=folder, trust_remote_code=True)
scores = {s["label"]: s["score"] for s in stock(clip, candidate_labels=labels, hypothesis_template="{}")}
model.save_pretrained(sys.argv[4])
processor.save_pretrained(sys.argv[4])
print("RESULT", json.dumps([auto, [scores[label] for label in labels]]))
"""


def run_without_package(folder, clip_file, again, cache) -> list:
    import os

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE, str(folder), str(clip_file), json.dumps(LABELS), str(again)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_MODULES_CACHE": str(cache), "PYTHONPATH": ""},
        cwd=cache,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


@torch.no_grad()
def test_remote_code_alone_gives_the_same_scores_and_saves_a_folder_that_does_so_again(
    checkpoint, tiny_model, processor, clips, tmp_path
):
    clip_file = tmp_path / "clip.npy"
    np.save(clip_file, clips[0])
    inputs = processor(text=LABELS, audio=[clips[0]], sampling_rate=16000, return_tensors="pt")
    expected = tiny_model(**inputs).logits_per_audio.softmax(-1)[0]
    for folder, again in ((checkpoint, tmp_path / "again"), (tmp_path / "again", tmp_path / "third")):
        cache = tmp_path / f"cache-{again.name}"
        cache.mkdir()
        for scores in run_without_package(folder, clip_file, again, cache):
            np.testing.assert_allclose(scores, expected, atol=1e-5)
