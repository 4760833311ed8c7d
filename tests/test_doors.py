"""A saved folder opens through the Auto classes, the pipelines and SentenceTransformer, each in a process of its own,
with the package and with remote code only.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, AutoTokenizer, pipeline
from transformers.dynamic_module_utils import get_imports, get_relative_import_files, get_relative_imports

import supclap
from support.builders import build_tiny_config, build_tiny_model
from support.doors import (
    BOTH,
    LABELS,
    ONLY_WITH_PACKAGE,
    ONLY_WITHOUT_PACKAGE,
    WITH_PACKAGE,
    WITHOUT_PACKAGE,
    poison,
    through_doors,
)


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


@pytest.fixture(scope="module")
def shared_checkpoint(tokenizer, processor, tmp_path_factory):
    """A saved folder that the tests of this module read and none changes."""
    folder = tmp_path_factory.mktemp("shared") / "checkpoint"
    build_tiny_model(build_tiny_config(tokenizer)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip():
    return (0.1 * np.random.default_rng(0).standard_normal(16000)).astype(np.float32)


@pytest.fixture(scope="module")
def with_package(shared_checkpoint, clip, tmp_path_factory):
    program = WITH_PACKAGE + BOTH + ONLY_WITH_PACKAGE
    return through_doors(program, shared_checkpoint, tmp_path_factory.mktemp("package"), clip)


@pytest.fixture(scope="module")
def remote_code(shared_checkpoint, clip, tmp_path_factory):
    program = WITHOUT_PACKAGE + BOTH + ONLY_WITHOUT_PACKAGE
    return through_doors(program, shared_checkpoint, tmp_path_factory.mktemp("remote"), clip)


@pytest.mark.parametrize(
    ("process", "door"),
    [
        *(("with_package", door) for door in ("Auto classes", "stock pipeline", "own task")),
        *(("with_package", door) for door in ("supclap.pipeline", "pipeline_class")),
        *(("remote_code", door) for door in ("Auto classes", "stock pipeline", "own task")),
        *(("remote_code", door) for door in ("saved again", "saved again, own task")),
        *(
            (process, door)
            for process in ("with_package", "remote_code")
            for door in ("saved by the pipeline", "saved by the pipeline, own task")
        ),
    ],
)
@torch.no_grad()
def test_a_door_gives_the_scores_of_the_model(process, door, tiny_model, processor, clip, request):
    inputs = processor(text=LABELS, audio=[clip], sampling_rate=16000, return_tensors="pt")
    expected = tiny_model(**inputs).logits_per_audio.softmax(-1)[0]
    np.testing.assert_allclose(request.getfixturevalue(process)[door], expected, atol=1e-5)


@pytest.mark.parametrize("process", ["with_package", "remote_code"])
@torch.no_grad()
def test_sentence_transformer_gives_the_embeddings_of_the_model(process, tiny_model, processor, clip, request):
    pytest.importorskip("sentence_transformers", reason="it is an extra")
    result = request.getfixturevalue(process)["SentenceTransformer"]
    text = tiny_model.get_text_features(**processor(text=LABELS)).pooler_output
    np.testing.assert_allclose(result["text"], text, atol=1e-5)
    for form, rate in {"array": 16000, "dict": 16000, "file": 16000, "another rate": 44100}.items():
        audio = tiny_model.get_audio_features(**processor(audio=clip, sampling_rate=rate)).pooler_output
        np.testing.assert_allclose(result[form], audio, atol=1e-5)
    assert result["dimension"] == text.shape[1]
    assert result["modalities"] == ["text", "audio"]


def test_a_code_file_names_every_file_it_needs(shared_checkpoint):
    """Transformers before 5.8 copies what a file of a local folder imports, but not what that imports in turn."""
    with_auto_class = ("configuration", "modeling", "processing", "feature_extraction", "encoder_features", "pipeline")
    for name in ("modeling_ced", *(f"{name}_supclap" for name in with_auto_class)):
        file = shared_checkpoint / f"{name}.py"
        needed = {path.split("/")[-1] for path in get_relative_import_files(file)}
        assert needed - {file.name} <= {f"{module}.py" for module in get_relative_imports(file)}, file.name


ROOT = Path(supclap.__file__).parent.parent
TRAVELING = sorted([*ROOT.glob("modeling_supclap/*.py"), *ROOT.glob("processing_supclap/*.py")])


@pytest.mark.parametrize("file", TRAVELING, ids=lambda file: file.name)
def test_a_code_file_needs_no_package_that_transformers_does_not_bring(file):
    """Transformers refuses remote code whose imports, also those that it takes for some in docstrings, are missing."""
    packages = set(get_imports(file)) - sys.stdlib_module_names
    assert packages <= {"torch", "numpy", "transformers", "huggingface_hub"}


@pytest.mark.parametrize("file", TRAVELING, ids=lambda file: file.name)
def test_a_code_file_imports_its_siblings_alone(file):
    siblings = {path.stem for path in file.parent.glob("*.py")}
    assert set(get_relative_imports(file)) <= siblings


WITHOUT_PLANNED_REMOVALS = """
import numpy, transformers, transformers.audio_utils
for name in ("mel_filter_bank", "spectrogram", "spectrogram_batch", "power_to_db_batch", "amplitude_to_db_batch"):
    delattr(transformers.audio_utils, name)
transformers.SequenceFeatureExtractor = None
import modeling_supclap.modeling_supclap
from processing_supclap import SupClapFeatureExtractor
print(SupClapFeatureExtractor()(numpy.zeros(16000), 16000)["input_features"].shape)
"""


def test_the_code_works_without_what_transformers_plans_to_remove():
    """huggingface/transformers#48115 removes these functions, and a checkpoint on the Hub keeps the code it has."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PLANNED_REMOVALS], capture_output=True, text=True)
    assert done.stdout.strip() == "torch.Size([1, 101, 64])", done.stderr


def test_no_code_of_a_checkpoint_runs_without_the_flag(remote_code):
    assert remote_code["refused"] == [True] * 4
    assert not remote_code["poisoned code ran"]


def test_no_code_of_a_checkpoint_runs_where_the_package_is_imported(checkpoint, tmp_path):
    poison(checkpoint, tmp_path / "code-ran")
    AutoModel.from_pretrained(checkpoint)
    AutoProcessor.from_pretrained(checkpoint)
    pipeline("zero-shot-audio-classification", model=str(checkpoint))
    supclap.pipeline(str(checkpoint))
    assert not (tmp_path / "code-ran").exists()
