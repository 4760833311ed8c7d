"""Suites: from rows to scores, records and files, resumed, with any encoder, and honest about what was not run."""

import csv
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from sklearn.metrics import average_precision_score

from supclap.cli import main
from supclap.commands.evaluate import recorded_choice
from supclap.data.manifest import MANIFEST
from supclap.drift import DRIFT_FILE
from supclap.evaluation import retrieval_metrics
from supclap.evaluation.cache import CachedEncoder, EmbeddingCache, content_hash, text_hash
from supclap.evaluation.encoders import ClapEncoder, fingerprint_folder, load_encoder
from supclap.evaluation.queries import load_queries
from supclap.evaluation.runner import evaluate_suite
from supclap.evaluation.suite import PUBLISHED, Suite, SuiteError, Task, built_in_suites, load_rows, load_suite
from supclap.evaluation.tables import CHOSEN_ON, csv_table, markdown_table, model_index, text_table, write_tables
from supclap.guard import NONFINITE_BATCHES
from supclap.preemption import PREEMPTED_FILE


SHARED = next((up / "shared" / "data" for up in Path(__file__).parents if (up / "shared" / "data").is_dir()), None)
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


# --- zero-shot -----------------------------------------------------------------------------------------------------


def test_zero_shot_scores_clips_folds_and_classes(tmp_path):
    (entry,) = evaluate(class_rows(), tmp_path)
    assert entry["metrics"]["accuracy"]["value"] == 3 / 4
    assert entry["metrics"]["accuracy"]["n"] == entry["n_clips"] == 4
    assert entry["per_fold"] == {"1": 1.0, "2": 0.0}
    with (tmp_path / "out" / entry["per_class"]).open() as file:
        table = list(csv.reader(file))
    assert table == [
        ["label", "clips", "accuracy"],
        ["cat", "2", "0.500000"],
        ["dog", "1", "1.000000"],
        ["rain", "1", "1.000000"],
    ]
    assert (tmp_path / "out" / entry["confusion"]).read_bytes().startswith(b"\x89PNG")


def test_the_prediction_of_every_clip_is_saved(tmp_path):
    (entry,) = evaluate(class_rows(), tmp_path)
    arrays = load_queries(tmp_path / "out" / entry["queries"])
    predicted = dict(zip(arrays["clip_ids"].tolist(), arrays["labels"][arrays["predicted"]].tolist(), strict=True))
    assert predicted == {"dog": "dog", "cat": "cat", "rain": "rain", "odd": "rain"}


def test_spelling_and_templates_make_the_prompts_and_are_recorded(tmp_path):
    encoder = Counter()
    rows = [row | {"label": f"{row['label']}_sound"} for row in class_rows()]
    (entry,) = evaluate(rows, tmp_path, encoder, templates=["a {}", "hear {}"], spelling={"rain_sound": "heavy rain"})
    prompts = {f"{start} {label}" for start in ("a", "hear") for label in ("dog sound", "cat sound", "heavy rain")}
    assert set(encoder.texts) == prompts
    assert entry["record"]["templates"] == ["a {}", "hear {}"]
    assert entry["record"]["labels"]["rain_sound"] == "heavy rain"
    assert entry["metrics"]["accuracy"]["value"] == 3 / 4


def test_the_language_of_labels_reaches_the_encoder(tmp_path):
    encoder = Counter()
    rows = [
        row | {"label": german} for row, german in zip(class_rows(), ("hund", "katze", "regen", "katze"), strict=True)
    ]
    (entry,) = evaluate(rows, tmp_path, encoder, templates=["{}"], language="de")
    assert encoder.languages == ["deu_Latn"] * 3
    assert entry["record"]["language"] == "de"


