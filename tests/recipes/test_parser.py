"""Recipes: sections, overrides, and errors that name the key and the fix."""

import pytest

from supclap.errors import RecipeError
from supclap.recipes.parser import parse_recipe
from support.paths import ROOT


CONFIGS = ROOT / "configs"
RECIPES = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("paper/*.yaml")])
RECIPE = """
model: {text_model: some/encoder, audio_model: ced-tiny}
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
    assert model.audio_model == "ced-tiny"
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
        (["--max_steps", "many"], "max_steps must be int.*got 'many'"),
        (["--freeze_text", "3"], "freeze_text must be bool, got 3"),
        (["--dry_run"], "unknown key 'dry_run'; did you mean 'dry-run'"),
        (["--max_steps"], "--max_steps needs a value"),
        (["max_steps", "3"], "expected --key value, got 'max_steps'"),
    ],
)
def test_a_wrong_override_is_named(recipe, arguments, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe([recipe, *arguments])


# The value, and what the message names beside it: what is allowed, and the nearest of it.
WRONG_VALUES = [
    ("train_sampling_strategy", "group_by_lenght", "one of random, sequential, .*did you mean 'group_by_length'"),
    ("objective", "infonse", "one of infonce, siglip, .*did you mean 'infonce'"),
    ("svr", "dinamic", "one of dynamic, static, null, .*did you mean 'dynamic'"),
    ("svr_direction", "both", "one of bi, uni"),
    ("optim", "adamw_torh", "one of adamw_torch, .*did you mean 'adamw_torch'"),
    ("lr_scheduler_type", "cosin", "one of linear, cosine, .*did you mean 'cosine'"),
    ("eval_strategy", "step", "one of no, steps, epoch, .*did you mean 'steps'"),
    ("report_to", "tensorbord", "one of none, all, .*did you mean 'tensorboard'"),
    ("attn_implementation", "egger", "one of eager, .*did you mean 'eager'"),
    ("audio_model", "ced-huge", "one of ced-tiny, .* or a folder or Hub id.*did you mean 'ced-"),
    ("bf16", "maybe", "one of true, false, auto"),
    ("projection_dim", "0", "at least 1"),
    ("projection_dim", "-3", "at least 1"),
    ("skip_nonfinite_steps", "-1", "at least 0"),
    ("text_learning_rate", "-4", "at least 0"),
    ("learning_rate", "-1", "at least 0"),
    ("learning_rate", "nan", "at least 0"),
    ("weight_decay", "-1", "at least 0"),
    ("adam_beta2", "2", "from 0 to 1, without 1"),
    ("save_steps", "0", "above 0"),
    ("logging_steps", "-1", "above 0"),
    ("logit_scale_init_value", "50", "at most 4.6"),
    ("seed", "-1", "from 0 to 4.29"),
    ("dataloader_num_workers", "-1", "at least 0"),
    ("gradient_accumulation_steps", "0", "at least 1"),
    ("grad_cache_chunk_size", "0", "at least 1"),
    ("eval_pool_size", "-5", "at least 1"),
    ("input_statistics_batches", "0", "at least 1"),
    ("max_duration", "0", "above 0"),
    ("deepspeed", "nope.json", "a mapping, or a file"),
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
        ("readings", "{normalize_support: 2}", "readings.normalize_support must be bool, got 2"),
        ("language_weights", "{en: x}", r"language_weights\[en\] must be float, got 'x'"),
        ("audio_config", "{hidden_size: abc}", "audio_config.hidden_size must be int, got 'abc'"),
        ("audio_config", "{hidden_act: relo}", "audio_config.hidden_act must be one of .*did you mean 'relu'"),
        ("audio_config", "{num_hiden_layers: 2}", "audio_config: unknown key .*did you mean 'num_hidden_layers'"),
        ("features", "{hop_lenght: 320}", "features: unknown key 'hop_lenght'; did you mean 'hop_length'"),
        ("features", "{hop_length: 0}", "features.hop_length must be at least 1, got 0"),
        ("scenes", "{size: abc}", "scenes.size must be int, got 'abc'"),
        ("test_scenes", "{sise: 10}", "test_scenes: unknown key 'sise'; did you mean 'size'"),
        ("scenes", "{size: 9, duration: [0, 4]}", r"scenes.duration\[0\] must be above 0, got 0"),
        ("waveform_augment", "{speeds: fast}", "waveform_augment.speeds must be list, got 'fast'"),
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
    (tmp_path / "base/three.yaml").write_text("model: {audio_model: ced-tiny}\ntraining: {seed: 3}")
    (tmp_path / "top.yaml").write_text("base: [base/two.yaml, base/three.yaml]\ntraining: {max_steps: 4}")
    model, _, training = parse_recipe([str(tmp_path / "top.yaml")])
    assert (training.max_steps, training.seed, training.learning_rate, training.output_dir) == (4, 3, 1e-4, "out")
    assert model.audio_model == "ced-tiny"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: top.yaml", r"based on each other: \S*top.yaml -> \S*top.yaml"),
        ("base: nothing.yaml", r"nothing.yaml', a base of \S*top.yaml"),
        ("base: {a: b}", "base must be a file or a list of files"),
        ("base: wrong.yaml", r"wrong.yaml, section training: max_steps must be int"),
        ("bas: top.yaml", "unknown key 'bas'; did you mean 'base'"),
    ],
)
def test_a_wrong_base_is_named(tmp_path, text, message):
    (tmp_path / "wrong.yaml").write_text("training: {max_steps: x}")
    (tmp_path / "top.yaml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        parse_recipe([str(tmp_path / "top.yaml")])


def test_a_missing_recipe_says_where_recipes_are():
    with pytest.raises(RecipeError, match="configs/"):
        parse_recipe(["configs/nothing.yaml"])
    with pytest.raises(RecipeError, match="usage"):
        parse_recipe([])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_parses(path, tmp_path):
    parse_recipe([str(path), "--output_dir", str(tmp_path)])
