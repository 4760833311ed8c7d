"""mteb's real evaluator on tasks made of a few tones, against what the embeddings say."""

from types import SimpleNamespace

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskRetrieval, AbsTaskZeroShotClassification
from mteb.abstasks.task_metadata import TaskMetadata

from supclap.evaluation import retrieval_metrics
from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
from supclap.evaluation.encoders import SupClapEncoder
from supclap.evaluation.mteb import MtebEncoder, model_meta
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import Suite, Task
from support.builders import tone


PITCHES = {"low tone": 200, "middle tone": 700, "high tone": 2500}
METADATA = {
    "description": "Tones made here.",
    "reference": None,
    "dataset": {"path": "local/tones", "revision": "1"},
    "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"],
    "date": ("2025-01-01", "2025-01-01"),
    "domains": [],
    "task_subtypes": [],
    "license": "cc0-1.0",
    "annotations_creators": "derived",
    "dialect": [],
    "modalities": ["audio", "text"],
    "sample_creation": "created",
    "bibtex_citation": "",
}


WAVES = [tone(1.05**take * pitch, 0.4, level=0.2) for pitch in PITCHES.values() for take in (0, 1)]
CLIPS = [{"array": wave, "sampling_rate": 16000} for wave in WAVES]
TARGETS = [label for label in range(3) for _ in range(2)]


class ToneZeroShot(AbsTaskZeroShotClassification):
    metadata = TaskMetadata(
        name="ToneZeroShot", type="AudioZeroshotClassification", category="a2t", main_score="accuracy", **METADATA
    )
    input_column_name = "audio"
    label_column_name = "target"

    def load_data(self, **kwargs):
        self.dataset = DatasetDict({"test": Dataset.from_dict({"audio": CLIPS, "target": TARGETS})})
        self.data_loaded = True

    def get_candidate_labels(self):
        return [f"This is a sound of {label}." for label in PITCHES]


class LocalRetrieval(AbsTaskRetrieval):
    """Clips and captions in one direction, with the relevant items of each query."""

    metadata = TaskMetadata(
        name="TextQueries", type="Any2AnyRetrieval", category="t2a", main_score="hit_rate_at_1", **METADATA
    )

    def __init__(self, clips, captions, text_to_audio, by_text):
        super().__init__()
        if not by_text:
            self.metadata = self.metadata.model_copy(update={"name": "AudioQueries", "category": "a2t"})
        self.sides = [{"id": [f"clip{row}" for row in range(len(clips))], "audio": clips}]
        self.sides.append({"id": [f"caption{row}" for row in range(len(captions))], "text": captions})
        self.by_text = by_text
        self.relevant = {}
        for row, clip in enumerate(text_to_audio):
            query, item = (f"caption{row}", f"clip{clip}") if by_text else (f"clip{clip}", f"caption{row}")
            self.relevant.setdefault(query, {})[item] = 1

    def load_data(self, **kwargs):
        corpus, queries = self.sides if self.by_text else self.sides[::-1]
        split = {"corpus": Dataset.from_dict(corpus), "queries": Dataset.from_dict(queries)}
        self.dataset = {"default": {"test": split | {"relevant_docs": self.relevant, "top_ranked": None}}}
        self.data_loaded = True


class Lookup:
    """A dual encoder whose clips and texts are row numbers of two matrices."""

    name, fingerprint, record = "local/lookup", "0" * 32, {}

    def __init__(self, audio, text):
        self.audio, self.text = audio, text

    def embed_audio(self, audios, batch_size):
        return self.audio[[int(audio["array"][0]) for audio in audios]]

    def embed_texts(self, texts, languages, batch_size):
        return self.text[[int(text) for text in texts]]


@pytest.fixture
def encoder(tiny_model, processor):
    return SupClapEncoder(tiny_model, processor, "tiny/tones", "0" * 32)


def score(task, encoder):
    return mteb.evaluate(MtebEncoder(encoder), task, cache=None, co2_tracker=False, show_progress_bar=False)


def test_mteb_zero_shot_accuracy_is_that_of_the_embeddings(encoder):
    labels = encoder.embed_texts(ToneZeroShot().get_candidate_labels(), None, 8)
    expected = (encoder.embed_audio(CLIPS, 8) @ labels.T).argmax(1) == torch.tensor(TARGETS)
    result = score(ToneZeroShot(), encoder).task_results[0]
    assert result.get_score() == pytest.approx(expected.float().mean().item())


