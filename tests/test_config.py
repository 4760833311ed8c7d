"""Recipes: sections, overrides, and errors that name the key and the fix."""

from pathlib import Path

import pytest

from supclap.config import RecipeError, parse_recipe


CONFIGS = Path(__file__).parent.parent / "configs"
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
        (["--max_steps"], "--max_steps needs a value"),
        (["max_steps", "3"], "expected --key value, got 'max_steps'"),
        (["--svr_direction", "both"], "svr_direction must be one of"),
        (["--objective", "triplet"], "objective must be one of"),
        (["--eval_strategy", "sometimes"], "sometimes"),
    ],
)
def test_a_wrong_override_is_named(recipe, arguments, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe([recipe, *arguments])


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
