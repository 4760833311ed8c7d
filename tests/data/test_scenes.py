"""Scenes: what is in them, what their captions say, and that they are a function of seed, epoch and index alone."""

import pickle

import numpy as np
import pytest
import torch

from supclap.data.augment import change_speed
from supclap.data.dataset import CaptionedClips
from supclap.data.scenes import SceneMixer
from support.builders import RATE, tone


def recordings(labels: int = 4, takes: int = 2, seconds: float = 0.5) -> list[dict]:
    return [
        {
            "id": f"{label}-{take}",
            "audio": {"array": tone(400 * (label + 1), seconds, level=1.0), "sampling_rate": RATE},
            "captions": [f"tone {label}", f"a tone of kind {label}"],
            "label": str(label),
        }
        for label in range(labels)
        for take in range(takes)
    ]


def spectrum_level(wave: np.ndarray, frequency: float) -> float:
    """Amplitude of one frequency by projection on a complex tone."""
    phase = np.exp(-2j * np.pi * frequency * np.arange(len(wave)) / RATE)
    return 2 * abs(np.mean(wave * phase))


def only(kind: str, **arguments) -> SceneMixer:
    defaults = {"size": 20, "kinds": {kind: 1.0}, "duration": (4.0, 8.0)}
    return SceneMixer(recordings(), **{**defaults, **arguments})


def test_a_scene_is_the_same_whenever_it_is_made():
    first, second = only("background"), only("background")
    second[3]
    np.testing.assert_array_equal(first[7]["audio"]["array"], second[7]["audio"]["array"])
    assert first[7]["captions"] == second[7]["captions"]


