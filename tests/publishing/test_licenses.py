"""Terms of parts and data carry over to the model."""

import re
from importlib import import_module

import pytest

from supclap.errors import LicenseError
from supclap.publishing.licenses import is_noncommercial, licence_of_model, normalise_licence, propagate


@pytest.mark.parametrize(
    ("written", "identifier"),
    [
        ("CC BY 3.0", "cc-by-3.0"),
        ("CC BY-SA 3.0", "cc-by-sa-3.0"),
        ("CC0 1.0", "cc0-1.0"),
        ("CC BY-NC-SA 4.0 International", "cc-by-nc-sa-4.0"),
        ("http://creativecommons.org/licenses/by-nc/3.0/", "cc-by-nc-3.0"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "cc0-1.0"),
        ("Apache License 2.0", "apache-2.0"),
        ("MIT", "mit"),
        ("Sampling+", "sampling+"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_licences_are_read_as_corpora_write_them(written, identifier):
    assert normalise_licence(written) == identifier


def test_permissive_parts_and_data_leave_the_licence_of_the_parts():
    assert propagate({"text": "apache-2.0"}, ["CC0 1.0", "CC BY 3.0"]).licence == "apache-2.0"


@pytest.mark.parametrize(
    ("towers", "data"),
    [({"SONAR": "cc-by-nc-4.0"}, ["CC0 1.0"]), ({"MiniLM": "apache-2.0"}, ["CC0 1.0", "CC BY-NC 4.0"])],
    ids=["tower", "data"],
)
def test_a_non_commercial_part_makes_the_model_non_commercial_and_refuses_apache(towers, data):
    assert propagate(towers, data).licence == "cc-by-nc-4.0"
    with pytest.raises(LicenseError, match="'apache-2.0' is refused: .*no commercial use"):
        propagate(towers, data, wanted="apache-2.0")
    assert propagate(towers, data, wanted="cc-by-nc-sa-4.0").licence == "cc-by-nc-sa-4.0"


def test_several_non_commercial_licences_stay_non_commercial_under_no_one_identifier():
    verdict = propagate({"SONAR": "cc-by-nc-4.0"}, ["CC BY-NC-SA 3.0"])
    assert (verdict.licence, verdict.name) == ("other", "several-licences-noncommercial")


@pytest.mark.parametrize("wanted", [None, "apache-2.0"])
def test_share_alike_data_is_said_so_whatever_licence_is_asked_for(wanted):
    verdict = propagate({"text": "apache-2.0"}, ["CC0 1.0", "CC BY-SA 3.0"], wanted)
    assert verdict.licence == (wanted or "cc-by-sa-3.0")
    assert any("share-alike (cc-by-sa-3.0)" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("towers", "data"), [({"text": None}, ["CC0 1.0"]), ({"text": "mit"}, [None])])
def test_unknown_terms_give_no_open_licence(towers, data):
    verdict = propagate(towers, data)
    assert (verdict.licence, verdict.name) == ("other", "unknown-terms")
    assert any("is not known" in reason for reason in verdict.reasons)


def test_the_card_of_an_encoder_tells_its_licence(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n# Encoder\n")
    assert licence_of_model(str(tmp_path)) == "cc-by-nc-4.0"


@pytest.mark.parametrize("readme", [None, "no front matter", "---\nlicense: [\n---\n", "---\nlicense: other\n---\n"])
def test_a_sonar_encoder_without_a_licence_of_its_own_is_non_commercial(tmp_path, readme):
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    assert licence_of_model(str(tmp_path), "m2m_100") == "cc-by-nc-4.0"
    assert licence_of_model(str(tmp_path), "bert") == "unknown"


@pytest.mark.parametrize("name", ["several-licences-noncommercial", "fair-noncommercial-research-license"])
def test_the_name_of_an_other_licence_tells_that_it_is_non_commercial(tmp_path, name):
    (tmp_path / "README.md").write_text(f"---\nlicense: other\nlicense_name: {name}\n---\n")
    with pytest.raises(LicenseError, match="no commercial use"):
        propagate({"base": licence_of_model(str(tmp_path))}, ["CC0 1.0"], "apache-2.0")


@pytest.mark.parametrize(
    ("towers", "data"),
    [
        ({"text": "cc-by-nc-4.0", "audio": "llama3"}, ["CC BY-NC-SA 3.0"]),
        ({"text": "apache-2.0"}, ["words of their own"]),
        ({"text": "gpl-3.0", "audio": "llama3"}, []),
        ({"text": "gpl-3.0"}, ["CC BY-SA 3.0"]),
    ],
)
def test_a_card_of_ours_that_refuses_apache_makes_the_next_model_refuse_it(tmp_path, towers, data):
    verdict = propagate(towers, data)
    (tmp_path / "README.md").write_text(f"---\nlicense: {verdict.licence}\nlicense_name: {verdict.name}\n---\n")
    with pytest.raises(LicenseError):
        propagate({"base": licence_of_model(str(tmp_path))}, [], "apache-2.0")


def test_of_several_licences_of_a_card_the_one_that_restricts_most_counts(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: [mit, gpl-3.0, cc-by-nc-4.0]\n---\n")
    assert licence_of_model(str(tmp_path)) == "cc-by-nc-4.0"


@pytest.mark.parametrize(
    "licence",
    [
        *("apple-amlr", "intel-research", "deepfloyd-if-license"),
        *("cc-by-nd-4.0", "cc-by-sa-4.0", "llama3", "bigscience-bloom-rail-1.0", "openrail", "gpl-3.0", "apple-ascl"),
    ],
)
def test_a_tower_whose_licence_is_not_known_to_be_permissive_refuses_apache(licence):
    with pytest.raises(LicenseError, match=licence):
        propagate({"text": licence}, [], "apache-2.0")
    assert propagate({"text": licence}, [], licence).licence == propagate({"text": licence}, []).licence == licence


@pytest.mark.parametrize("licence", ["apple-amlr", "intel-research", "deepfloyd-if-license"])
def test_identifiers_whose_texts_allow_research_alone_are_non_commercial(licence):
    assert is_noncommercial(licence)


@pytest.mark.parametrize("licence", ["mit", "bsd-3-clause", "cc0-1.0", "CC BY 4.0", "unknown"])
def test_a_permissive_or_unstated_licence_of_a_tower_lets_the_publisher_choose(licence):
    assert propagate({"text": licence}, [], "apache-2.0").licence == "apache-2.0"


def test_data_without_derivatives_refuses_apache():
    with pytest.raises(LicenseError, match="cc-by-nd-4.0"):
        propagate({"text": "mit"}, ["CC BY-ND 4.0"], "apache-2.0")


def corpus_licence(corpus):
    return import_module(f"supclap.data.corpora.{corpus}").LICENCE


@pytest.mark.parametrize("corpus", ["audiocaps", "audioset", "vggsound", "wavcaps", "fsd50k", "clotho", "macs"])
def test_terms_of_a_corpus_in_words_give_no_open_licence_and_refuse_apache(corpus):
    data = [corpus_licence(corpus), "CC0 1.0"]
    verdict = propagate({"text": "apache-2.0"}, data)
    assert verdict.licence == "other"
    with pytest.raises(LicenseError, match="'apache-2.0' is refused"):
        propagate({"text": "apache-2.0"}, data, wanted="apache-2.0")


@pytest.mark.parametrize("corpus", ["wavcaps", "clotho", "macs"])
def test_terms_of_a_corpus_for_academic_use_are_non_commercial(corpus):
    verdict = propagate({"text": "apache-2.0"}, [corpus_licence(corpus)])
    assert any("allows no commercial use" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("words", "restricts"),
    [
        ("research use only", True),
        ("Research only", True),
        ("for non commercial use", True),
        ("Academic Free License", False),
        ("research data", False),
    ],
)
def test_words_that_restrict_the_use_are_told_from_others(words, restricts):
    assert is_noncommercial(normalise_licence(words)) == restricts


@pytest.mark.parametrize("corpus", ["clotho", "macs"])
def test_terms_without_an_identifier_get_a_name_that_the_hub_takes(corpus):
    verdict = propagate({"text": "apache-2.0"}, [corpus_licence(corpus)])
    assert verdict.licence == "other"
    assert re.fullmatch(r"[a-z0-9.-]+", verdict.name)
    assert "tampere-university" in verdict.name


def test_a_licence_of_ones_own_is_named_beside_other():
    verdict = propagate({"text": "apache-2.0"}, ["CC0 1.0"], wanted="My terms")
    assert (verdict.licence, verdict.name) == ("other", "my-terms")
