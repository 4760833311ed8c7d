"""A saved folder opens through the Auto classes, the pipelines and SentenceTransformer, each in a process of its own,
with the package and with remote code only.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
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


BLOCK_PACKAGE = """
import sys
blocked = ("supclap", "modeling_supclap", "processing_supclap")
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocker())
trust = {"trust_remote_code": True}
"""
IMPORT_PACKAGE = """
import supclap
trust = {}
"""
READ_ARGUMENTS = """
import json, sys
import numpy as np
folder, clip_file, labels = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
clip = np.load(clip_file)
asked = {"candidate_labels": labels, "hypothesis_template": "{}"}
def in_order(result):
    scores = {entry["label"]: entry["score"] for entry in result}
    return [scores[label] for label in labels]
"""

AUTO_CLASSES = """
from transformers import AutoModel, AutoProcessor
model = AutoModel.from_pretrained(folder, **trust).eval()
processor = AutoProcessor.from_pretrained(folder, **trust)
inputs = processor(text=labels, audio=[clip], sampling_rate=16000, return_tensors="pt")
result = model(**inputs).logits_per_audio.softmax(-1)[0].tolist()
"""
STOCK_PIPELINE = """
from transformers import pipeline
result = in_order(pipeline("zero-shot-audio-classification", model=folder, **trust)(clip, **asked))
"""
OUR_PIPELINE = """
result = in_order(supclap.pipeline(folder)({"array": clip, "sampling_rate": 16000}, **asked))
"""
PIPELINE_CLASS = """
from transformers import pipeline
ours = supclap.SupClapZeroShotAudioClassificationPipeline
classify = pipeline("zero-shot-audio-classification", model=folder, pipeline_class=ours)
assert type(classify) is ours
result = in_order(classify({"array": clip, "sampling_rate": 16000}, **asked))
"""
OWN_TASK = """
from transformers import pipeline
classify = pipeline("supclap-zero-shot-audio-classification", model=folder, trust_remote_code=True)
result = in_order(classify({"array": clip, "sampling_rate": 16000}, **asked))
"""
SAVED_AGAIN = (
    AUTO_CLASSES
    + """
model.save_pretrained(sys.argv[4])
processor.save_pretrained(sys.argv[4])
folder = sys.argv[4]
"""
    + OWN_TASK
)
SENTENCE_TRANSFORMER = """
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(folder, device="cpu", **trust)
result = {
    "text": model.encode(labels).tolist(),
    "array": model.encode([clip]).tolist(),
    "dict": model.encode([{"array": clip, "sampling_rate": 16000}]).tolist(),
    "file": model.encode([sys.argv[4]]).tolist(),
    "dimension": model.get_embedding_dimension(),
    "modalities": model.modalities,
}
"""


def through_door(prelude: str, door: str, folder, cache, clip, *more):
    """What a fresh process gets through a door; without the package, where the package can't be imported."""
    cache.mkdir(exist_ok=True)
    np.save(cache / "clip.npy", clip)
    program = prelude + READ_ARGUMENTS + door + "\nprint('RESULT', json.dumps(result))"
    environment = {**os.environ, "HF_MODULES_CACHE": str(cache)}
    if prelude is BLOCK_PACKAGE:
        environment["PYTHONPATH"] = ""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(cache / "clip.npy"), json.dumps(LABELS), *map(str, more)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cache if prelude is BLOCK_PACKAGE else None,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.fixture
def expected_scores(tiny_model, processor, clips):
    inputs = processor(text=LABELS, audio=[clips[0]], sampling_rate=16000, return_tensors="pt")
    with torch.no_grad():
        return tiny_model(**inputs).logits_per_audio.softmax(-1)[0]


