"""Training arguments of the objective: schedules, positives by label, readings, and what is refused."""

from types import SimpleNamespace

import pytest
import torch

from supclap import SupClapTrainer, SupClapTrainingArguments
from supclap.data.collator import ContrastiveCollator
from supclap.errors import SettingsError
from supclap.losses import PaperReadings, SupClapLoss
from supclap.training.callbacks.schedules import WeightWarmupCallback
from supclap.training.objective import build_criterion
from support.builders import build_clip_trainer


def arguments(tmp_path, **options):
    return SupClapTrainingArguments(str(tmp_path), per_device_train_batch_size=4, use_cpu=True, **options)


def test_weights_rise_linearly_in_their_share_of_the_steps_and_stay(tmp_path):
    from transformers import TrainerState

    args = arguments(tmp_path, svr_weight=0.8, svr_warmup=0.4, constraint_weight=0.01)
    criterion = build_criterion(args)
    callback, model = WeightWarmupCallback(), SimpleNamespace(criterion=criterion)
    seen = []
    for step in range(6):
        callback.on_step_begin(args, TrainerState(global_step=step, max_steps=10), None, model=model)
        seen.append(criterion.svr_weight)
        assert criterion.constraint_weight == 0.01
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_the_trainer_applies_the_schedule(tmp_path):
    run = build_clip_trainer(tmp_path, svr_warmup=1.0, max_steps=4, svr="static")
    run.train()
    assert run.model.criterion.svr_weight == 1.0  # the last of 4 steps
    losses = [entry for entry in run.state.log_history if "loss_svr" in entry]
    first = losses[0]["loss_contrastive"] + 0.25 * losses[0]["loss_svr"]
    assert losses[0]["loss"] == pytest.approx(first, rel=1e-3)


def test_positives_by_label_give_clips_of_one_label_equal_ids(processor):
    samples = [
        {"audio": torch.randn(8000).numpy(), "text": "a dog", "group": str(i), "label": label, "draw": 0}
        for i, label in enumerate(["dog", "cat", "dog"])
    ]
    by_clip = ContrastiveCollator(processor)(samples)["clip_ids"]
    by_label = ContrastiveCollator(processor, positives="label")(samples)["clip_ids"]
    assert len(set(by_clip.tolist())) == 3
    assert by_label[0] == by_label[2] != by_label[1]
    with pytest.raises(ValueError, match="set label_column"):
        ContrastiveCollator(processor, positives="label")([{**samples[0], "label": None}])


@pytest.mark.parametrize(
    ("options", "attribute", "value"),
    [
        ({"loss_chunk_size": 2}, "loss_chunk_size", 2),
        ({"clamp_radius": True}, "clamp_radius", True),
        ({"svr_direction": "uni"}, "svr_direction", "uni"),
        ({"readings": {"normalize_support": True}}, "readings", PaperReadings(normalize_support=True)),
    ],
)
def test_arguments_reach_the_criterion(tmp_path, options, attribute, value):
    assert getattr(build_criterion(arguments(tmp_path, **options)), attribute) == value


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, True),
        ({"on_batch_mismatch": "pad"}, False),
        ({"radius_predictor": "summary"}, False),
        ({"svr": "static"}, False),
        ({"dataloader_drop_last": True}, False),
        ({"per_device_train_batch_size": 2}, False),
    ],
)
def test_a_last_batch_that_the_predictor_cannot_read_is_refused_before_training(tmp_path, options, refused):
    options = {"dataloader_drop_last": False, "per_device_train_batch_size": 3} | options  # of 8 pairs
    if refused:
        with pytest.raises(SettingsError, match="leaves a last batch of 2 of 3 pairs"):
            build_clip_trainer(tmp_path, **options)
    else:
        build_clip_trainer(tmp_path, **options)


def test_an_objective_of_ones_own_takes_the_place_of_that_of_the_arguments(tiny_model, processor, tmp_path):
    class Own(SupClapLoss):
        pass

    args = arguments(tmp_path)
    trainer = SupClapTrainer(tiny_model, args, processing_class=processor, criterion=build_criterion(args, Own))
    assert type(trainer.model.criterion) is Own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"svr_warmup": 1.5}, "svr_warmup must be less than or equal to 1, got 1.5"),
        ({"constraint_warmup": -0.1}, "constraint_warmup must be greater than or equal to 0, got -0.1"),
        ({"positives": "class"}, "positives must be 'clip' or 'label'"),
        ({"on_batch_mismatch": "drop"}, "on_batch_mismatch must be 'error' or 'pad'"),
        ({"ema_decay": 1.0}, "ema_decay must be less than 1, got 1.0"),
        ({"ema_decay": -0.1}, "ema_decay must be greater than or equal to 0, got -0.1"),
        ({"svr_weight": -1.0}, "svr_weight must be greater than or equal to 0, got -1.0"),
        ({"readings": {"bi_mode": "audio"}}, "readings.bi_mode must be 'symmetric' or 'text_support'"),
    ],
)
def test_bad_arguments_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **options)


def test_a_model_trained_with_siglip_is_refused_by_infonce_with_the_way_out(tiny_model, processor, tmp_path):
    tiny_model.logit_bias = torch.nn.Parameter(torch.zeros(()))
    with pytest.raises(ValueError, match="set objective 'siglip'"):
        SupClapTrainer(tiny_model, SupClapTrainingArguments(str(tmp_path), use_cpu=True), processing_class=processor)
