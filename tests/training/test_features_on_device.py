"""With `features_on_device`, data workers pass waveforms on and spectrograms are made where the model is."""

import copy

import numpy as np
import pytest
import torch

from supclap import SupClapFeatureExtractor, SupClapTrainer, SupClapTrainingArguments
from supclap.data import CaptionedClips, ContrastiveCollator, SpectrogramAugment
from supclap.files import DRIFT
from supclap.training.callbacks.drift import read_drift


@pytest.fixture
def trainer(tiny_model, processor, tmp_path):
    """Builds a trainer of a copy of the tiny model on 12 clips of noise of several lengths, augmented."""

    def build(**options) -> SupClapTrainer:
        rng = np.random.default_rng(0)
        waves = [0.1 * rng.standard_normal(6000 + 500 * number).astype(np.float32) for number in range(12)]
        rows = [
            {"id": number, "audio": {"array": wave, "sampling_rate": 16000}, "captions": [f"noise {number}"]}
            for number, wave in enumerate(waves)
        ]
        args = SupClapTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=3,
            logging_steps=1,
            learning_rate=1e-3,
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            **options,
        )
        torch.manual_seed(0)  # of the radius predictor
        collator = ContrastiveCollator(processor, SpectrogramAugment(frequency_masks=1, response_db=3.0))
        return SupClapTrainer(
            copy.deepcopy(tiny_model),
            args,
            processing_class=processor,
            data_collator=collator,
            train_dataset=CaptionedClips(rows),
        )

    return build


def losses(trainer: SupClapTrainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "grad_norm" in entry]


@pytest.mark.parametrize("workers", [0, 1])
def test_features_made_on_the_device_give_the_losses_of_the_loaders_features(trainer, workers):
    expected = losses(trainer())
    assert len(expected) == 3
    assert losses(trainer(features_on_device=True, dataloader_num_workers=workers)) == expected


def test_the_loader_leaves_the_features_to_the_device_of_the_model(trainer, monkeypatch):
    run = trainer(features_on_device=True)
    batch = next(iter(run.get_train_dataloader()))
    assert "input_features" not in batch
    devices = []
    call = SupClapFeatureExtractor.__call__

    def spy(self, *args, device=None, **kwargs):
        devices.append(device)
        return call(self, *args, device=device, **kwargs)

    monkeypatch.setattr(SupClapFeatureExtractor, "__call__", spy)
    run.train()
    assert devices == 3 * [run.args.device] == 3 * [torch.device("cpu")]


def test_features_that_only_the_cpu_can_make_are_refused_on_the_device(tiny_model, tokenizer, tmp_path):
    from transformers import ClapFeatureExtractor

    from supclap import SupClapEncoderFeatureExtractor, SupClapProcessor

    processor = SupClapProcessor(SupClapEncoderFeatureExtractor(ClapFeatureExtractor()), tokenizer)
    args = SupClapTrainingArguments(str(tmp_path), use_cpu=True, features_on_device=True)
    with pytest.raises(ValueError, match="^features_on_device true is for the features of CED"):
        SupClapTrainer(tiny_model, args, processing_class=processor)


def test_drift_is_measured_on_a_probe_whose_features_are_made_on_the_device(trainer, tmp_path):
    measured = []
    for later in (False, True):
        trainer(features_on_device=later, drift=True, drift_steps=3, drift_probe_size=6).train()
        measured += read_drift(tmp_path / DRIFT)
        (tmp_path / DRIFT).unlink()
    assert [entry["step"] for entry in measured] == [3, 3]
    assert measured[0] == measured[1]
