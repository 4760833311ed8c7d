"""Wrong settings are told in one line that says what to change, and as early as they can be known."""

import pytest
import torch

from supclap import SupClapTrainingArguments
from supclap.cli.train import train
from supclap.errors import RecipeError, SettingsError, in_one_line
from supclap.recipes import build as recipe
from supclap.recipes.arguments import SECTIONS, ModelArguments
from supclap.training.dry_run import duration
from supclap.training.metric_choice import check_best_metric, evaluated_metrics
from support import processes


def test_a_folder_without_a_model_is_named_with_what_one_holds(tmp_path):
    with pytest.raises(
        RecipeError, match=rf"^checkpoint '{tmp_path}' is a folder without config.json.* model.safetensors"
    ):
        recipe.build_processor(ModelArguments(checkpoint=str(tmp_path)))


def test_the_model_inside_a_folder_is_pointed_at(tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"There is one in '.*checkpoint-4'"):
        recipe.build_processor(ModelArguments(checkpoint=str(tmp_path)))


def test_a_folder_that_holds_another_model_is_named(text_encoder):
    with pytest.raises(
        RecipeError, match=rf"^checkpoint '{text_encoder}' is a folder that does not load\. .*processor_config.json"
    ):
        recipe.build_processor(ModelArguments(checkpoint=str(text_encoder)))


@pytest.mark.parametrize("key", ["text_model", "audio_model"])
def test_a_folder_that_is_not_there_is_named_with_its_key(tmp_path, text_encoder, key):
    models = {"text_model": str(text_encoder), "audio_model": "random:ced-tiny", key: str(tmp_path / "gone")}
    with pytest.raises(RecipeError, match=rf"^{key} '.*gone' is no folder.* holds config.json"):
        recipe.build_processor(ModelArguments(**models))


PARTS_THAT_DO_NOT_FIT = [
    ({"text_config": {"num_hiden_layers": 3}}, "^text_config: unknown key .*did you mean 'num_hidden_layers'"),
    (
        {"text_config": {"num_hidden_layers": 300}},
        "^text_config {'num_hidden_layers': 300} .* has {'num_hidden_layers': 1",
    ),
    ({"text_config": {"num_hidden_layers": "few"}}, "^text_config {'num_hidden_layers': 'few'} does not fit"),
    ({"text_config": {"hidden_act": "relo"}}, "^text_config {'hidden_act': 'relo'} .* has .*'gelu'.* knows no 'relo'"),
    ({"audio_config": {"hidden_act": "relo"}}, "^audio_config {'hidden_act': 'relo'} does not fit .* knows no 'relo'"),
    (
        {"audio_config": {"num_attention_heads": 5}},
        "^audio_config {'num_attention_heads': 5} does not fit .*must be a multiple",
    ),
    ({"audio_config": {"num_hidden_layers": 0}}, "^audio_config {'num_hidden_layers': 0} .*must be at least 1"),
    ({"attn_implementation": "flash_attention_2"}, "^attn_implementation 'flash_attention_2': "),
]


@pytest.mark.parametrize(("options", "message"), PARTS_THAT_DO_NOT_FIT, ids=lambda value: str(value)[:40])
def test_fields_that_do_not_fit_an_encoder_are_told_with_their_key_in_one_line(text_encoder, options, message):
    with pytest.raises(SettingsError, match=message) as caught:
        recipe.build_model(ModelArguments(text_model=str(text_encoder), audio_model="random:ced-tiny", **options))
    assert len(str(caught.value).splitlines()) == 1


def test_scenes_that_cannot_be_made_are_told_with_the_key_they_are_given_under():
    with pytest.raises(RecipeError, match="^validation_scenes {.*'duet'.*"):
        recipe.build_evaluation_data([], {"size": 2, "kinds": {"duet": 1}}, 16000, "validation_scenes")
    with pytest.raises(RecipeError, match="^test_scenes {.*duration must be .shortest, longest. in seconds"):
        recipe.build_evaluation_data([], {"size": 2, "duration": (0, 4)}, 16000, "test_scenes")


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.42, "0.42 s"), (45.3, "45 s"), (150, "2 min"), (5400, "90 min"), (12600, "3.5 h")]
)
def test_times_are_told_in_a_unit_that_suits_them(seconds, told):
    assert duration(seconds) == told


ROWS = [{"label": "rain"}, {"label": "dog"}]


def arguments(folder, metric: str) -> SupClapTrainingArguments:
    return SupClapTrainingArguments(str(folder), eval_strategy="steps", eval_steps=1, metric_for_best_model=metric)


def test_a_misspelt_metric_is_answered_with_the_nearest_one(tmp_path):
    with pytest.raises(SettingsError, match="'text_to_audio/recal@1' is not evaluated.*mean 'text_to_audio/recall@1'"):
        check_best_metric(arguments(tmp_path, "text_to_audio/recal@1"), ROWS)


@pytest.mark.parametrize("metric", ["text_to_audio/median_rank", "eval_audio_to_text/median_rank", "loss"])
def test_a_checkpoint_of_lower_rank_or_loss_is_the_better_one(make_trainer, metric):
    assert make_trainer(metric_for_best_model=metric).args.greater_is_better is False
    assert make_trainer(metric_for_best_model="text_to_audio/recall@1").args.greater_is_better is True