def test_mteb_retrieval_of_tones_gives_our_numbers(encoder):
    captions = [f"{label}, take {take}" for label in PITCHES for take in (1, 2)]
    expected = retrieval_metrics(encoder.embed_audio(CLIPS, 8), encoder.embed_texts(captions, None, 8), np.arange(6))
    scores = score(LocalRetrieval(CLIPS, captions, range(6), by_text=True), encoder).task_results[0].scores["test"][0]
    for k in (1, 5):
        assert scores[f"hit_rate_at_{k}"] == pytest.approx(expected[f"text_to_audio/recall@{k}"], abs=1e-5)


@pytest.mark.parametrize("by_text", [True, False])
def test_retrieval_of_random_embeddings_gives_the_numbers_of_mteb(by_text):
    generator = torch.Generator().manual_seed(0)
    audio = torch.randn(40, 8, generator=generator)
    text_to_audio = np.arange(200) % 40
    text = audio[text_to_audio] + 2 * torch.randn(200, 8, generator=generator)
    audio, text = (torch.nn.functional.normalize(embeds, dim=-1) for embeds in (audio, text))
    clips = [{"array": [float(row)], "sampling_rate": 16000} for row in range(40)]
    task = LocalRetrieval(clips, [str(row) for row in range(200)], text_to_audio, by_text)
    scores = score(task, Lookup(audio, text)).task_results[0].scores["test"][0]
    metrics = retrieval_metrics(audio, text, text_to_audio)
    direction = "text_to_audio" if by_text else "audio_to_text"
    for k in (1, 5, 10):
        assert scores[f"hit_rate_at_{k}"] == pytest.approx(metrics[f"{direction}/recall@{k}"], abs=1e-5)
    assert scores["map_at_10"] == pytest.approx(metrics[f"{direction}/mAP@10"], abs=1e-5)
    assert 0.1 < metrics[f"{direction}/recall@10"] < 0.95


def test_metadata_carry_licence_and_training_data():
    meta = model_meta("me/model", license="cc-by-nc-4.0", training_datasets={"Clotho"}, revision="abc")
    assert (meta.license, meta.training_datasets, meta.revision) == ("cc-by-nc-4.0", {"Clotho"}, "abc")
    assert model_meta("outputs/runs/one").name == "local/outputs--runs--one"
    with pytest.raises(ValueError, match="license"):
        model_meta("me/model", license="free as in beer")


def test_the_loader_of_the_metadata_opens_the_checkpoint(checkpoint):
    model = model_meta("me/model", checkpoint=str(checkpoint)).load_model(device="cpu")
    assert isinstance(model, MtebEncoder)
    loader = [{"text": ["a dog"]}]
    metadata = SimpleNamespace(name="x", hf_subsets_to_langscripts={"default": ["eng-Latn"]})
    assert model.encode(loader, task_metadata=metadata, hf_split="test", hf_subset="default").shape == (1, 32)


def test_a_task_of_mteb_in_a_suite_gives_its_main_score(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(mteb, "get_task", lambda name: ToneZeroShot())
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "mteb"))
    suite = Suite("one", (Task("tones", "mteb", mteb_task="ToneZeroShot"),))
    cached = CachedEncoder(encoder, EmbeddingCache(tmp_path / "cache.sqlite"))
    (entry,) = evaluate_suite(cached, suite, tmp_path, tmp_path, report=lambda line: None)["results"]
    assert entry["status"] == "done"
    expected = score(ToneZeroShot(), encoder).task_results[0].get_score()
    assert entry["metrics"]["accuracy"]["value"] == pytest.approx(expected, abs=1e-6)  # mteb's results have six digits


def test_a_task_whose_data_mteb_cannot_fetch_is_not_run_and_says_so(encoder, tmp_path):
    suite = Suite("one", (Task("esc50", "mteb", mteb_task="ESC50_Zeroshot"),))
    cached = CachedEncoder(encoder, EmbeddingCache(tmp_path / "cache.sqlite"))
    (entry,) = evaluate_suite(cached, suite, tmp_path, tmp_path, report=lambda line: None)["results"]
    assert entry["status"] == "not run"
    assert "ESC50_Zeroshot cannot be had" in entry["reason"]
