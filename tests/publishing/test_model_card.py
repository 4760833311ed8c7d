"""The card says what the run recorded, and nothing else; its snippets run."""

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from huggingface_hub import ModelCard
from transformers import Wav2Vec2Model

from supclap import SupClapEncoderFeatureExtractor, SupClapModel, SupClapProcessor
from supclap.data import CorpusMixture, build_manifest
from supclap.data.arguments import DataArguments
from supclap.data.rows import LazyRows
from supclap.errors import CheckpointError, LicenseError
from supclap.evaluation.tables import CHOSEN_ON, model_index
from supclap.publishing.model_card import MARKER, build_card, write_card
from supclap.publishing.run_record import record_run
from supclap.recipes.arguments import ModelArguments
from supclap.training.arguments import SupClapTrainingArguments
from supclap_cli import main
from support.builders import ENCODERS, build_with_encoder


ROWS = {
    "train": [
        {"id": "a", "captions": ["a dog"], "duration": "1800", "source": "pack: a", "licence": "CC0 1.0"},
        {
            "id": "b",
            "captions": ["rain"],
            "duration": 1800,
            "source": "pack: b",
            "licence": "CC BY 3.0",
            "author": "B",
        },
    ],
    "test": [{"id": "c", "captions": ["a cat", "a cat meows"], "licence": "CC0 1.0"}],
}
RECALL = {"value": 0.25, "low": 0.125, "high": 0.5, "n": 2}
ENTRY = {"status": "done", "language": None, "data": "tones", "split": "test", "n_clips": 1, "record": {}}
RETRIEVAL = {
    **ENTRY,
    "task": "retrieval",
    "kind": "retrieval",
    "n_texts": 2,
    "pool_size": None,
    "metrics": {"text_to_audio/recall@1": RECALL},
}
ZERO_SHOT = {
    **ENTRY,
    "task": "zero_shot",
    "kind": "zero_shot",
    "n_clips": 4,
    "n_labels": 2,
    "record": {"templates": ["a {} sound"]},
    "metrics": {"accuracy": {"value": 0.75, "low": 0.5, "high": 1.0, "n": 4}},
}


def results_of(*entries, chosen_on="last"):
    """What the end of a training run writes."""
    head = {"checkpoint": "outputs/x", "fingerprint": "f" * 32, "suite": "test", "seed": 3, "steps": 12}
    return {**head, "chosen_on": chosen_on, "results": list(entries)}


RESULTS = results_of(RETRIEVAL, ZERO_SHOT)


def set_results(folder, *entries, **head):
    (folder / "results.json").write_text(json.dumps(results_of(*entries, **head)))


def manifest_of(splits):
    return build_manifest(splits, content_hashes=False)


def describe_split(rows):
    return manifest_of({"split": rows})["splits"]["split"]


@pytest.fixture
def run_folder(checkpoint, tmp_path):
    """A checkpoint with what a run leaves beside it."""
    encoder = tmp_path / "text-encoder"
    encoder.mkdir()
    (encoder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    recipe = {
        **dataclasses.asdict(ModelArguments(text_model=str(encoder), audio_model="random:ced-tiny")),
        **dataclasses.asdict(DataArguments(data_dir="some/where/tones")),
        **SupClapTrainingArguments(str(tmp_path / "out"), zero_shot_templates=["a {} sound"]).to_dict(),
    }
    (checkpoint / "recipe.json").write_text(json.dumps(recipe))
    (checkpoint / "results.json").write_text(json.dumps(RESULTS))
    (checkpoint / "training_curves.png").write_bytes(b"\x89PNG")
    set_text_config(checkpoint, _name_or_path=str(encoder))
    end_run(checkpoint)
    return checkpoint


def snippets_of(card):
    return re.findall(r"```python\n(.*?)```", card.read_text(), flags=re.DOTALL)


def set_recipe(folder, **changes):
    """Changes the recipe of the run, which ends again."""
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**recipe, **changes}))
    end_run(folder)


