"""The development data: beside the project, or beside a folder of its work trees, and never part of it."""

from pathlib import Path

import pytest


SHARED = next((up / "shared" / "data" for up in Path(__file__).parents if (up / "shared" / "data").is_dir()), None)


def on_shared_data(test):
    """Marks a test of the development data, which skips where they are missing: they may not be committed."""
    return pytest.mark.shared_data(pytest.mark.skipif(SHARED is None, reason="no development data here")(test))
