"""The published annotation files themselves, where the development data are."""

import pytest

from supclap.data.corpora import corpus_loader, corpus_module, split_name
from supclap.data.corpora.audioset import label_names
from supclap.data.labels import label_words
from supclap.data.leaks import read_leak_list
from supclap.data.text_files import read_json
from support.shared_data import SHARED, on_shared_data


ANNOTATIONS = SHARED and SHARED / "annotations"

COUNTS = [
    # corpus, folder, split, options, clips, captions
    ("audiocaps", "audiocaps/v1", "train", {}, 49838, 49838),
    ("audiocaps", "audiocaps/v1", "val", {}, 495, 2475),
    ("audiocaps", "audiocaps/v1", "test", {}, 975, 4875),
    ("audiocaps", "audiocaps", "val", {"version": 2}, 495, 2475),
    ("audiocaps", "audiocaps", "test", {"version": 2}, 975, 4875),
    ("audiocaps", "audiocaps_multilingual", "test", {"languages": ["en", "ja"]}, 975, 9750),
    ("audiocaps", "wavcaps/AudioCaps", "train", {}, 49274, 49274),
    ("audiocaps", "wavcaps/AudioCaps", "val", {}, 494, 2470),
    ("audiocaps", "wavcaps/AudioCaps", "test", {}, 957, 4785),
    ("audiocaps", "wavcaps/AudioCaps", "val", {"annotations": "retrieval_json_files/val.json"}, 494, 2470),
    ("audiocaps", "wavcaps/AudioCaps", "test", {"annotations": "retrieval_json_files/test.json"}, 957, 4785),
    ("audiocaps", "ml-clap", "test", {}, 957, 4785),
    ("clotho", "clotho", "train", {}, 3839, 19195),
    ("clotho", "clotho", "val", {}, 1045, 5225),
    ("clotho", "clotho", "test", {}, 1045, 5225),
    ("clotho", "clotho/dcase2023_t6b", "development", {}, 3839, 19195),
    ("clotho", "clotho/dcase2023_t6b", "validation", {}, 1045, 5225),
    ("clotho", "clotho/dcase2023_t6b", "evaluation", {}, 1045, 5225),
    ("clotho", "wavcaps/Clotho", "train", {}, 3839, 19195),
    ("clotho", "wavcaps/Clotho", "val", {}, 1045, 5225),
    ("clotho", "wavcaps/Clotho", "test", {}, 1045, 5225),
    ("wavcaps", "wavcaps", "train", {"sources": ["soundbible"]}, 1232, 1232),
    ("esc50", "esc50", "1", {}, 400, 400),
    ("esc10", "esc50", "5", {}, 80, 80),
    ("urbansound8k", "urbansound8k", "10", {}, 837, 837),
    ("vggsound", "vggsound", "test", {}, 15446, 15446),
]


@on_shared_data
@pytest.mark.parametrize(("name", "folder", "split", "options", "clips", "captions"), COUNTS)
def test_published_files_parse_in_full(name, folder, split, options, clips, captions):
    rows = list(corpus_loader(name, options)(ANNOTATIONS / folder, split_name(name, split)))
    assert len({row["id"] for row in rows}) == len(rows) == clips
    assert sum(len(row["captions"]) for row in rows) == captions
    assert all(caption.strip() for row in rows for caption in row["captions"])
    assert name == "clotho" or all(row["recording"] for row in rows)


@on_shared_data
def test_published_forms_of_one_corpus_agree():
    audiocaps, clotho = corpus_loader("audiocaps", {}), corpus_loader("clotho", {})
    official = {row["id"]: row["captions"] for row in audiocaps(ANNOTATIONS / "audiocaps/v1", "test")}
    other = {row["id"]: row["captions"] for row in audiocaps(ANNOTATIONS / "ml-clap", "test")}
    assert len(other) == 957
    assert all(sorted(captions) == sorted(official[clip]) for clip, captions in other.items())
    official = {row["id"]: row["captions"] for row in clotho(ANNOTATIONS / "clotho", "test")}
    dcase = {row["id"]: row["captions"] for row in clotho(ANNOTATIONS / "clotho/dcase2023_t6b", "test")}
    # of two releases, which differ in a caption of six clips
    assert official.keys() == dcase.keys()
    assert sum(official[clip] == dcase[clip] for clip in official) == 1045 - 6


@on_shared_data
def test_published_leak_lists_name_the_audiocaps_test_clips():
    listed = read_leak_list(ANNOTATIONS / "wavcaps/blacklist/blacklist_exclude_test_ac.json")
    rows = corpus_loader("audiocaps", {})(ANNOTATIONS / "wavcaps/AudioCaps", "test")
    assert all(row["recording"] in listed for row in rows)
    # the AudioSet ids of the list are ids, none of them cut
    assert {len(name) for name in listed if name.startswith("youtube:")} == {len("youtube:") + 11}


@on_shared_data
@pytest.mark.parametrize(
    ("name", "recordings"),
    [
        ("blacklist_exclude_all_ac.json", 56630),
        ("blacklist_exclude_test_ac.json", 3529),
        ("blacklist_exclude_ub8k_esc50_vggsound.json", 17729),
    ],
)
def test_published_leak_lists_parse_in_full(name, recordings):
    listed = read_leak_list(ANNOTATIONS / "wavcaps/blacklist" / name)
    assert len(listed) == recordings
    assert {len(entry) for entry in listed if entry.startswith("youtube:")} == {len("youtube:") + 11}


@on_shared_data
def test_the_published_leak_list_of_all_splits_holds_that_of_the_tests():
    folder = ANNOTATIONS / "wavcaps/blacklist"
    assert read_leak_list(folder / "blacklist_exclude_test_ac.json") <= read_leak_list(
        folder / "blacklist_exclude_all_ac.json"
    )


def laion_classes(name: str) -> list[str]:
    """The classes of a list that LAION scores by, in the order of its indices."""
    indices = read_json(ANNOTATIONS / f"laion_clap_class_labels/{name}_class_labels_indices.json")
    assert sorted(indices.values()) == list(range(len(indices)))
    return sorted(indices, key=indices.get)


@on_shared_data
@pytest.mark.parametrize(
    ("name", "corpus", "folder", "n"),
    [
        ("ESC50", "esc50", "esc50", 50),
        ("UrbanSound8K", "urbansound8k", "urbansound8k", 10),
        ("VGGSound", "vggsound", "vggsound", 309),
    ],
)
def test_the_classes_of_a_corpus_are_those_that_laion_scores_by_once_in_words(name, corpus, folder, n):
    module = corpus_module(corpus)
    splits = [split for split in module.SPLITS if split != "train"]
    labels = {
        label_words(row["label"]) for split in splits for row in corpus_loader(corpus, {})(ANNOTATIONS / folder, split)
    }
    assert labels == set(map(label_words, laion_classes(name)))
    assert len(labels) == n


@on_shared_data
def test_the_classes_of_audioset_are_those_that_laion_scores_by_in_their_order():
    names = label_names(ANNOTATIONS / "audioset")
    assert list(names.values()) == laion_classes("audioset")
    assert len(names) == 527


@on_shared_data
def test_the_class_list_of_audioset_agrees_with_its_ontology():
    ontology = {entry["id"]: entry["name"] for entry in read_json(ANNOTATIONS / "audioset/ontology.json")}
    names = label_names(ANNOTATIONS / "audioset")
    assert {mid: ontology[mid] for mid in names} == names


@on_shared_data
def test_the_list_of_fsd50k_that_laion_scores_by_has_its_200_classes():
    assert len(set(laion_classes("FSD50k"))) == 200