def end_run(folder):
    record_run(folder, manifest_of(ROWS), seconds=90, first_step=0, last_step=12, processes=1)


def set_text_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def test_model_index_holds_every_figure_with_interval_number_revision_and_protocol(run_folder):
    data = ModelCard.load(write_card(run_folder)).data
    retrieval, zero_shot = data.eval_results
    assert (retrieval.metric_type, retrieval.metric_value) == ("text_to_audio/recall@1", 25.0)
    shared = {"chosen_on": "last", "fingerprint": "f" * 32, "unit": "%"}
    assert retrieval.metric_args == {**shared, "interval_95": [12.5, 50.0], "n": 2}
    assert retrieval.dataset_args == {"n_clips": 1, "n_texts": 2}
    assert retrieval.dataset_revision == describe_split(ROWS["test"])["revision"]
    assert (retrieval.dataset_type, retrieval.dataset_split) == ("tones", "test")
    assert (zero_shot.task_type, zero_shot.metric_value) == ("zero-shot-audio-classification", 75.0)
    assert zero_shot.metric_args == {**shared, "templates": ["a {} sound"], "interval_95": [50.0, 100.0], "n": 4}
    assert {"custom_code", "sentence-transformers"} <= set(data.tags)


def test_the_text_tells_data_objective_settings_machine_and_curves(run_folder):
    text = write_card(run_folder).read_text()
    assert "| train | 2 | 1 | CC0 1.0 (1), CC BY 3.0 (1) |" in text
    assert "| test | 1 | unknown | CC0 1.0 (1) |" in text
    assert "Authors named by the training rows: B." in text
    assert "InfoNCE in both directions, summed, and support vector regularization in both directions" in text
    assert "| learning_rate | 5e-05 |" in text
    assert "took 1.5 minutes" in text
    assert "Energy and CO2 were not measured; with `pip install codecarbon` and `report_to: codecarbon`" in text
    assert "](training_curves.png)" in text
    assert "| audio-text retrieval: text to audio, recall@1 | 25.0 | 12.5 to 50.0 | 2 |" in text


def test_the_layers_of_an_htsat_are_those_of_all_its_stages(tokenizer, tmp_path):
    for part in build_with_encoder("htsat", tokenizer):
        part.save_pretrained(tmp_path)
    assert "- audio encoder: `clap_audio_model`, 3 layers, 16 wide" in write_card(tmp_path).read_text()


@pytest.mark.parametrize(("max_steps", "listed"), [(20, False), (-1, True)])
def test_a_number_of_epochs_that_max_steps_overrides_is_not_listed(run_folder, max_steps, listed):
    set_recipe(run_folder, max_steps=max_steps, num_train_epochs=3)
    assert ("| num_train_epochs | 3 |" in write_card(run_folder).read_text()) is listed


@pytest.mark.parametrize("chosen_on", [None, "validation", "test", "last"])
def test_the_card_and_its_index_say_how_the_checkpoint_was_chosen(run_folder, chosen_on):
    set_results(run_folder, RETRIEVAL, ZERO_SHOT, chosen_on=chosen_on)
    card = ModelCard.load(write_card(run_folder))
    assert CHOSEN_ON[chosen_on] in card.text
    assert {entry.metric_args["chosen_on"] for entry in card.data.eval_results} == {chosen_on or "not recorded"}
    assert ("recall@1 (checkpoint chosen on test) |" in card.text) == (chosen_on == "test")


def test_a_card_and_an_evaluation_write_the_same_entries_for_the_same_figures(run_folder):
    (run_folder / "run.json").unlink()  # it has the revision of the data, which an evaluation does not know
    assert ModelCard.load(write_card(run_folder)).data.eval_results == model_index(RESULTS)


def test_a_figure_without_an_interval_is_written_without_one(run_folder):
    only = {"value": 1.0, "low": None, "high": None, "n": 1}
    set_results(run_folder, {**RETRIEVAL, "metrics": {"text_to_audio/recall@1": only}})
    assert "recall@1 | 100.0 | none | 1 |" in write_card(run_folder).read_text()