def test_several_labels_a_clip_give_the_mean_average_precision_of_sklearn(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, (30, 3)).astype(bool)
    audio = rng.random((30, 3)) + 0.5 * targets
    rows = [
        {"id": f"c{row}", "audio": clip(*audio[row]), "labels": [w for w, there in zip(WORDS, targets[row]) if there]}
        for row in range(30)
    ]
    (entry,) = evaluate(rows, tmp_path, templates=["{}"], labels=["dog", "cat", "rain"])
    encoder = Counter()
    unit = torch.nn.functional.normalize
    labels = unit(encoder.embed_texts(["dog", "cat", "rain"], None, 3), dim=-1)
    scores = unit(encoder.embed_audio([row["audio"] for row in rows], 30), dim=-1) @ labels.T
    expected = np.mean([average_precision_score(targets[:, c], scores[:, c]) for c in range(3)])
    metric = entry["metrics"]["mAP"]
    assert metric["value"] == pytest.approx(expected, abs=1e-6)
    assert metric["low"] < metric["value"] < metric["high"]


def test_one_clip_has_a_score_without_an_interval(tmp_path):
    (entry,) = evaluate(class_rows()[:1], tmp_path, labels=["dog", "cat"])
    assert entry["metrics"]["accuracy"] == {"value": 1.0, "low": None, "high": None, "n": 1}


# --- retrieval -----------------------------------------------------------------------------------------------------


def caption_rows():
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


def test_retrieval_equals_the_function_on_the_same_embeddings(tmp_path):
    (entry,) = evaluate(caption_rows(), tmp_path, kind="retrieval")
    encoder = Counter()
    captions = [caption for row in caption_rows() for caption in row["captions"]]
    audio = encoder.embed_audio([row["audio"] for row in caption_rows()], 8)
    unit = torch.nn.functional.normalize
    expected = retrieval_metrics(
        unit(audio, dim=-1), unit(encoder.embed_texts(captions, None, 8), dim=-1), np.repeat([0, 1, 2], [3, 2, 2])
    )
    assert {name: metric["value"] for name, metric in entry["metrics"].items()} == {
        name: value for name, value in expected.items() if "/" in name
    }
    assert (entry["n_clips"], entry["n_texts"], entry["captions_per_clip"]) == (3, 7, [2, 3])
    assert "any-of-k" in entry["record"]["protocols"]["audio_to_text"]


def test_each_language_is_retrieved_by_itself_and_the_mean_is_unweighted(tmp_path):
    encoder = Counter()
    entries = evaluate(caption_rows(), tmp_path, encoder, kind="retrieval", languages=["eng_Latn", "deu_Latn"])
    english, german, mean = entries
    assert [entry["language"] for entry in entries] == ["eng_Latn", "deu_Latn", "mean"]
    assert (english["n_texts"], german["n_texts"]) == (4, 3)
    assert set(encoder.languages) == {"eng_Latn", "deu_Latn"}
    assert encoder.clips == 3
    # the German words for dog and cat are near no clip: only "regen" finds its own
    name = "text_to_audio/recall@1"
    assert (english["metrics"][name]["value"], german["metrics"][name]["value"]) == (1.0, 1 / 3)
    for metric in english["metrics"]:
        average = (english["metrics"][metric]["value"] + german["metrics"][metric]["value"]) / 2
        assert mean["metrics"][metric]["value"] == pytest.approx(average)


def test_a_language_without_captions_fails_and_names_those_there(tmp_path):
    with pytest.raises(AssertionError, match="'fra_Latn'; the languages of the captions are deu_Latn, eng_Latn"):
        evaluate(caption_rows(), tmp_path, kind="retrieval", languages=["fra_Latn"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"captions": [" "]}, r"row 1 \(id 'c'\) has the caption ' '"),
        ({"id": "d"}, "1 rows repeat an id, the first 'd'"),
        ({"language": ["en"]}, r"row 1 \(id 'c'\) has 1 languages for 2 captions"),
        ({"audio": clip(np.nan)}, "Clip 'c' cannot be embedded: .*NaN"),
        ({"audio": "nowhere.wav"}, "Clip 'c': .*nowhere.wav"),
    ],
)
def test_a_bad_row_fails_its_task_and_is_named(tmp_path, change, message):
    rows = caption_rows()
    rows[1] |= change
    with pytest.raises(AssertionError, match=message):
        evaluate(rows, tmp_path, kind="retrieval")


