"""Where the repository and the stored reference outputs of the tests are."""

from pathlib import Path


ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "reference"