def test_a_median_rank_is_no_percentage(run_folder):
    median = {"value": 2.0, "low": None, "high": None, "n": 2}
    set_results(run_folder, {**RETRIEVAL, "metrics": {"text_to_audio/median_rank": median}})
    assert "text to audio, median rank | rank 2.0 | none | 2 |" in write_card(run_folder).read_text()


def test_the_card_says_over_which_languages_a_figure_is_a_mean(run_folder):
    codes = ["eng_Latn", "fra_Latn"]
    each = [{**RETRIEVAL, "language": code} for code in codes]
    set_results(run_folder, *each, {**RETRIEVAL, "language": "mean", "record": {"languages": codes}})
    card = ModelCard.load(write_card(run_folder))
    assert "- retrieval (mean): 1 clips, 2 captions; the unweighted mean over eng_Latn, fra_Latn" in card.text
    assert "| audio-text retrieval (fra_Latn): text to audio, recall@1 | 25.0 | 12.5 to 50.0 | 2 |" in card.text
    by_language = {entry.dataset_config: entry.metric_args.get("languages") for entry in card.data.eval_results}
    assert by_language == {"eng_Latn": None, "fra_Latn": None, "mean": codes}


def test_the_card_says_how_many_clips_a_pool_has_and_which_templates_were_used(run_folder):
    set_results(run_folder, {**RETRIEVAL, "n_clips": 300, "pool_size": 100}, ZERO_SHOT)
    text = write_card(run_folder).read_text()
    assert "- retrieval: 300 clips, in pools of 100, 2 captions\n" in text
    assert "- zero_shot: 4 clips, 2 classes, templates `a {} sound`\n" in text


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("text", "protocol text: a text that several clips have is one item and right for each of them"),
        ("index", "protocol index: each caption belongs to one clip only, also where others have its text"),
    ],
)
def test_the_card_names_the_protocol_of_a_retrieval(run_folder, protocol, said):
    set_results(run_folder, {**RETRIEVAL, "record": {"protocol": protocol}})
    card = ModelCard.load(write_card(run_folder))
    assert f"- retrieval: 1 clips, 2 captions; {said}\n" in card.text
    assert [one.metric_args["protocol"] for one in card.data.eval_results] == [protocol]


def test_the_card_shows_the_figures_of_both_protocols_where_they_differ(run_folder):
    shared = {"record": {"protocol": "text"}, "n_different_texts": 1}
    other = {"metrics_index": {"text_to_audio/recall@1": {**RECALL, "value": 0.125}}}
    set_results(run_folder, {**RETRIEVAL, **shared, **other})
    text = write_card(run_folder).read_text()
    assert "2 captions (1 different)" in text
    assert "| audio-text retrieval: text to audio, recall@1 | 25.0 |" in text
    assert "| audio-text retrieval: text to audio, recall@1 (index) | 12.5 |" in text


def test_results_of_an_older_version_are_not_shown(run_folder):
    old = {"seed": 3, "chosen_on": "last", "retrieval": {"text_to_audio/recall@1": RECALL}}
    (run_folder / "results.json").write_text(json.dumps(old))
    card = ModelCard.load(write_card(run_folder))
    assert card.data.eval_results is None
    assert "were written by an older version and are not shown" in card.text


def test_what_the_rows_of_the_data_say_cannot_add_to_the_card(run_folder):
    author = "Eve<script>alert(1)</script>\n\n## Licence\n\nMIT ![t](http://evil.example/t.png)"
    licence = "CC-BY | [free](http://evil.example)\n# Free"
    row = {**ROWS["train"][0], "author": author, "licence": licence, "source": "a`b*c\n\n# d"}
    record_run(run_folder, manifest_of({**ROWS, "train": [row]}), seconds=1, first_step=0, last_step=1)
    text = write_card(run_folder).read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert not {"## Licence", "# Free", "# d"} & set(headings)
    assert "<script>" not in text
    assert "](http" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("| train |")]
    assert len(re.findall(r"(?<!\\)\|", line)) == 6


