"""Writes the cards of this folder from recipes.yaml: `python model_cards/build.py`."""

from pathlib import Path

import jinja2
import yaml

from supclap.publishing.model_card import CITATION


FOLDER = Path(__file__).parent
NOT_RUN = "not run"


def build_cards() -> dict[str, str]:
    """The text of each card, by its file name."""
    content = yaml.safe_load((FOLDER / "recipes.yaml").read_text(encoding="utf-8"))
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    cards = {}
    for recipe in content["recipes"]:
        rows = [
            {
                "data": content["datasets"].get(figures["data"], figures["data"]),
                "metric": content["columns"][key],
                "table": figures["table"],
                "paper": f"{value:g}",
                "reproduced": NOT_RUN if "reproduced" not in figures else f"{figures['reproduced'][key]:g}",
            }
            for figures in recipe["figures"]
            for key, value in figures.items()
            if key in content["columns"]
        ]
        cards[f"{recipe['id']}.md"] = templates.get_template("recipe_template.md").render(
            title=recipe["title"],
            note=recipe.get("note", ""),
            settings="\n".join(
                f"  {line}" for line in yaml.safe_dump(recipe["training"], sort_keys=False).splitlines()
            ),
            rows=rows,
            metrics={key for figures in recipe["figures"] for key in figures},
            ran=any("reproduced" in figures for figures in recipe["figures"]),
            citation=CITATION,
        )
    cards["quickstart.md"] = templates.get_template("quickstart_template.md").render(
        **content["quickstart"], citation=CITATION
    )
    return cards


if __name__ == "__main__":
    for name, text in build_cards().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
