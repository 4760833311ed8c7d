"""What a user gives the Trainer from Python: its arguments, its data in any form, and what `predict` gives back."""

import io

import datasets
import numpy as np
import pytest
import soundfile
import torch

from supclap import SupClapTrainer, SupClapTrainingArguments
from supclap.data import CaptionedClips
from supclap.errors import SettingsError
from supclap.losses import SupClapLoss


@pytest.fixture
def make_model(tiny_config):
    """Builds the same tiny model each time, and lets what is drawn afterwards be the same too."""
    from support.builders import build_tiny_model

    return lambda: build_tiny_model(tiny_config)


def waves(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [0.1 * rng.standard_normal(6000 + 500 * number).astype(np.float32) for number in range(count)]


def rows(count: int = 8) -> list[dict]:
    return [
        {
            "id": f"c{number}",
            "audio": {"array": wave, "sampling_rate": 16000},
            "captions": [f"noise {number}", "noise"],
        }
        for number, wave in enumerate(waves(count))
    ]


def hub_dataset(count: int = 8) -> datasets.Dataset:
    """The same clips as WAV bytes in a column of kind `Audio`, with a caption each."""
    column = []
    for wave in waves(count):
        buffer = io.BytesIO()
        soundfile.write(buffer, wave, 16000, format="WAV", subtype="FLOAT")
        column.append({"bytes": buffer.getvalue(), "path": None})
    table = datasets.Dataset.from_dict({"audio": column, "caption": [f"noise {number}" for number in range(count)]})
    return table.cast_column("audio", datasets.Audio(decode=False))


def arguments(folder, **options) -> SupClapTrainingArguments:
    defaults = {"per_device_train_batch_size": 4, "max_steps": 2, "save_strategy": "no", "logging_steps": 1}
    return SupClapTrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **defaults | options)


def losses(trainer: SupClapTrainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "grad_norm" in entry]


def test_without_a_processor_the_trainer_says_what_to_pass(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="pass processing_class="):
        SupClapTrainer(tiny_model)


def test_arguments_have_their_defaults_when_omitted(tiny_model, processor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = SupClapTrainer(tiny_model, processing_class=processor)
    assert trainer.args.svr == SupClapTrainingArguments("x").svr


def test_arguments_of_the_parent_alone_are_refused(tiny_model, processor, tmp_path):
    from transformers import TrainingArguments

    with pytest.raises(SettingsError, match="args must be SupClapTrainingArguments"):
        SupClapTrainer(tiny_model, TrainingArguments(str(tmp_path)), processing_class=processor)


def test_a_collator_by_position_is_not_taken_for_something_else(tiny_model, processor, tmp_path):
    with pytest.raises(TypeError, match="positional"):
        SupClapTrainer(tiny_model, arguments(tmp_path), processor)


def test_rows_train_as_the_samples_made_of_them(make_model, processor, tmp_path):
    first, second = (
        losses(SupClapTrainer(make_model(), arguments(tmp_path), train_dataset=data, processing_class=processor))
        for data in (rows(), CaptionedClips(rows(), seed=arguments(tmp_path).seed))
    )
    assert len(first) == 2
    assert first == second


def test_a_data_set_of_the_hub_trains_and_is_evaluated(make_model, processor, tmp_path):
    data = hub_dataset()
    trainer = SupClapTrainer(
        make_model(), arguments(tmp_path), train_dataset=data, eval_dataset=data, processing_class=processor
    )
    one_caption = [row | {"captions": row["captions"][:1], "id": f"dataset/{n}"} for n, row in enumerate(rows())]
    expected = trainer.evaluate(one_caption)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    assert len(losses(trainer)) == 2


def test_a_stream_of_rows_is_refused_with_what_to_pass(tiny_model, processor, tmp_path):
    stream = hub_dataset().to_iterable_dataset()
    with pytest.raises(SettingsError, match="StreamedClips"):
        SupClapTrainer(tiny_model, arguments(tmp_path), train_dataset=stream, processing_class=processor)


def test_predict_gives_the_embeddings_of_clips_and_captions_and_the_metrics(tiny_model, processor, tmp_path):
    trainer = SupClapTrainer(tiny_model, arguments(tmp_path), processing_class=processor)
    output = trainer.predict(rows(5))
    audio, text = output.predictions
    assert output.label_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with torch.no_grad():
        inputs = processor(audio=waves(5), sampling_rate=16000, text=[c for row in rows(5) for c in row["captions"]])
        expected = tiny_model(**inputs)
    np.testing.assert_allclose(audio, expected.audio_embeds, atol=1e-5)
    np.testing.assert_allclose(text, expected.text_embeds, atol=1e-5)
    assert output.metrics["test_n_audio"] == 5
    assert 0 <= output.metrics["test_text_to_audio/recall@1"] <= 1


def test_evaluation_without_rows_says_what_to_pass(tiny_model, processor, tmp_path):
    with pytest.raises(SettingsError, match="pass eval_dataset"):
        SupClapTrainer(tiny_model, arguments(tmp_path), processing_class=processor).evaluate()


def test_an_objective_of_ones_own_is_what_is_trained(make_model, processor, tmp_path):
    found = []
    for criterion in (SupClapLoss(svr=None), None):
        trainer = SupClapTrainer(
            make_model(),
            arguments(tmp_path, svr=None if criterion is None else "static"),
            train_dataset=rows(),
            processing_class=processor,
            criterion=criterion,
        )
        found.append(losses(trainer))
    assert found[0] == found[1]