def test_the_card_lists_the_mixture_the_languages_and_the_leak_lists(run_folder, tmp_path):
    changes = {
        "corpora": [{"corpus": "clotho", "data_dir": str(tmp_path / "clotho_v2.1"), "weight": 2}],
        "epoch_size": 500,
        "language_weights": {"en": 1, "fr": 3},
        "exclude_leaks_of": ["audiocaps", str(tmp_path / "own.csv")],
        "choose_checkpoint_on": "test",
    }
    set_recipe(run_folder, **changes)
    text = write_card(run_folder, "me/model").read_text()
    assert '| corpora | [{"corpus": "clotho", "data_dir": "clotho_v2.1", "weight": 2}] |' in text
    assert "| epoch_size | 500 |" in text
    assert '| language_weights | {"en": 1, "fr": 3} |' in text
    assert '| exclude_leaks_of | ["audiocaps", "own.csv"] |' in text
    assert "| choose_checkpoint_on | test |" in text
    assert str(tmp_path) not in text


def write_emissions(folder, *rows):
    lines = ["timestamp,project_name,run_id,duration,emissions", *rows]
    (folder / "emissions.csv").write_text("\n".join(lines) + "\n")


def test_the_emissions_that_codecarbon_wrote_are_in_metadata_and_text(run_folder):
    write_emissions(run_folder, "2026-01-02T03:04:05,codecarbon,a,90.5,0.0125")
    card = ModelCard.load(write_card(run_folder))
    machine = json.loads((run_folder / "run.json").read_text())["machine"]
    hardware = f"{len(machine['accelerators'])} x {machine['accelerators'][0]}" if machine["accelerators"] else None
    assert card.data.co2_eq_emissions == {
        "emissions": 12.5,  # the Hub counts in grams
        "source": "codecarbon",
        "training_type": "pre-training",
        "hardware_used": hardware or machine["processor"],
    }
    assert "training emitted 0.0125 kg of CO2 equivalents." in card.text
    assert "not measured" not in card.text


def test_the_emissions_of_a_resumed_run_are_those_of_each_process_once(run_folder):
    record_run(run_folder, manifest_of(ROWS), seconds=90, first_step=8, last_step=12, processes=1)
    write_emissions(run_folder, "t,p,a,1,0.001", "t,p,a,2,0.002", "t,p,b,1,0.004")
    card = ModelCard.load(write_card(run_folder))
    assert card.data.co2_eq_emissions["emissions"] == 6
    assert "0.006 kg of CO2 equivalents in the 2 of its parts that were not killed." in card.text


def test_a_torn_file_of_emissions_is_named(run_folder):
    write_emissions(run_folder, "t,p,a,1,")
    with pytest.raises(ValueError, match=r"emissions\.csv is no whole file of codecarbon"):
        write_card(run_folder)


def test_the_card_names_no_folder_of_the_machine(run_folder, tmp_path):
    text = write_card(run_folder, "me/model").read_text()
    assert str(tmp_path) not in text
    assert "Started from `text-encoder`" in text


def test_a_text_encoder_that_is_not_there_states_no_license(run_folder):
    set_text_config(run_folder, _name_or_path="/elsewhere/encoder")
    end_run(run_folder)
    assert "The text encoder (text-encoder) states no license." in write_card(run_folder).read_text()


def test_a_resumed_run_says_that_its_first_part_is_not_in_the_time(run_folder):
    record_run(run_folder, manifest_of(ROWS), seconds=90, first_step=8, last_step=12, processes=1)
    assert "the time before step 8 is not recorded" in write_card(run_folder).read_text()


def test_a_checkpoint_without_a_run_claims_nothing(checkpoint):
    card = ModelCard.load(write_card(checkpoint))
    assert card.data.eval_results is None
    assert card.data.license == "other"
    assert "Not evaluated." in card.text
    assert "Nothing is recorded about the training data." in card.text