def test_the_best_checkpoint_without_an_evaluation_is_refused(make_trainer):
    with pytest.raises(SettingsError, match="load_best_model_at_end needs evaluation"):
        make_trainer(load_best_model_at_end=True, eval_strategy="no")


@pytest.mark.parametrize("count", ["n_audio", "n_text", "pool_size", "n_pools", "n_audio_left_out"])
def test_counts_are_no_metrics_to_choose_a_checkpoint_by(tmp_path, count):
    with pytest.raises(SettingsError, match=f"'{count}' is not evaluated"):
        check_best_metric(arguments(tmp_path, count), ROWS)


def test_choosing_by_accuracy_needs_labels(tmp_path):
    check_best_metric(arguments(tmp_path, "eval_zero_shot/accuracy"), ROWS)
    with pytest.raises(SettingsError, match="label_column"):
        check_best_metric(arguments(tmp_path, "zero_shot/accuracy"), [{"id": 0}, {"id": 1}])


def test_a_dry_run_refuses_a_metric_that_evaluation_does_not_give(recipe):
    run = processes.start(recipe, "--dry-run", "--metric_for_best_model", "accuracy")
    assert run.wait() == 1
    assert run.text.splitlines()[-1].startswith("error: metric_for_best_model 'accuracy' is not evaluated here")


def test_the_metrics_it_knows_are_the_scores_that_evaluation_gives(recipe, tmp_path):
    processes.finish(recipe, "--max_steps", "4")
    given = next(entry for entry in processes.history(tmp_path / "run", 4) if "eval_loss" in entry)
    scores = {name for name in given if name.startswith("eval_") and "/" in name}
    assert {f"eval_{name}" for name in evaluated_metrics(ROWS)} == scores | {"eval_loss"}


def test_a_wrong_setting_found_in_training_ends_it_in_one_line(recipe):
    run = processes.start(recipe, "--zero_shot_templates", "[no place for a label]")
    assert run.wait() == 1
    assert "step 4:" in run.text
    assert "Traceback" not in run.text
    assert run.text.splitlines()[-1].startswith("error: Each template needs {}")


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_a_tracker_without_its_package_is_refused_with_the_command_to_install_it(recipe, monkeypatch, words):
    monkeypatch.setattr("supclap.recipes.build.get_available_reporting_integrations", lambda: ["wandb"])
    with pytest.raises(
        RecipeError, match=r"^report_to 'tensorboard': .*pip install 'supclap\[tracking\]'.*is: wandb\."
    ):
        train([str(recipe), *words, "--report_to", "[wandb, tensorboard]"])


def test_tensorboard_gets_the_parts_of_the_loss_of_every_step_without_a_network(make_trainer, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    make_trainer(report_to="tensorboard", max_steps=2).train()
    (events,) = (tmp_path / "runs").rglob("events.out.tfevents*")
    log = accumulator.EventAccumulator(str(events)).Reload()
    for name in ("loss", "loss_contrastive", "loss_svr", "radius"):
        assert [scalar.step for scalar in log.Scalars(f"train/{name}")] == [1, 2]


class _Refusing(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise SettingsError("change this: that")


def test_a_setting_refused_in_a_data_worker_is_told_without_its_traceback():
    with pytest.raises(SettingsError) as caught:
        list(torch.utils.data.DataLoader(_Refusing(), num_workers=1))
    assert in_one_line(caught.value) == "change this: that"


def test_the_short_help_tells_the_sections_and_how_to_override(capsys):
    train(["-h"])
    text = capsys.readouterr().out
    assert all(f"\n  {section} " in text for section in SECTIONS)
    assert "--key value" in text
    assert len(text.splitlines()) < 25


def test_the_long_help_has_every_key_of_our_own_with_its_default(capsys):
    train(["--help"])
    text = capsys.readouterr().out
    own = {name for kind in SECTIONS.values() for name in kind.__annotations__}
    assert own == {line.strip() for line in text.splitlines() if line[:2] == "  " and line[2:].isidentifier()}
    assert '["This is a sound of {}."]' in text
    assert '{dynamic, static, none | null} ["dynamic"]' in " ".join(text.split())
    assert "{integer > 0 | null} [null]" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "^model section: set text_model "),
        ({"text_model": "t"}, "^model section: set audio_model .random:ced-base, a folder or Hub id., or checkpoint"),
        ({"checkpoint": "c", "audio_model": "a/b"}, "^model section: audio_model would be ignored, as checkpoint: c "),
        ({"text_model": "t", "audio_model": "a/b", "audio_config": {"hidden_size": 3}}, "audio_config is for random"),
        (
            {"text_model": "t", "audio_model": "a/b", "feature_extractor": {"n_fft": 3}},
            "feature_extractor is for random",
        ),
    ],
)
def test_what_training_starts_from_is_said_once(options, message):
    for build in (recipe.build_processor, recipe.build_model):
        with pytest.raises(RecipeError, match=message):
            build(ModelArguments(**options))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"win_length": 600}, "win_length .600. must be at most n_fft"),
        ({"hop_length": 0}, ".*hop_length .0. must be at"),
    ],
)
def test_a_feature_extractor_that_cannot_be_made_is_told_with_its_key(text_encoder, fields, reason):
    arguments = ModelArguments(text_model=str(text_encoder), audio_model="random:ced-tiny", feature_extractor=fields)
    with pytest.raises(RecipeError, match=f"^feature_extractor {fields}: {reason}"):
        recipe.build_processor(arguments)
