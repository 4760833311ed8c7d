"""Settings are checked by the annotations of their fields and by nothing else; pydantic reads them.

An annotation says type, choices and range, such as `Literal["bi", "uni"]` or `PositiveInt | None`. The sections of a
recipe and the arguments of training are both checked this way, and the help of a recipe is written from the same
annotations. What an annotation cannot say, such as which sizes go together, is checked by the class that takes them.
"""

import re
import typing
from collections.abc import Callable, Collection
from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from supclap.errors import SettingsError, did_you_mean, nearest


Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


def fields_of(kind: Callable, without: Collection[str] = (), **narrower: Any) -> type:
    """The type of a mapping that holds arguments of a class, any of them, checked by the annotations of that class.

    Args:
        kind: The class.
        without: Arguments that a recipe does not give, because the run does.
        narrower: Annotations in place of its own, with a range that the class does not check.
    """
    annotations = kind.__dict__.get("__annotations__") or kind.__init__.__annotations__
    given = {name: annotation for name, annotation in annotations.items() if name not in without}
    fields = TypedDict(kind.__name__, given | narrower, total=False)
    fields.__pydantic_config__ = _CONFIG
    return fields


@cache
def adapter(kind: Any) -> TypeAdapter:
    """What checks values against an annotation, and describes it."""
    return TypeAdapter(kind, config=None if hasattr(kind, "__pydantic_config__") else _CONFIG)


def checked(key: str, value: Any, kind: Any) -> Any:
    """A value, converted to the annotation of its field where that loses nothing: the text `1e-4` to a number.

    Args:
        key: Name of the field, for the message.
        value: What the user gave.
        kind: Annotation of the field.

    Raises:
        SettingsError: The value does not fit. The message is one line with the key, the value, what is allowed and,
            for a misspelt choice, the nearest one.
    """
    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        raise SettingsError(_in_words(key, value, kind, error.errors())) from None


def _in_words(key: str, value: Any, kind: Any, problems: list[dict]) -> str:
    # Of a union, pydantic reports what is wrong for each of its types. The user meant those that fit furthest.
    furthest = max(len(problem["loc"]) for problem in problems)
    problems = [problem for problem in problems if len(problem["loc"]) == furthest]
    first = problems[0]
    if first["type"] == "value_error":  # raised by a validator of ours, which says what is allowed
        return f"{key} {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        known = [name for option in (kind, *typing.get_args(kind)) for name in getattr(option, "__annotations__", ())]
        return f"{key}: unknown key {first['loc'][-1]!r}; {did_you_mean(first['loc'][-1], known)}"
    for place in first["loc"]:
        if isinstance(value, dict) and place in value:
            key, value = f"{key}.{place}", value[place]
        elif isinstance(value, list | tuple) and place in range(len(value)):
            key, value = f"{key}[{place}]", value[place]
        # else it is no place in the value, but pydantic's name of a type of the union
    same = (problem["msg"] for problem in problems if problem["input"] is first["input"])
    reasons = (message.partition(", unable to")[0].replace("Input should be", "must be") for message in same)
    reason = " or ".join(dict.fromkeys(reasons)).replace("or must be", "or").replace("tuple", "list")
    reason = reason.replace("String should match pattern", "a text with")
    reason = {"missing": "needs one more item", "sequence_str": "must be a valid list"}.get(first["type"], reason)
    near = nearest(value, re.findall("'([^']*)'", str(first.get("ctx"))))
    hint = f"; did you mean {near!r}?" if near else "."
    if first["type"] == "string_type" and isinstance(value, int | float):
        hint = "; put it in quotes."
    return f"{key} {reason}, got {value!r}{hint}"