@pytest.mark.parametrize("tower", ["text", "audio"])
def test_a_model_saved_by_hand_has_the_licences_of_the_folders_its_towers_came_from(
    tower, text_encoder, tokenizer, tmp_path
):
    folders = {"text": tmp_path / "text", "audio": tmp_path / "audio"}
    shutil.copytree(text_encoder, folders["text"])
    config, extractor, window = ENCODERS["wav2vec2"]
    Wav2Vec2Model(config()).save_pretrained(folders["audio"])
    (folders[tower] / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    model = SupClapModel.from_text_audio_pretrained(
        str(folders["text"]), str(folders["audio"]), projection_dim=16, audio_window=window
    )
    model.save_pretrained(tmp_path / "model")
    SupClapProcessor(SupClapEncoderFeatureExtractor(extractor()), tokenizer).save_pretrained(tmp_path / "model")
    assert build_card(tmp_path / "model").data.license == "cc-by-nc-4.0"
    with pytest.raises(LicenseError, match=f"The {tower} encoder .*allows no commercial use"):
        build_card(tmp_path / "model", "me/x", "apache-2.0")


def test_a_non_commercial_tower_makes_a_non_commercial_card_and_refuses_apache(run_folder, tmp_path, capsys):
    (tmp_path / "text-encoder" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    end_run(run_folder)
    assert ModelCard.load(write_card(run_folder)).data.license == "cc-by-nc-4.0"
    with pytest.raises(LicenseError, match="allows no commercial use"):
        write_card(run_folder, license="apache-2.0")
    assert main(["card", str(run_folder), "--license", "apache-2.0"]) == 1
    assert "'apache-2.0' is refused" in capsys.readouterr().err


def test_the_licence_of_the_model_that_training_went_on_from_carries_over(run_folder, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: cc-by-nc-sa-4.0\n---\n")
    set_recipe(run_folder, checkpoint=str(base), text_model=None)
    assert ModelCard.load(write_card(run_folder)).data.license == "cc-by-nc-sa-4.0"


@pytest.mark.parametrize("card", [None, "---\nlicense: other\nlicense_name: unknown-terms\n---\n"])
def test_a_model_trained_on_from_one_with_sonars_encoder_stays_non_commercial(run_folder, tmp_path, card):
    base = tmp_path / "base"
    base.mkdir()
    if card:
        (base / "README.md").write_text(card)
    set_text_config(run_folder, model_type="m2m_100")
    set_recipe(run_folder, checkpoint=str(base), text_model=None)
    assert ModelCard.load(write_card(run_folder)).data.license == "cc-by-nc-4.0"
    with pytest.raises(LicenseError, match="allows no commercial use"):
        write_card(run_folder, license="apache-2.0")


def test_a_card_written_in_another_folder_keeps_the_licences_of_the_run(run_folder, tmp_path, monkeypatch):
    (tmp_path / "text-encoder" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    monkeypatch.chdir(tmp_path)
    set_text_config(run_folder, _name_or_path="text-encoder")
    end_run(run_folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(LicenseError, match="allows no commercial use"):
        write_card(run_folder, license="apache-2.0")


def test_a_readme_of_someone_else_is_kept(checkpoint):
    (checkpoint / "README.md").write_text("# My project\n")
    with pytest.raises(FileExistsError, match="was not written by `supclap card`"):
        write_card(checkpoint)
    assert (checkpoint / "README.md").read_text() == "# My project\n"
    write_card(checkpoint, force=True)
    assert MARKER in write_card(checkpoint).read_text()


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        write_card(tmp_path)


def test_a_torn_record_is_named(checkpoint):
    (checkpoint / "results.json").write_text('{"seed": ')
    with pytest.raises(ValueError, match=r"results\.json is no JSON"):
        write_card(checkpoint)


@pytest.mark.parametrize(
    ("file", "content", "field"),
    [("run.json", {"data": {}}, "train"), ("processor_config.json", {}, "feature_extractor")],
)
def test_a_record_that_lacks_a_field_is_named_with_the_field(run_folder, file, content, field):
    (run_folder / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{re.escape(file)} is not whole: '{field}' is missing"):
        write_card(run_folder)


@pytest.mark.parametrize(
    ("name", "input_features"),
    [
        ("ast", "32 mel bands"),
        ("htsat", "16 mel bands"),
        ("whisper", "20 mel bands"),
        ("wav2vec2", "the waveform itself"),
        ("hubert", "the waveform itself"),
        ("wavlm", "the waveform itself"),
    ],
)
def test_the_card_tells_what_another_encoder_hears_and_its_window_of_a_second(
    name, input_features, tokenizer, tmp_path
):
    for part in build_with_encoder(name, tokenizer):
        part.save_pretrained(tmp_path)
    text = write_card(tmp_path).read_text()
    assert f"(other rates and channels are converted), {input_features}\n" in text
    assert "Clips longer than 1 s are embedded" in text


def test_the_card_of_a_ced_tells_its_mel_bands_and_window(checkpoint):
    text = write_card(checkpoint).read_text()
    assert "(other rates and channels are converted), 64 mel bands\n" in text
    assert "Clips longer than 10.12 s are embedded" in text


@pytest.mark.parametrize(("of_tokenizer", "said"), [(40, 40), (10**30, 64)])
def test_the_limit_of_texts_is_the_lower_one_of_tokenizer_and_positions(checkpoint, of_tokenizer, said):
    file = checkpoint / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": of_tokenizer}))
    assert f"The text encoder reads up to {said} tokens;" in write_card(checkpoint).read_text()


def test_a_template_with_quotes_is_quoted_in_the_snippet(run_folder):
    template = 'they say "{}" \\ loudly'
    set_recipe(run_folder, zero_shot_templates=[template])
    snippet = next(code for code in snippets_of(write_card(run_folder)) if "hypothesis_template" in code)
    values = {
        node.arg: node.value.value
        for node in ast.walk(ast.parse(snippet))
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant)
    }
    assert values["hypothesis_template"] == template


def test_the_revision_of_a_split_changes_with_a_caption():
    changed = [{**ROWS["test"][0], "captions": ["a cat", "a cat purrs"]}]
    assert describe_split(changed)["revision"] != describe_split(ROWS["test"])["revision"]


def test_run_and_card_list_every_clip_of_a_mixture_and_the_hosts_of_addresses(run_folder):
    def part(name, count):
        row = {"captions": ["x"], "source": f"https://{name}.org/1", "licence": "CC0 1.0"}
        return [{"id": f"{name}{number}", **row} for number in range(count)]

    mixture = CorpusMixture({"a": part("a", 30), "b": part("b", 3)}, weights={"a": 1, "b": 1}, size=4)
    record_run(run_folder, manifest_of({**ROWS, "train": mixture}), seconds=90, first_step=0, last_step=12)
    train = json.loads((run_folder / "run.json").read_text())["data"]["train"]
    assert (train["n_clips"], train["sources"]) == (33, {"a.org": 30, "b.org": 3})
    text = write_card(run_folder).read_text()
    assert "| train | 33 |" in text
    assert "An epoch of the mixture takes so many clips of each: a (2), b (2)." in text


def test_a_record_without_hashes_reads_no_audio():
    class Stored(LazyRows):
        def __getitem__(self, index):
            raise AssertionError("the audio was read")

        def without_audio(self, index):
            return {"id": "a", "captions": ["x"]}

        def select(self, indices, removed):
            raise AssertionError("rows were selected")

    assert describe_split(Stored(["a place"]))["n_clips"] == 1


def test_the_three_snippets_of_a_card_run(run_folder, tmp_path):
    pytest.importorskip("sentence_transformers", reason="it is an extra")
    snippets = snippets_of(write_card(run_folder))
    assert len(snippets) == 3
    soundfile.write(tmp_path / "clip.wav", 0.1 * np.random.default_rng(0).standard_normal(44100), 44100)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(snippets)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "", "HF_MODULES_CACHE": str(tmp_path / "modules")},
        cwd=tmp_path,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'label': 'dog'" in done.stdout
    assert done.stdout.count("tensor([[") == 2
