"""Streams of rows: split over ranks, endless, and resumed where they were."""

from itertools import islice

import datasets
import numpy as np
import pytest

from supclap.data import StreamedClips


CLIPS = 7


def stream(waves: dict[str, bytes]) -> datasets.IterableDataset:
    def rows():
        for name, data in waves.items():
            yield {"id": name, "audio": data, "captions": [f"{name} one", f"{name} two"]}

    return datasets.IterableDataset.from_generator(rows)


@pytest.fixture(scope="module")
def waves() -> dict[str, bytes]:
    import io

    import soundfile

    rng, files = np.random.default_rng(0), {}
    for number in range(CLIPS):
        file = io.BytesIO()
        soundfile.write(file, 0.1 * rng.standard_normal(6000), 16000, format="WAV")
        files[f"clip{number}"] = file.getvalue()
    return files


def ids(clips: StreamedClips, count: int) -> list[str]:
    return [sample["id"] for sample in islice(clips, count)]


def test_ranks_see_each_clip_once_an_epoch(waves):
    first = ids(StreamedClips(stream(waves), rank=0, world_size=2, shuffle_buffer=10), 4)
    second = ids(StreamedClips(stream(waves), rank=1, world_size=2, shuffle_buffer=10), 3)
    assert sorted(first + second) == sorted(waves)


def test_epochs_follow_each_other_in_new_orders_that_a_seed_repeats(waves):
    seen = ids(StreamedClips(stream(waves), shuffle_buffer=10, seed=1), 2 * CLIPS)
    assert sorted(seen[:CLIPS]) == sorted(seen[CLIPS:]) == sorted(waves)
    assert seen[:CLIPS] != seen[CLIPS:]
    assert seen == ids(StreamedClips(stream(waves), shuffle_buffer=10, seed=1), 2 * CLIPS)
    assert seen != ids(StreamedClips(stream(waves), shuffle_buffer=10, seed=2), 2 * CLIPS)


def test_an_empty_stream_is_named(waves):
    with pytest.raises(ValueError, match="empty on this rank"):
        next(iter(StreamedClips(stream({}), shuffle_buffer=0)))


def test_a_run_on_a_stream_resumes_to_the_same_losses(make_trainer, tiny_config, waves, tmp_path):
    import torch

    from supclap import SupClapModel

    losses = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=2)
        torch.manual_seed(1)
        trainer.model.clap.load_state_dict(SupClapModel(tiny_config).state_dict())
        trainer.train_dataset = StreamedClips(stream(waves), shuffle_buffer=10)
        trainer.train(resume_from_checkpoint=resume)
        losses.append([entry["loss"] for entry in trainer.state.log_history if "grad_norm" in entry])
    assert len(losses[0]) == 4  # over more than one epoch of 7 clips in batches of 4
    assert losses[1] == losses[0]