@pytest.fixture
def torch_threads():
    """Sets the number of torch's threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("cache_bytes", [2**29, 100_000])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_make_the_scenes_of_a_batch_as_one_does(torch_threads, threads, cache_bytes):
    def mixer() -> SceneMixer:
        kinds = {"sequence": 1.0, "background": 1.0}
        return only("", kinds=kinds, block=3, block_labels=3, noise_db=(20, 40), speeds=(90, 100), size=60)

    together, alone = CaptionedClips(mixer(), seed=1), CaptionedClips(mixer(), seed=1)
    together.rows._load.max_bytes = cache_bytes
    torch_threads(threads)
    samples = together.__getitems__(range(60))
    torch_threads(1)
    for index, sample in enumerate(samples):
        expected = alone[index]
        np.testing.assert_array_equal(sample.pop("audio"), expected.pop("audio"))
        assert sample == expected
    assert together.rows._load.size == sum(array.nbytes for array in together.rows._load._arrays.values())


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("speed", [85, 90, 95, 105, 110, 115])
def test_a_change_of_speed_has_the_same_bits_on_any_number_of_threads(torch_threads, speed, threads):
    noise = np.random.default_rng(0).standard_normal(8000, np.float32)
    torch_threads(1)
    expected = change_speed(noise, speed)
    torch_threads(threads)
    np.testing.assert_array_equal(change_speed(noise, speed), expected)


@pytest.mark.parametrize("speed", [90, 110])
def test_a_change_of_speed_is_the_sound_at_other_times(speed):
    slow = change_speed(np.sin(0.3 * np.arange(16000)).astype(np.float32), speed)
    # Sample n of the result is the sound at n * speed / 100; the ends hear the silence beyond them.
    expected = np.sin(0.3 * np.arange(len(slow)) * speed / 100)
    np.testing.assert_allclose(slow[500:-500], expected[500:-500], atol=1e-5)


def test_a_click_of_one_sample_stays_a_sound_at_any_speed():
    np.testing.assert_array_equal(change_speed(np.ones(1, np.float32), 400), [1])


def test_a_mixer_travels_to_another_process():
    mixer = only("background", block=4, block_labels=3)
    before = mixer[5]["audio"]["array"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(mixer))[5]["audio"]["array"], before)


def test_labels_named_unseen_are_not_mixed_with_each_other_in_training():
    for kind in ("sequence", "background"):
        mixed = {
            tuple(sorted(scene["labels"])) for scene in only(kind, size=200, pairs="seen", unseen_labels=["0", "2"])
        }
        assert mixed == {("0", "1"), ("0", "3"), ("1", "2"), ("1", "3"), ("2", "3")}


def test_speeds_change_pitch_and_length():
    slow, as_it_is = (only("clip", speeds=[speed])[0]["audio"]["array"] for speed in (80, 100))
    assert len(slow) == pytest.approx(len(as_it_is) / 0.8, abs=2)
    peaks = [np.abs(np.fft.rfft(wave, 8000)).argmax() for wave in (slow, as_it_is)]
    assert peaks[0] == pytest.approx(0.8 * peaks[1], abs=1)


def test_epoch_and_seed_change_the_scenes():
    mixer = only("sequence")
    before = mixer[0]["audio"]["array"]
    mixer.set_epoch(1)
    assert not np.array_equal(before, mixer[0]["audio"]["array"])
    assert not np.array_equal(before, only("sequence", seed=1)[0]["audio"]["array"])


def test_lengths_are_in_the_asked_range():
    seconds = [len(scene["audio"]["array"]) / RATE for scene in only("single")]
    assert min(seconds) >= 4
    assert max(seconds) <= 8
    assert max(seconds) - min(seconds) > 1


def test_captions_of_each_kind_say_what_happens():
    assert only("single")[0]["captions"][0].startswith("tone ")
    for caption in only("sequence")[0]["captions"]:
        assert ", followed by " in caption
    for caption in only("background")[0]["captions"]:
        assert caption.endswith(" in the background")
        assert ", with " in caption


def test_a_sequence_holds_the_first_sound_before_the_second():
    scene = only("sequence")[0]
    wave, (first, second) = scene["audio"]["array"], (int(label) for label in scene["labels"])
    start, end = wave[: int(0.39 * len(wave))], wave[int(0.61 * len(wave)) :]
    assert spectrum_level(start, 400 * (first + 1)) > 100 * spectrum_level(start, 400 * (second + 1))
    assert spectrum_level(end, 400 * (second + 1)) > 100 * spectrum_level(end, 400 * (first + 1))


def test_the_background_is_twelve_decibels_below():
    # recordings as long as the scene, so that pauses do not blur the levels
    mixer = SceneMixer(recordings(seconds=8), size=1, kinds={"background": 1.0}, duration=(6.0, 6.0))
    scene = mixer[0]
    front, back = (spectrum_level(scene["audio"]["array"], 400 * (int(label) + 1)) for label in scene["labels"])
    assert 20 * np.log10(front / back) == pytest.approx(12, abs=0.1)


def test_levels_are_in_the_asked_range():
    mixer = SceneMixer(recordings(seconds=8), size=20, kinds={"single": 1.0}, level_db=(-30.0, -20.0))
    levels = [20 * np.log10(np.sqrt(np.mean(scene["audio"]["array"] ** 2))) for scene in mixer]
    assert -30.2 < min(levels) < -27
    assert -23 < max(levels) < -19.8


def test_seen_and_unseen_pairs_have_no_combination_in_common_in_any_order():
    rows = recordings(labels=12, takes=1)
    seen = {frozenset(pair) for pair in SceneMixer(rows, size=1, pairs="seen", unseen_fraction=0.3).mixable}
    unseen = {frozenset(pair) for pair in SceneMixer(rows, size=1, pairs="unseen", unseen_fraction=0.3).mixable}
    assert not seen & unseen
    assert len(seen | unseen) == 12 * 11 / 2


def test_distinct_scenes_never_mean_the_same():
    mixer = SceneMixer(recordings(labels=6), size=50, distinct=True)
    groups = [scene["group"] for scene in mixer]
    assert len(set(groups)) == 50


def test_more_distinct_scenes_than_meanings_are_refused():
    with pytest.raises(ValueError, match="Only 28 scenes of different meaning"):
        SceneMixer(recordings(labels=4), size=200, distinct=True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"kinds": {"overlap": 1.0}}, "background"),
        ({"pairs": "some"}, "pairs"),
        ({"duration": (8.0, 4.0)}, "duration"),
    ],
)
def test_wrong_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        SceneMixer(recordings(), size=1, **arguments)


def test_one_label_cannot_be_mixed():
    with pytest.raises(ValueError, match="1 labels give no all pair"):
        SceneMixer(recordings(labels=1), size=1)


def test_a_row_without_captions_is_named():
    rows = recordings()
    rows[3]["captions"] = []
    with pytest.raises(ValueError, match="row 3 .id '1-1'. needs `captions`"):
        SceneMixer(rows, size=1)


def test_scenes_stay_in_range_and_are_finite_when_a_recording_is_silent():
    rows = recordings(labels=2)
    for row in rows[:2]:
        row["audio"] = {"array": np.zeros(8000, dtype=np.float32), "sampling_rate": RATE}
    for scene in SceneMixer(rows, size=20):
        assert np.isfinite(scene["audio"]["array"]).all()
        assert np.abs(scene["audio"]["array"]).max() <= 1


def test_a_curriculum_changes_the_first_epochs_only():
    stages = [{"kinds": {"single": 1.0}, "duration": (1.0, 2.0)}]
    mixer = SceneMixer(recordings(), size=12, kinds={"sequence": 1.0}, duration=(4.0, 5.0), curriculum=stages)
    assert all(len(scene["labels"]) == 1 and len(scene["audio"]["array"]) <= 2 * RATE for scene in mixer)
    mixer.set_epoch(1)
    assert all(len(scene["labels"]) == 2 and len(scene["audio"]["array"]) >= 4 * RATE for scene in mixer)


def test_lengths_are_those_of_the_scenes_and_keep_their_order_over_the_epochs():
    mixer = SceneMixer(recordings(), size=12, curriculum=[{"duration": (1.0, 2.0)}])
    first = mixer.lengths
    assert first == [len(scene["audio"]["array"]) for scene in mixer]
    mixer.set_epoch(1)
    assert np.argsort(mixer.lengths).tolist() == np.argsort(first).tolist()


def test_a_wrong_stage_of_the_curriculum_is_named():
    with pytest.raises(ValueError, match="kinds, duration and block_labels, got .'level'."):
        SceneMixer(recordings(), size=1, curriculum=[{"level": 3}])


def test_silence_around_a_recording_is_left_out_of_scenes_and_kept_in_clips():
    rows = recordings(labels=1, takes=1, seconds=0.5)
    wave = rows[0]["audio"]["array"]
    rows[0]["audio"]["array"] = np.concatenate([np.zeros(2 * RATE, np.float32), wave, np.zeros(RATE, np.float32)])
    scene = SceneMixer(rows, size=1, kinds={"single": 1.0})[0]["audio"]["array"]
    assert np.abs(scene[:RATE]).max() > 0
    clip = SceneMixer(rows, size=1, kinds={"clip": 1.0})[0]["audio"]["array"]
    assert len(clip) == 3.5 * RATE
    assert np.abs(clip[: 2 * RATE]).max() == 0


def test_scenes_of_a_block_are_of_one_length_and_share_few_labels():
    mixer = SceneMixer(recordings(labels=12), size=60, block=20, block_labels=4)
    blocks = [[mixer[i] for i in range(start, start + 20)] for start in (0, 20, 40)]
    labels = [{label for scene in block for label in scene["labels"]} for block in blocks]
    assert all(len({len(scene["audio"]["array"]) for scene in block}) == 1 for block in blocks)
    assert all(len(found) <= 4 for found in labels)
    assert len(set.union(*labels)) > 4


def test_a_block_without_a_pair_that_may_be_mixed_gives_single_sounds():
    rows = recordings(labels=12, takes=1)
    mixer = SceneMixer(rows, size=200, kinds={"sequence": 1.0}, pairs="unseen", unseen_fraction=0.1, block_labels=2)
    assert any(len(scene["labels"]) == 1 for scene in (mixer[i] for i in range(200)))


def test_wrong_blocks_are_named():
    with pytest.raises(ValueError, match="block_labels at least 2"):
        SceneMixer(recordings(), size=1, block=4, block_labels=1)
