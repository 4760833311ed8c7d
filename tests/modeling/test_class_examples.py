"""The examples in the docstrings of classes that need no checkpoint print what they say."""

import doctest

import pytest

from supclap import CedConfig, CedModel, SupClapConfig, SupClapEncoderFeatureExtractor, SupClapFeatureExtractor


CLASSES = [CedConfig, CedModel, SupClapConfig, SupClapEncoderFeatureExtractor, SupClapFeatureExtractor]


@pytest.mark.parametrize("documented", CLASSES)
def test_the_example_of_a_class_prints_what_it_says(documented):
    text = documented.__doc__.replace("```python", "").replace("```", "")
    example = doctest.DocTestParser().get_doctest(text, {}, documented.__name__, None, None)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted
    assert not result.failed
