"""The cards of recipes: written from one file of figures, with what the paper reports apart from what was run."""

import importlib.util

import pytest
import yaml

from supclap.training.arguments import SupClapTrainingArguments
from support.paths import ROOT


FOLDER = ROOT / "model_cards"
CONTENT = yaml.safe_load((FOLDER / "recipes.yaml").read_text(encoding="utf-8"))
NAMES = [f"{recipe['id']}.md" for recipe in CONTENT["recipes"]]


@pytest.fixture(scope="module")
def cards():
    spec = importlib.util.spec_from_file_location("build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_cards()


def table(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]


def test_the_cards_in_the_folder_are_those_of_the_file_of_figures(cards):
    assert {path.name for path in FOLDER.glob("*.md")} - {path.name for path in FOLDER.glob("*template.md")} == set(
        cards
    )
    for name, text in cards.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, "run python model_cards/build.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_of_the_paper_stands_in_its_own_column_with_its_table(cards, name):
    rows = table(cards[name])
    assert rows
    for _, _, paper, reproduced in rows:
        assert "(Table " in paper
        assert "Table" not in reproduced


def test_what_was_not_run_says_so_in_every_row_and_above(cards):
    for recipe in CONTENT["recipes"]:
        if not any("reproduced" in figures for figures in recipe["figures"]):
            card = cards[f"{recipe['id']}.md"]
            assert {row[3] for row in table(card)} == {"not run"}
            assert "has not run this recipe" in card


def test_a_reproduced_figure_goes_into_its_column(cards, monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path in FOLDER.glob("*template.md"):
        (tmp_path / path.name).write_text(path.read_text())
    changed = yaml.safe_load((FOLDER / "recipes.yaml").read_text())
    changed["recipes"][0]["figures"][3]["reproduced"] = {"accuracy": 12.5}
    (tmp_path / "recipes.yaml").write_text(yaml.safe_dump(changed))
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    rows = table(module.build_cards()[NAMES[0]])
    assert ["UrbanSound8K", "zero-shot accuracy", "81.63 (Table 2)", "12.5"] in rows
    assert sum(row[3] == "not run" for row in rows) == len(rows) - 1


@pytest.mark.parametrize("recipe", CONTENT["recipes"], ids=NAMES)
def test_the_settings_of_a_card_are_those_of_a_training_run(recipe, tmp_path):
    args = SupClapTrainingArguments(str(tmp_path), **recipe["training"])
    assert args.objective == recipe["training"]["objective"]


def test_the_figures_are_shares_of_the_test_sets_of_the_paper():
    """A misread digit would be no multiple of 1 / n. One value of the paper, 92.67, is known to be none."""
    clips = {"audiocaps": 952, "clotho": 1035}
    misfits = []
    for recipe in CONTENT["recipes"]:
        for figures in recipe["figures"]:
            if figures["table"] != 1:
                continue
            for key, captions in (("a2t_r1", 1), ("a2t_r10", 1), ("t2a_r1", 5), ("t2a_r10", 5)):
                n = captions * clips[figures["data"]]
                nearest = round(figures[key] / 100 * n)
                if abs(100 * nearest / n - figures[key]) > 0.0051:
                    misfits.append(figures[key])
    assert misfits == [92.67]
