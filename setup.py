"""Puts `configs/` into the wheel as `supclap/recipes/configs`; everything else is said in pyproject.toml.

The recipes lie at the top, where users look for them. Setuptools has no setting that installs a folder from there into a
package; an editable install needs none, since `supclap.recipes.parser` finds `configs/` beside the package.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("configs", str(Path(self.build_lib) / "supclap" / "recipes" / "configs"))


setup(cmdclass={"build_py": BuildWithRecipes})