@pytest.mark.parametrize(
    ("prelude", "door"),
    [
        pytest.param(IMPORT_PACKAGE, OUR_PIPELINE, id="supclap.pipeline"),
        pytest.param(IMPORT_PACKAGE, PIPELINE_CLASS, id="pipeline_class"),
        pytest.param(IMPORT_PACKAGE, OWN_TASK, id="own task, package"),
        pytest.param(BLOCK_PACKAGE, AUTO_CLASSES, id="Auto classes, remote code"),
        pytest.param(BLOCK_PACKAGE, STOCK_PIPELINE, id="stock pipeline, remote code"),
        pytest.param(BLOCK_PACKAGE, OWN_TASK, id="own task, remote code"),
    ],
)
def test_a_door_gives_the_scores_of_the_model(checkpoint, clips, expected_scores, tmp_path, prelude, door):
    scores = through_door(prelude, door, checkpoint, tmp_path / "cache", clips[0])
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_a_folder_saved_by_remote_code_opens_like_the_first(checkpoint, clips, expected_scores, tmp_path):
    again = tmp_path / "again"
    scores = through_door(BLOCK_PACKAGE, SAVED_AGAIN, checkpoint, tmp_path / "cache", clips[0], again)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    scores = through_door(BLOCK_PACKAGE, STOCK_PIPELINE, again, tmp_path / "cache2", clips[0])
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("prelude", [IMPORT_PACKAGE, BLOCK_PACKAGE], ids=["package", "remote code"])
def test_sentence_transformer_embeds_texts_arrays_dicts_and_files(
    checkpoint, tiny_model, processor, clips, tmp_path, prelude
):
    pytest.importorskip("sentence_transformers", reason="an extra: pip install 'supclap[sentence-transformers]'")
    soundfile.write(tmp_path / "clip.wav", clips[0], 16000, subtype="FLOAT")
    result = through_door(
        prelude, SENTENCE_TRANSFORMER, checkpoint, tmp_path / "cache", clips[0], tmp_path / "clip.wav"
    )
    text = tiny_model.get_text_features(**processor(text=LABELS)).pooler_output
    audio = tiny_model.get_audio_features(**processor(audio=clips[0], sampling_rate=16000)).pooler_output
    np.testing.assert_allclose(result["text"], text, atol=1e-5)
    for form in ("array", "dict", "file"):
        np.testing.assert_allclose(result[form], audio, atol=1e-5)
    assert result["dimension"] == text.shape[1]
    assert result["modalities"] == ["text", "audio"]


def test_sentence_transformer_resamples_by_the_rate_of_the_dict(checkpoint, tiny_model, processor, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="an extra")
    clip = np.random.default_rng(0).uniform(-0.3, 0.3, 44100).astype(np.float32)
    model = sentence_transformers.SentenceTransformer(str(checkpoint), device="cpu")
    with torch.no_grad():
        expected = tiny_model.get_audio_features(**processor(audio=clip, sampling_rate=44100)).pooler_output
    np.testing.assert_allclose(model.encode([{"array": clip, "sampling_rate": 44100}]), expected, atol=1e-5)


def test_no_code_of_a_checkpoint_runs_without_the_flag(checkpoint, clips, tmp_path):
    marker = tmp_path / "code-ran"
    for name in ("modeling_supclap.py", "configuration_supclap.py", "pipeline_supclap.py", "processing_supclap.py"):
        file = checkpoint / name
        file.write_text(f"open({str(marker)!r}, 'w').close()\n" + file.read_text())
    through_door(IMPORT_PACKAGE, AUTO_CLASSES + STOCK_PIPELINE + OUR_PIPELINE, checkpoint, tmp_path / "c", clips[0])
    assert not marker.exists()
    refused = """
from transformers import AutoModel, AutoProcessor, pipeline
result = []
tasks = ("zero-shot-audio-classification", "supclap-zero-shot-audio-classification")
for opens in (
    lambda: AutoModel.from_pretrained(folder, trust_remote_code=False),
    lambda: AutoProcessor.from_pretrained(folder, trust_remote_code=False),
    *(lambda task=task: pipeline(task, model=folder, trust_remote_code=False) for task in tasks),
):
    try:
        opens()
    except ValueError as error:
        result.append("trust_remote_code" in str(error))
"""
    assert through_door(BLOCK_PACKAGE, refused, checkpoint, tmp_path / "c", clips[0]) == [True] * 4
    assert not marker.exists()
