"""The examples in the docstrings of `supclap.losses` run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import supclap.losses


MODULES = [module.name for module in pkgutil.iter_modules(supclap.losses.__path__, "supclap.losses.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", supclap.losses.__all__)
def test_everything_public_but_the_gathering_has_an_example(name):
    assert ">>>" in getattr(supclap.losses, name).__doc__ or name.startswith("gather_")