# --- cache and resume ----------------------------------------------------------------------------------------------


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
    for name in ("results.json", "run.json", MANIFEST, DRIFT_FILE, NONFINITE_BATCHES, PREEMPTED_FILE):
        (tmp_path / name).write_text("{}")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "model.safetensors").write_bytes(b"others")
    assert fingerprint_folder(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert fingerprint_folder(tmp_path) != before


# --- encoders ------------------------------------------------------------------------------------------------------


def test_a_saved_model_embeds_as_it_does_itself(checkpoint, tiny_model, processor, clips):
    from supclap.evaluation import embed_audio, embed_texts

    encoder = load_encoder(checkpoint, "cpu")
    sounds = [{"array": wave, "sampling_rate": 16000} for wave in clips]
    torch.testing.assert_close(encoder.embed_audio(sounds, 2), embed_audio(tiny_model, processor, sounds, 2))
    torch.testing.assert_close(
        encoder.embed_texts(["a dog"], ["eng_Latn"], 2), embed_texts(tiny_model, processor, ["a dog"])
    )


@pytest.fixture(scope="module", params=[False, True], ids=["unfused", "fused"])
def laion(request, tmp_path_factory, tokenizer):
    """A tiny random ClapModel saved as the laion/* checkpoints are."""
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    folder = tmp_path_factory.mktemp("clap")
    text = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    audio = {
        "patch_embeds_hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "hidden_size": 32,
        "enable_fusion": request.param,
        "projection_dim": 8,
    }
    config = ClapConfig(
        text_config={**text, "intermediate_size": 32, "projection_dim": 8}, audio_config=audio, projection_dim=8
    )
    torch.manual_seed(0)
    ClapModel(config).save_pretrained(folder)
    ClapFeatureExtractor(truncation="fusion" if request.param else "rand_trunc").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


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


# --- suites --------------------------------------------------------------------------------------------------------


def test_the_built_in_suites_can_be_read():
    assert built_in_suites() == ["maeb", "paper", "zeroshot"]
    assert {task.kind for task in load_suite("maeb").tasks} == {"mteb"}
    paper = {task.name: task for task in load_suite("paper").tasks}
    multilingual = paper["audiocaps-multilingual"]
    assert (
        multilingual.languages == multilingual.options["languages"] == ["en", "fr", "de", "es", "nl", "ca", "ja", "zh"]
    )
    assert paper["esc50"].templates == ["This is a sound of {}"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"kind": "retrieval", "corpus": "x", "langauges": ["en"]},
            "unknown key 'langauges'; did you mean 'languages'",
        ),
        ({"kind": "retreival", "corpus": "x"}, "kind must be one of retrieval, zero_shot, mteb"),
        ({"kind": "retrieval"}, "needs corpus or table, got neither"),
        ({"kind": "retrieval", "table": "x.csv"}, "caption_columns"),
        ({"kind": "zero_shot", "corpus": "x", "templates": ["a sound"]}, "lacks {}"),
        ({"kind": "zero_shot", "corpus": "x", "templates": "{}"}, "templates must be list, got '{}'"),
        ({"kind": "zero_shot", "corpus": "x", "name": "a/b"}, "usable as a file name"),
    ],
)
def test_a_wrong_suite_is_refused_by_file_task_and_key(tmp_path, task, message):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"tasks": [{"name": "one", **task}]}))
    with pytest.raises(SuiteError, match=rf"mine.yaml, task 1.*{re.escape(message)}"):
        load_suite(path)


def test_rows_of_a_corpus_come_from_the_loader_with_split_and_options(tmp_path):
    seen = []
    task = Task("t", "retrieval", corpus="clotho", split="val", options={"skip_bad": True}, data_dir="clotho_v2.1")
    (tmp_path / "clotho_v2.1").mkdir()
    rows = load_rows(task, tmp_path, lambda *args, **kwargs: seen.append((args, kwargs)) or [{"id": "x"}])
    assert rows == [{"id": "x"}]
    assert seen == [(("clotho", tmp_path / "clotho_v2.1"), {"split": "val", "skip_bad": True})]


