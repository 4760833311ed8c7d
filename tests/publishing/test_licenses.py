"""A non-commercial part or non-commercial data make a non-commercial model."""

import re
from importlib import import_module

import pytest

from supclap.errors import LicenseError
from supclap.publishing.licenses import (
    decide_license,
    is_noncommercial,
    license_of_model,
    normalize_license,
    part_licenses,
)


@pytest.mark.parametrize(
    ("written", "identifier"),
    [
        ("CC BY 3.0", "cc-by-3.0"),
        ("CC0 1.0", "cc0-1.0"),
        ("CC BY-NC-SA 4.0 International", "cc-by-nc-sa-4.0"),
        ("http://creativecommons.org/licenses/by-nc/3.0/", "cc-by-nc-3.0"),
        ("MIT", "mit"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_licenses_are_read_as_corpora_write_them(written, identifier):
    assert normalize_license(written) == identifier


@pytest.mark.parametrize(
    ("words", "restricts"),
    [
        ("cc-by-nc-nd-4.0", True),
        ("Attribution NonCommercial", True),
        ("for non commercial use", True),
        ("not for commercial use", True),
        ("free for commercial use", False),
        ("fair-noncommercial-research-license", True),
        ("research use only", True),
        ("Research only", True),
        ("apple-amlr", True),
        ("several-licences-noncommercial", True),  # on cards that were written before
        ("cc-by-4.0", False),
        ("ncsa", False),
        ("apache-2.0", False),
        ("Academic Free License", False),
        ("research data", False),
    ],
)
def test_words_that_allow_no_commercial_use_are_told_from_others(words, restricts):
    assert is_noncommercial(words) == restricts


@pytest.mark.parametrize("corpus", ["wavcaps", "clotho", "macs", "urbansound8k"])
def test_corpora_that_allow_no_commercial_use_refuse_apache(corpus):
    data = [import_module(f"supclap.data.corpora.{corpus}").LICENCE]
    with pytest.raises(LicenseError, match="no commercial use"):
        decide_license({"text": "apache-2.0"}, data, wanted="apache-2.0")


@pytest.mark.parametrize(
    ("parts", "data"),
    [({"SONAR": "cc-by-nc-4.0"}, ["CC0 1.0"]), ({"MiniLM": "apache-2.0"}, ["CC0 1.0", "CC BY-NC 4.0"])],
    ids=["part", "data"],
)
def test_a_non_commercial_part_makes_the_model_non_commercial_and_refuses_others(parts, data):
    assert decide_license(parts, data).license == "cc-by-nc-4.0"
    for license in ("apache-2.0", "mit", "cc-by-4.0", "My terms"):
        with pytest.raises(LicenseError, match=f"'{license}' is refused: .*no commercial use"):
            decide_license(parts, data, wanted=license)
    assert decide_license(parts, data, wanted="cc-by-nc-sa-4.0").license == "cc-by-nc-sa-4.0"


def test_non_commercial_parts_of_several_licenses_stay_non_commercial_under_no_single_identifier():
    verdict = decide_license({"SONAR": "cc-by-nc-4.0"}, ["CC BY-NC-SA 3.0"])
    assert (verdict.license, verdict.name) == ("other", "several-licenses-noncommercial")
    assert is_noncommercial(verdict.name)


def test_non_commercial_terms_in_words_get_a_name_that_the_hub_takes():
    verdict = decide_license({}, ["captions: Tampere University, non-commercial"])
    assert verdict.license == "other"
    assert re.fullmatch(r"[a-z0-9.-]+", verdict.name)
    assert is_noncommercial(verdict.name)


@pytest.mark.parametrize("wanted", ["apache-2.0", "mit", "cc-by-sa-4.0"])
def test_the_license_asked_for_is_given_where_nothing_is_non_commercial(wanted):
    assert decide_license({"text": "apache-2.0"}, ["CC BY 3.0", None], wanted).license == wanted


def test_a_license_that_is_no_identifier_is_named_beside_other():
    verdict = decide_license({"text": "apache-2.0"}, ["CC0 1.0"], wanted="My terms")
    assert (verdict.license, verdict.name) == ("other", "my-terms")


def test_without_a_choice_the_card_says_that_no_license_is_chosen_and_what_states_none():
    verdict = decide_license({"The text encoder": "unknown"}, ["CC0 1.0"])
    assert (verdict.license, verdict.name) == ("other", "unknown-terms")
    assert verdict.reasons[0] == "The text encoder states no license."
    assert verdict.reasons[1].startswith("No license was chosen")


def test_the_card_of_an_encoder_tells_its_license(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n# Encoder\n")
    assert license_of_model(str(tmp_path)) == "cc-by-nc-4.0"


@pytest.mark.parametrize("readme", [None, "no front matter", "---\nlicense: [\n---\n", "---\nlicense: other\n---\n"])
def test_a_sonar_encoder_without_a_license_of_its_own_is_non_commercial(tmp_path, readme):
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    assert license_of_model(str(tmp_path), "m2m_100") == "cc-by-nc-4.0"
    assert license_of_model(str(tmp_path), "bert") == "unknown"


def test_of_several_licenses_of_a_card_a_non_commercial_one_counts(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: [mit, gpl-3.0, cc-by-nc-4.0]\n---\n")
    assert license_of_model(str(tmp_path)) == "cc-by-nc-4.0"


def test_a_card_of_ours_that_refuses_apache_makes_the_next_model_refuse_it(tmp_path):
    verdict = decide_license({"text": "cc-by-nc-4.0"}, ["CC BY-NC-SA 3.0"])
    (tmp_path / "README.md").write_text(f"---\nlicense: {verdict.license}\nlicense_name: {verdict.name}\n---\n")
    with pytest.raises(LicenseError):
        decide_license({"base": license_of_model(str(tmp_path))}, [], "apache-2.0")


def test_an_audio_encoder_of_random_weights_has_no_license(tmp_path):
    config = {"text_config": {"_name_or_path": str(tmp_path)}, "audio_config": {"_name_or_path": ""}}
    assert part_licenses({"text_model": str(tmp_path), "audio_model": "random:ced-tiny"}, config) == {
        "text_encoder": "unknown"
    }


@pytest.mark.parametrize("key", ["model", "checkpoint"])
def test_a_model_that_training_went_on_from_passes_its_license_on(tmp_path, key):
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-nc-sa-4.0\n---\n")
    assert part_licenses({key: str(tmp_path)}, {"text_config": {}}) == {"model": "cc-by-nc-sa-4.0"}


def test_the_source_license_in_the_config_of_a_model_converted_before_is_read():
    config = {"source_licence": "cc-by-nc-4.0", "text_config": {}, "audio_config": {}}
    assert part_licenses({}, config) == {"model": "cc-by-nc-4.0"}
