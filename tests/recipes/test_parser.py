"""Recipes: sections, overrides, and errors that name the key and the fix."""

import dataclasses
import subprocess
import sys

import pytest

from supclap import SupClapTrainingArguments
from supclap.data.field_types import checked
from supclap.errors import RecipeError, SettingsError
from supclap.recipes.arguments import SECTIONS
from supclap.recipes.parser import keys, parse_recipe
from support.paths import ROOT


CONFIGS = ROOT / "configs"
RECIPES = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("paper/*.yaml")])
RECIPE = """
model: {text_model: some/encoder, audio_model: random:ced-tiny}
data: {data_dir: clips, train_file: train.csv}
training: {output_dir: out, learning_rate: 1e-4, max_steps: 7}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return str(path)


def test_sections_fill_their_arguments(recipe):
    model, data, training = parse_recipe([recipe])
    assert model.audio_model == "random:ced-tiny"
    assert data.train_file == "train.csv"
    assert training.max_steps == 7


def test_a_number_that_yaml_reads_as_a_string_is_a_number(recipe):
    assert parse_recipe([recipe])[2].learning_rate == 1e-4
    assert parse_recipe([recipe, "--learning_rate", "2e-3"])[2].learning_rate == 2e-3


@pytest.mark.parametrize("override", [["--max_steps", "9"], ["--max-steps=9"]])
def test_the_command_line_overrides_the_file(recipe, override):
    assert parse_recipe([recipe, *override])[2].max_steps == 9


def test_an_override_can_be_a_list_or_null(recipe):
    _, data, training = parse_recipe([recipe, "--train_splits", "[1, 2]", "--svr", "null"])
    assert data.train_splits == [1, 2]
    assert training.svr is None


LITERAL = [
    ("output_dir", "2024_01"),
    ("run_name", "010"),
    ("run_name", "@x"),
    ("run_name", "2024-01-01"),
    ("run_name", "a: b: c"),
    ("hub_model_id", "12:30"),
    ("data_dir", "no"),
    ("metric_for_best_model", "~"),
]


@pytest.mark.parametrize(("key", "word"), LITERAL)
def test_a_key_of_a_text_takes_its_word_as_it_stands(recipe, key, word):
    sections = parse_recipe([recipe, f"--{key}", word])
    assert [getattr(section, key) for section in sections if hasattr(section, key)] == [word]


def test_files_are_yaml_1_2(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "data: {data_dir: 2024_01, split_column: on, train_splits: [no, 010, true], label_captions: {yes: [no]}}\n"
        "training: {output_dir: 12:30, run_name: 2024-01-01, eval_strategy: no, freeze_temperature: true, svr: none}\n"
    )
    _, data, training = parse_recipe([str(path)])
    assert (data.data_dir, data.split_column, data.train_splits) == ("2024_01", "on", ["no", 10, True])
    assert data.label_captions == {"yes": ["no"]}
    assert (training.output_dir, training.run_name, training.eval_strategy) == ("12:30", "2024-01-01", "no")
    assert (training.freeze_temperature, training.svr) == (True, None)


def test_a_number_where_a_file_should_have_a_text_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("training: {run_name: 010}")
    with pytest.raises(
        RecipeError, match="section training: run_name must be a valid string, got 10; put it in quotes"
    ):
        parse_recipe([str(path)])


def test_a_word_that_is_not_yaml_is_told_in_one_line(recipe):
    with pytest.raises(
        RecipeError, match=r"^command line: zero_shot_templates '\[a \{\}' is not YAML: line 1"
    ) as caught:
        parse_recipe([recipe, "--zero_shot_templates", "[a {}"])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("word", ["none", "null"])
def test_the_support_vectors_are_turned_off_by_a_word(recipe, word):
    assert parse_recipe([recipe, "--svr", word])[2].svr is None


def test_hyphens_and_underscores_are_one_in_a_key(recipe):
    assert parse_recipe([recipe, "--max-steps", "9", "--train-splits=[a]"])[2].max_steps == 9


def test_trackers_are_passed_on(recipe):
    assert parse_recipe([recipe])[2].report_to == []
    training = parse_recipe([recipe, "--report_to", "[tensorboard, wandb, trackio]", "--run_name", "mine"])[2]
    assert training.report_to == ["tensorboard", "wandb", "trackio"]
    assert training.run_name == "mine"
    assert parse_recipe([recipe, "--report_to", "tensorboard"])[2].report_to == ["tensorboard"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning_rat", "1"], "unknown key 'learning_rat'; did you mean 'learning_rate'"),
        (["--max_steps", "many"], "max_steps must be a valid integer, got 'many'"),
        (["--freeze_text", "3"], "freeze_text must be a valid boolean, got 3"),
        (["--dry_run"], "unknown key 'dry_run'; did you mean 'dry-run'"),
        (["--max_steps"], "--max_steps.*expected one argument"),
        (["max_steps", "3"], "expected --key value, got 'max_steps'"),
    ],
)
def test_a_wrong_override_is_named(recipe, arguments, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe([recipe, *arguments])


# The value, and what the message names beside it: what is allowed, and the nearest of it.
WRONG_VALUES = [
    ("train_sampling_strategy", "group_by_lenght", "'random', 'sequential', .*did you mean 'group_by_length'"),
    ("objective", "infonse", "'infonce' or 'siglip', .*did you mean 'infonce'"),
    ("svr", "dinamic", "'dynamic', 'static' or 'none', .*did you mean 'dynamic'"),
    ("svr_direction", "both", "'bi' or 'uni'"),
    ("optim", "adamw_torh", "'adamw_torch', .*did you mean 'adamw_torch'"),
    ("lr_scheduler_type", "cosin", "'linear', 'cosine', .*did you mean 'cosine'"),
    ("eval_strategy", "step", "'no', 'steps' or 'epoch', .*did you mean 'steps'"),
    ("report_to", "tensorbord", "'none', 'all', .*did you mean 'tensorboard'"),
    ("attn_implementation", "egger", "'eager', .* or a text with '/', .*did you mean 'eager'"),
    ("audio_model", "ced-huge", "one of random:ced-tiny, .*folder or Hub id.*did you mean 'random:ced-"),
    ("audio_model", "random:ced-bass", "one of random:ced-tiny, .*did you mean 'random:ced-base"),
    ("audio_model", "ced-base", "random:ced-base for random weights, or the folder or Hub id of trained ones"),
    ("bf16", "maybe", "a valid boolean or 'auto'"),
    ("hub_strategy", "every_save", "'end'"),
    ("projection_dim", "0", "greater than 0"),
    ("projection_dim", "-3", "greater than 0"),
    ("skip_nonfinite_steps", "-1", "greater than or equal to 0"),
    ("text_learning_rate", "-4", "greater than or equal to 0"),
    ("learning_rate", "-1", "greater than or equal to 0"),
    ("learning_rate", "nan", "a finite number"),
    ("weight_decay", "-1", "greater than or equal to 0"),
    ("adam_beta2", "2", "less than 1"),
    ("save_steps", "0", "greater than 0"),
    ("logging_steps", "-1", "greater than 0"),
    ("logit_scale_init_value", "50", "less than or equal to 4.6"),
    ("seed", "-1", "greater than or equal to 0"),
    ("dataloader_num_workers", "-1", "greater than or equal to 0"),
    ("gradient_accumulation_steps", "0", "greater than 0"),
    ("grad_cache_chunk_size", "0", "greater than 0"),
    ("eval_pool_size", "-5", "greater than 0"),
    ("input_statistics_batches", "0", "greater than 0"),
    ("max_duration", "0", "greater than 0"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), WRONG_VALUES, ids=lambda part: part[:24])
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(recipe, key, value, allowed):
    with pytest.raises(RecipeError, match=rf"^command line: {key} must be {allowed}") as caught:
        parse_recipe([recipe, f"--{key}", value])
    assert value in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("readings", "{normalize: true}", "readings: unknown key 'normalize'; did you mean 'normalize_support'"),
        ("readings", "{normalize_support: 2}", "readings.normalize_support must be a valid boolean"),
        ("language_weights", "{en: x}", "language_weights.en must be a valid number, got 'x'"),
        ("report_to", "[wandb, tensorbord]", r"report_to\[1\] must be 'none', .*did you mean 'tensorboard'"),
        ("zero_shot_templates", "[7]", r"zero_shot_templates\[0\] must be a valid string, got 7; put it in quotes"),
        ("audio_config", "{hidden_size: abc}", "audio_config.hidden_size must be a valid integer, got 'abc'"),
        (
            "audio_config",
            "{patch_dropout: x}",
            "audio_config.patch_dropout must be a valid number or a valid integer, got 'x'",
        ),
        ("audio_config", "{num_hiden_layers: 2}", "audio_config: unknown key .*did you mean 'num_hidden_layers'"),
        ("feature_extractor", "{hop_lenght: 320}", "feature_extractor: unknown key .*did you mean 'hop_length'"),
        ("scenes", "{size: abc}", "scenes.size must be a valid integer, got 'abc'"),
        ("test_scenes", "{sise: 10}", "test_scenes: unknown key 'sise'; did you mean 'size'"),
        ("scenes", "{size: 0}", "scenes.size must be greater than 0, got 0"),
        ("scenes", "{size: 9, speeds: [0]}", r"scenes.speeds\[0\] must be greater than 0, got 0"),
        ("scenes", "{size: 9, duration: [a, 4]}", r"scenes.duration\[0\] must be a valid number, got 'a'"),
        ("scenes", "{size: 9, duration: [4]}", r"scenes.duration needs one more item, got \[4\]"),
        ("waveform_augment", "{speeds: fast}", "waveform_augment.speeds must be a valid list, got 'fast'"),
        ("scenes", "{size: 9, unseen_labels: rain}", "scenes.unseen_labels must be a valid list, got 'rain'"),
        ("waveform_augment", "{speeds: [0]}", r"waveform_augment.speeds\[0\] must be greater than 0, got 0"),
        ("spectrogram_augment", "{frequncy_masks: 1}", "spectrogram_augment: .*did you mean 'frequency_masks'"),
    ],
)
def test_a_wrong_part_of_a_value_is_named_with_its_path(recipe, key, value, message):
    with pytest.raises(RecipeError, match=f"^command line: {message}"):
        parse_recipe([recipe, f"--{key}", value])


def test_an_encoder_in_a_folder_or_of_the_hub_is_no_misspelt_size(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ced-own").mkdir()
    for name in ("ced-own", "someone/ced-bose", str(tmp_path)):
        assert parse_recipe([recipe, "--audio_model", name])[0].audio_model == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainin: {max_steps: 3}", "unknown key 'trainin'; did you mean 'training'"),
        ("training: {data_dir: x}", "'data_dir' belongs into the section 'data'"),
        ("model: {audio_modell: x}", "did you mean 'audio_model'"),
        ("- a\n- b", "expected the sections"),
        ("model: {audio_model: [", "not YAML"),
        ("model: 3", "section 'model' must be a mapping"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        parse_recipe([str(path)])


def test_a_recipe_changes_its_bases_and_later_ones_win(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/one.yaml").write_text("training: {output_dir: out, max_steps: 1, seed: 1, learning_rate: 1e-4}")
    (tmp_path / "base/two.yaml").write_text("base: one.yaml\ntraining: {max_steps: 2, seed: 2}")
    (tmp_path / "base/three.yaml").write_text("model: {audio_model: random:ced-tiny}\ntraining: {seed: 3}")
    (tmp_path / "top.yaml").write_text("base: [base/two.yaml, base/three.yaml]\ntraining: {max_steps: 4}")
    model, _, training = parse_recipe([str(tmp_path / "top.yaml")])
    assert (training.max_steps, training.seed, training.learning_rate, training.output_dir) == (4, 3, 1e-4, "out")
    assert model.audio_model == "random:ced-tiny"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: top.yaml", r"based on each other: \S*top.yaml -> \S*top.yaml"),
        ("base: nothing.yaml", r"nothing.yaml', a base of \S*top.yaml"),
        ("base: {a: b}", "base must be a file or a list of files"),
        ("base: wrong.yaml", r"wrong.yaml, section training: max_steps must be a valid integer"),
        ("bas: top.yaml", "unknown key 'bas'; did you mean 'base'"),
    ],
)
def test_a_wrong_base_is_named(tmp_path, text, message):
    (tmp_path / "wrong.yaml").write_text("training: {max_steps: x}")
    (tmp_path / "top.yaml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        parse_recipe([str(tmp_path / "top.yaml")])


def test_a_missing_recipe_says_which_there_are():
    with pytest.raises(RecipeError, match=r"no recipe at 'quickstat'.* esc10; finetune; .* quickstart; "):
        parse_recipe(["quickstat"])
    with pytest.raises(RecipeError, match="usage"):
        parse_recipe([])


def test_a_bundled_recipe_is_found_by_its_name(tmp_path, monkeypatch):
    by_path = parse_recipe([str(CONFIGS / "finetune_laion_clap.yaml")])
    monkeypatch.chdir(tmp_path)
    assert parse_recipe(["finetune_laion_clap"])[0] == by_path[0]


def test_the_wheel_holds_the_recipes(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    build = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=CONFIGS.parent, check=True)
    built = tmp_path / "lib" / "supclap" / "recipes" / "configs"
    recipes = {path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml")}
    assert {path.relative_to(built) for path in built.rglob("*") if path.is_file()} == recipes


def test_a_file_that_is_there_comes_before_a_bundled_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text(RECIPE)
    assert parse_recipe(["quickstart"])[2].max_steps == 7


def test_a_bundled_recipe_without_its_data_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RecipeError, match=r"^quickstart: its data_dir 'examples/quickstart_data' is not here.* clone "
    ):
        parse_recipe(["quickstart"])
    assert parse_recipe(["quickstart", "--data_dir", "mine"])[1].data_dir == "mine"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_parses(path, tmp_path):
    parse_recipe([str(path), "--output_dir", str(tmp_path)])


def test_every_key_has_types_that_accept_its_default():
    for section in SECTIONS.values():
        for item in dataclasses.fields(section):
            if item.init:
                default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
                checked(item.name, default, keys()[item.name].kind)


def test_of_the_trainers_arguments_only_those_with_types_of_our_own_are_checked(tmp_path):
    assert SupClapTrainingArguments(str(tmp_path), use_cpu=True, eval_delay=-1).eval_delay == -1
    with pytest.raises(SettingsError, match="^learning_rate must be greater than or equal to 0, got -1.0"):
        SupClapTrainingArguments(str(tmp_path), use_cpu=True, learning_rate=-1.0)