def test_a_task_of_a_table_leaves_undecodable_and_missing_clips_out_with_skip_bad(tmp_path):
    soundfile.write(tmp_path / "good.wav", np.ones(16000) / 2, 16000)
    (tmp_path / "torn.wav").write_bytes(b"RIFF")
    lines = [f"{name}.wav,a {name}" for name in ("good", "torn", "gone")]
    (tmp_path / "table.csv").write_text("\n".join(["file_name,caption", *lines]))
    task = Task("t", "retrieval", table="table.csv", caption_columns=["caption"])
    rows = load_rows(task, tmp_path, skip_bad=True)
    assert [row["id"] for row in rows] == ["good.wav"]
    assert {item["id"] for item in rows.removed} == {"torn.wav", "gone.wav"}


def test_rows_that_the_loader_left_out_are_counted_in_the_score(tmp_path):
    class Rows(list):
        removed = [{"id": "torn", "reason": "cannot be decoded"}]

    rows = Rows(row | {"audio": clip(*row["audio"]["array"], *[0.0] * 200)} for row in class_rows())
    task = Task("t", "zero_shot", corpus="c", split=[1, 2], data_dir=".", expected_clips=5)
    cached = CachedEncoder(Counter(), EmbeddingCache(tmp_path / "cache.sqlite"))
    seen = []
    summary = evaluate_suite(
        cached,
        Suite("s", (task,)),
        tmp_path,
        tmp_path,
        load_corpus=lambda *args, **kwargs: seen.append(kwargs) or rows,
        skip_bad=True,
        report=lambda line: None,
    )
    assert seen == [{"split": [1, 2], "skip_bad": True}]
    assert (summary["results"][0]["left_out"], summary["results"][0]["split"]) == (["torn"], "1,2")
    assert "4 of 5 clips (1 left out)" in text_table([summary])


# --- tables --------------------------------------------------------------------------------------------------------


def summary_of(tmp_path, chosen_on=None):
    entries = evaluate(class_rows(), tmp_path, chosen_on=chosen_on, expected_clips=5, expected_labels=3)
    missing = {
        "task": "gone",
        "kind": "retrieval",
        "language": None,
        "status": "not run",
        "reason": "data not found at x",
    }
    head = {"checkpoint": "me/model", "fingerprint": "f", "suite": "suite", "chosen_on": chosen_on}
    return {**head, "results": [*entries, missing]}


@pytest.mark.parametrize("chosen_on", [None, "validation", "test", "last"])
def test_every_output_says_how_the_checkpoint_was_chosen(tmp_path, chosen_on):
    summary = summary_of(tmp_path, chosen_on)
    for text in (text_table([summary]), markdown_table([summary])):
        assert CHOSEN_ON[chosen_on] in text
    assert f",suite,{chosen_on or ''}," in csv_table([summary])
    (entry,) = model_index(summary)
    assert entry.metric_args["chosen_on"] == (chosen_on or "not recorded")
    assert ("(checkpoint chosen on test)" in entry.metric_name) == (chosen_on == "test")


def test_the_table_says_what_was_scored_and_what_was_not_run(tmp_path):
    text = text_table([summary_of(tmp_path)])
    assert re.search(r"task +4 of 5 clips, 3 classes +accuracy +75\.00 +\[25\.00, 100\.00\] +4", text)
    assert re.search(r"gone +not run: data not found at x", text)


def test_several_models_stand_side_by_side(tmp_path):
    one = summary_of(tmp_path)
    other = {**one, "checkpoint": "other", "results": [{**one["results"][0], "n_clips": 3}, one["results"][1]]}
    table = markdown_table([one, other])
    assert "| task | on | metric | me/model | other |" in table
    assert (
        "| task | 3 of 5 clips, 3 classes / 4 of 5 clips, 3 classes | accuracy | 75.00 [25.00, 100.00] | 75.00"
        in table
    )


