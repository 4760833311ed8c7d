"""Rows, an encoder that can be read off, and a task on them."""

import numpy as np
import torch

from supclap.evaluation.cache import CachedEncoder, EmbeddingCache
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import Suite, Task


WORDS = ("dog", "cat", "rain", "hund", "katze", "regen")


class Counter:
    """A dual encoder that can be read off: word counts of a text; the first six samples of a clip. It counts its work."""

    name, fingerprint = "counter", "f" * 32
    record = {"audio": "first six samples"}

    def __init__(self):
        self.clips, self.texts, self.languages = 0, [], []

    def embed_audio(self, audios, batch_size):
        if any(np.isnan(audio["array"]).any() for audio in audios):
            raise ValueError("audio[0] has NaN samples")
        self.clips += len(audios)
        return torch.tensor(np.stack([audio["array"][:6] for audio in audios]))

    def embed_texts(self, texts, languages, batch_size):
        self.texts += texts
        self.languages += languages or []
        return torch.tensor([[float(text.strip(".").split().count(word)) for word in WORDS] for text in texts]) + 0.01


def clip(*weights):
    return {"array": np.array([*weights, *[0.0] * (6 - len(weights))], dtype=np.float32), "sampling_rate": 16000}


CLASSES = {"dog": clip(1), "cat": clip(0, 1), "rain": clip(0, 0, 1)}


def class_rows():
    """Four clips: three are near their class, the fourth, a cat, is nearest to rain."""
    rows = [{"id": name, "audio": audio, "label": name, "fold": 1} for name, audio in CLASSES.items()]
    return [*rows, {"id": "odd", "audio": clip(0, 0.4, 1), "label": "cat", "fold": 2}]


def caption_rows():
    """Three clips with captions in English and German."""
    return [
        {
            "id": "d",
            "audio": clip(1),
            "captions": ["dog", "dog dog cat", "hund"],
            "language": ["eng_Latn", "en", "de"],
        },
        {"id": "c", "audio": clip(0, 1), "captions": ["cat", "katze"], "language": ["en", "deu_Latn"]},
        {"id": "r", "audio": clip(0, 0, 1, 0.9), "captions": ["rain", "regen"], "language": ["en", "de"]},
    ]


def evaluate(rows, tmp_path, encoder=None, chosen_on=None, **task):
    """Runs one task on rows and returns its entries."""
    task = {"name": "task", "kind": "zero_shot", "corpus": "rows", "data_dir": ".", **task}
    cached = CachedEncoder(encoder or Counter(), EmbeddingCache(tmp_path / "cache.sqlite"), batch_size=2)
    summary = evaluate_suite(
        cached,
        Suite("suite", (Task(**task),)),
        tmp_path / "out",
        tmp_path,
        chosen_on,
        load_corpus=lambda name, folder, split: rows,
        report=lambda line: None,
    )
    for entry in summary["results"]:
        assert entry["status"] == "done", entry["reason"]
    return summary["results"]
