"""What a suite scores: any encoder, embedded once for each checkpoint and content."""

import hashlib

import numpy as np
import pytest
import torch

from supclap.evaluation.cache import EmbeddingCache, content_hash, text_hash
from supclap.evaluation.encoders import ClapEncoder, fingerprint_folder, load_encoder
from supclap.files import DRIFT, MANIFEST
from supclap.training.callbacks.guard_rails import NONFINITE_BATCHES
from supclap.training.callbacks.preemption import PREEMPTED_FILE
from support.scoring import Counter, class_rows, clip, evaluate


def test_an_evaluation_that_was_stopped_goes_on_where_it_was(tmp_path):
    class Killed(Counter):
        def embed_audio(self, audios, batch_size):
            if self.clips >= 16:
                raise KeyboardInterrupt
            return super().embed_audio(audios, batch_size)

    rows = [{"id": f"c{n}", "audio": clip(1, n), "label": "dog"} for n in range(20)]
    with pytest.raises(KeyboardInterrupt):
        evaluate(rows, tmp_path, Killed(), labels=["dog", "cat"])
    encoder = Counter()
    evaluate(rows, tmp_path, encoder, labels=["dog", "cat"])
    assert encoder.clips == 4


def test_another_checkpoint_or_another_content_is_embedded_anew(tmp_path):
    evaluate(class_rows(), tmp_path)
    other = Counter()
    other.fingerprint = "0" * 32
    evaluate(class_rows(), tmp_path, other)
    assert other.clips == 4
    changed = Counter()
    rows = class_rows()
    rows[0]["audio"] = clip(2)
    evaluate(rows, tmp_path, changed)
    assert changed.clips == 1


def test_a_clip_is_known_by_its_content_wherever_it_lies(tmp_path):
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"sound")
    paths = str(tmp_path / "a.bin"), tmp_path / "b.bin", b"sound", {"path": "x", "bytes": b"sound"}
    # as the manifest says that it is computed
    assert {content_hash(clip) for clip in paths} == {hashlib.blake2b(b"sound", digest_size=16).hexdigest()}
    (tmp_path / "b.bin").write_bytes(b"other")
    assert content_hash(paths[0]) != content_hash(paths[1])
    samples = np.ones(4, dtype=np.float32)
    rates = {content_hash({"array": samples, "sampling_rate": rate}) for rate in (16000, 44100)}
    assert len(rates) == 2
    assert text_hash("a", "eng_Latn") != text_hash("a", "deu_Latn")


def test_content_that_cannot_be_read_is_refused():
    with pytest.raises(TypeError, match="needs bytes, path or array"):
        content_hash({"sampling_rate": 16000})
    with pytest.raises(TypeError, match="type int has no content"):
        content_hash(3)


def test_a_file_that_is_no_cache_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to have a header of its own" * 20)
    with pytest.raises(ValueError, match="notes.txt' is no cache"):
        EmbeddingCache(tmp_path / "notes.txt")


def test_the_fingerprint_follows_the_weights_and_not_the_results_beside_them(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = fingerprint_folder(tmp_path)
    for name in ("results.json", "run.json", MANIFEST, DRIFT, NONFINITE_BATCHES, PREEMPTED_FILE):
        (tmp_path / name).write_text("{}")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "model.safetensors").write_bytes(b"others")
    assert fingerprint_folder(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert fingerprint_folder(tmp_path) != before


def test_a_saved_model_embeds_as_it_does_itself(checkpoint, tiny_model, processor, clips):
    from supclap.evaluation import embed_audio, embed_texts

    encoder = load_encoder(checkpoint, "cpu")
    sounds = [{"array": wave, "sampling_rate": 16000} for wave in clips]
    torch.testing.assert_close(encoder.embed_audio(sounds, 2), embed_audio(tiny_model, processor, sounds, 2))
    torch.testing.assert_close(
        encoder.embed_texts(["a dog"], ["eng_Latn"], 2), embed_texts(tiny_model, processor, ["a dog"])
    )


def test_transformers_clap_is_scored_without_its_random_crop(laion):
    encoder = load_encoder(laion, "cpu")
    assert isinstance(encoder, ClapEncoder)
    rng = np.random.default_rng(0)
    long, short = (
        {"array": 0.1 * rng.standard_normal(48000 * s).astype("f4"), "sampling_rate": 48000} for s in (15, 1)
    )
    alone = encoder.embed_audio([long], 1)
    batch = encoder.embed_audio([short, long], 2)
    torch.testing.assert_close(alone[0], batch[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.embed_audio([short], 1)[0], batch[0], atol=1e-5, rtol=0)


def test_transformers_clap_of_a_short_clip_is_its_own_embedding(laion):
    from transformers import ClapFeatureExtractor, ClapModel

    encoder = load_encoder(laion, "cpu")
    wave = 0.1 * np.random.default_rng(1).standard_normal(48000).astype("f4")
    inputs = ClapFeatureExtractor.from_pretrained(laion)(wave, sampling_rate=48000, return_tensors="pt")
    inputs["is_longer"][:] = False
    with torch.no_grad():
        expected = ClapModel.from_pretrained(laion).eval().get_audio_features(**inputs).pooler_output
    actual = encoder.embed_audio([{"array": wave, "sampling_rate": 48000}], 1)
    torch.testing.assert_close(actual, torch.nn.functional.normalize(expected, dim=-1), atol=1e-5, rtol=0)


def test_a_model_of_another_kind_is_refused_with_the_way_out(tmp_path):
    from transformers import BertConfig

    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'bert' model.*Write an adapter"):
        load_encoder(tmp_path)


def test_validation_and_the_end_of_a_run_take_equal_captions_for_one_item(tiny_model, processor, tmp_path):
    from supclap import SupClapTrainer, SupClapTrainingArguments
    from supclap.training.report import evaluate_and_report

    noise = 0.1 * np.random.default_rng(0).standard_normal((4, 8000)).astype(np.float32)
    rows = [
        {"id": f"c{row}", "audio": {"array": wave, "sampling_rate": 16000}, "captions": [f"noise {row}", "noise"]}
        for row, wave in enumerate(noise)
    ]
    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor, eval_dataset=rows)
    metrics = trainer.evaluate()
    (entry,) = evaluate_and_report(trainer, {"test": rows}, rows)["results"]
    # eight captions, of which the four clips share one
    assert metrics["eval_n_text"] == entry["metrics"]["text_to_audio/recall@1"]["n"] == 5
    assert (entry["n_texts"], entry["n_shared_captions"], entry["record"]["protocol"]) == (8, 4, "text")
    assert {name: value["value"] for name, value in entry["metrics"].items()} == pytest.approx(
        {name: metrics[f"eval_{name}"] for name in entry["metrics"]}
    )
    assert entry["metrics_index"]["text_to_audio/recall@1"]["n"] == 8