def test_the_files_of_a_summary_can_be_read_back(tmp_path):
    from huggingface_hub import ModelCard

    files = write_tables([summary_of(tmp_path)], tmp_path / "tables")
    assert {file.name for file in files} == {
        "results.md",
        "results.csv",
        "results.png",
        "models.md",
        "model-index.yaml",
    }
    card = ModelCard(f"---\n{(tmp_path / 'tables' / 'model-index.yaml').read_text()}---\n")
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 75.0)
    assert "4 of 5 clips" in result.dataset_name


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, clips):
    """A folder with sounds, a table and a suite, as a user would have it; one task has no data."""
    folder = tmp_path / "mine"
    folder.mkdir()
    lines = ["file_name,caption,label,split"]
    for number in range(4):
        soundfile.write(folder / f"{number}.wav", clips[number % 3] * (1 + number), 16000)
        lines.append(f"{number}.wav,sound number {number},{'ab'[number % 2]},{'test' if number else 'train'}")
    (folder / "table.csv").write_text("\n".join(lines))
    shared = {"table": "table.csv", "where": {"split": "test"}}
    tasks = [
        {"name": "find", "kind": "retrieval", "caption_columns": ["caption"], **shared},
        {"name": "tell", "kind": "zero_shot", "label_column": "label", **shared},
        {"name": "gone", "kind": "retrieval", "corpus": "clotho"},
    ]
    (folder / "suite.yaml").write_text(yaml.safe_dump({"name": "own", "tasks": tasks}))
    return folder / "suite.yaml"


def test_the_command_scores_what_is_there_and_says_what_is_not(checkpoint, own, tmp_path, capsys):
    (checkpoint / "results.json").write_text(json.dumps({"chosen_on": "test"}))
    arguments = ["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main([*arguments, "--format", "json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["chosen_on"] == "test"
    assert [entry["status"] for entry in summary["results"]] == ["done", "done", "not run"]
    assert [entry.get("n_clips") for entry in summary["results"]] == [3, 3, None]
    (folder,) = (tmp_path / "out").glob("*/own")
    assert json.loads((folder / "results.json").read_text()) == summary
    assert main([*arguments, "--require-all"]) == 1
    printed = capsys.readouterr()
    assert f"gone: not run: data not found at {own.parent / 'clotho'}" in printed.err
    assert CHOSEN_ON["test"] in printed.out


def test_what_has_no_data_is_listed_in_a_note_at_the_end(checkpoint, own, tmp_path, capsys):
    assert main(["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]) == 0
    *_, note, line = capsys.readouterr().err.splitlines()
    assert note == "note: tasks without their data were left out."
    assert line == (f"gone: not run: data not found at {own.parent / 'clotho'}. To get: clotho: {PUBLISHED['clotho']}")


def test_a_suite_without_any_data_ends_with_one_message_and_status_2(checkpoint, tmp_path, capsys):
    data = tmp_path / "nowhere"
    arguments = ["--suite", "zeroshot", "--data-dir", str(data), "--output-dir", str(tmp_path / "out")]
    assert main(["evaluate", str(checkpoint), str(checkpoint), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("not run") == 5
    error, *lines = printed.err[printed.err.index("error:") :].splitlines()
    assert error == "error: nothing was scored: no task of the suite zeroshot has its data."
    names = ["esc50", "urbansound8k", "vggsound", "fsd50k", "audioset"]
    assert lines == [
        f"{name}: not run: data not found at {data / name}. To get: {name}: {PUBLISHED[name]}" for name in names
    ]


def test_the_bar_of_each_task_reaches_its_end_also_where_all_is_known(checkpoint, own, tmp_path, capsys):
    arguments = ["evaluate", str(checkpoint), "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    for _ in range(2):
        assert main(arguments) == 0
        bars = re.findall(r"(\w+): 100%\|[^|]*\| 3/3 ", capsys.readouterr().err)
        assert list(dict.fromkeys(bars)) == ["find", "tell"]


def test_models_of_any_kind_are_rows_of_one_table(checkpoint, laion, own, tmp_path, monkeypatch, capsys):
    (tmp_path / "an_adapter.py").write_text(
        "import torch\n"
        "class Model:\n"
        "    name, fingerprint, record = 'adapted', 'y', {}\n"
        "    def __init__(self, weights): assert weights == 'weights.pt'\n"
        "    def embed_audio(self, audios, batch_size): return torch.eye(4)[: len(audios)]\n"
        "    def embed_texts(self, texts, languages, batch_size): return torch.eye(4)[: len(texts)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    models = [str(checkpoint), str(laion), "an_adapter:Model=weights.pt"]
    arguments = ["--suite", str(own), "--output-dir", str(tmp_path / "out"), "--format", "models"]
    assert main(["evaluate", *models, *arguments]) == 0
    table = capsys.readouterr().out
    assert (tmp_path / "out" / "comparison-own" / "models.md").read_text() == table.rstrip("\n") + "\n"
    header, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert header[2:] == [
        *(f"find, {way} R@{k} (3 clips, 3 captions)" for way in ("text to audio", "audio to text") for k in (1, 10)),
        "tell, accuracy (3 clips, 2 classes)",
    ]
    assert [row[0] for row in rows] == [str(checkpoint), str(laion), "adapted"]
    # of the identity: each caption finds its clip
    assert rows[2][2].startswith("100.00 [")
    for row in rows[:2]:
        assert all(re.fullmatch(r"\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", cell) for cell in row[2:])


def test_the_choice_of_a_hub_checkpoint_is_read_from_its_download(tmp_path, monkeypatch):
    commit = "0" * 40
    repo = tmp_path / "models--me--model"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit / "results.json").write_text('{"chosen_on": "test"}')
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert recorded_choice("me/model") == "test"
    assert recorded_choice("me/other") is None
    assert recorded_choice("no id at all, of an adapter") is None


def test_an_adapter_of_yours_is_scored_by_the_same_command(own, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_adapter.py").write_text(
        "import torch\n"
        "class Model:\n"
        "    name, fingerprint, record = 'mine', 'x', {}\n"
        "    def __init__(self, checkpoint): self.checkpoint = checkpoint\n"
        "    def embed_audio(self, audios, batch_size): return torch.eye(4)[: len(audios)]\n"
        "    def embed_texts(self, texts, languages, batch_size): return torch.eye(4)[: len(texts)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["evaluate", "weights.pt", "--suite", str(own), "--output-dir", str(tmp_path / "out")]
    assert main([*arguments, "--encoder", "my_adapter:Model", "--format", "csv"]) == 0
    assert "mine,x,own,,find,retrieval,,done,,3,3,text_to_audio/recall@1,1.0," in capsys.readouterr().out
    assert main([*arguments, "--encoder", "my_adapter:Nothing"]) == 1
    assert "my_adapter:Nothing" in capsys.readouterr().err


def test_a_missing_checkpoint_or_suite_is_named(own, tmp_path, capsys):
    assert main(["evaluate", str(tmp_path / "nowhere"), "--suite", str(own), "--output-dir", str(tmp_path)]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["evaluate", "x", "--suite", "papr"]) == 1
    assert "built in are maeb, paper, zeroshot" in capsys.readouterr().err


@pytest.mark.shared_data
@pytest.mark.skipif(SHARED is None, reason="the development data are not here")
def test_real_recordings_of_esc10_are_scored(checkpoint, tmp_path):
    task = Task(
        "esc10",
        "zero_shot",
        table="metadata.csv",
        data_dir="esc10",
        label_column="label",
        where={"take": ["A"], "fold": [5]},
    )
    encoder = CachedEncoder(load_encoder(checkpoint, "cpu"), EmbeddingCache(tmp_path / "cache.sqlite"))
    summary = evaluate_suite(encoder, Suite("s", (task,)), tmp_path, SHARED / "sounds", report=lambda line: None)
    (entry,) = summary["results"]
    assert entry["status"] == "done"
    assert entry["n_clips"] == encoder.computed - entry["n_labels"] > 10
