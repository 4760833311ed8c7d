"""Settings are checked by the annotations of their fields and by nothing else; pydantic reads them.

An annotation says type, choices and range, such as `Literal["bi", "uni"]` or `PositiveInt | None`. The sections of a
recipe and the arguments of training are both checked this way, and the help of a recipe is written from the same
annotations. What an annotation cannot say, such as which sizes go together, is checked by the class that takes them.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from supclap.errors import SettingsError, did_you_mean, nearest


Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_NAMES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "object": "a mapping",
    "null": "null",
}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def fields_of(kind: Callable) -> type:
    """The type of a mapping that holds arguments of a class, any of them, checked by the annotations of that class."""
    annotations = kind.__dict__.get("__annotations__") or kind.__init__.__annotations__
    fields = TypedDict(kind.__name__, dict(annotations), total=False)  # noqa: UP013
    fields.__pydantic_config__ = _CONFIG
    return fields


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
    adapter = _adapter(kind)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        # Of a union, pydantic reports what is wrong for each of its types. The user meant the type that fits furthest.
        problem = max(error.errors(), key=lambda problem: len(problem["loc"]))
        if problem["type"] == "value_error":  # raised by a validator of ours, which says what is allowed
            raise SettingsError(f"{key} {problem['ctx']['error']}") from None
        raise _wrong_part(key, value, problem["loc"], list(_alternatives(adapter.json_schema()))) from None


def allowed(kind: Any) -> str:
    """What an annotation allows, in words."""
    return _in_words(list(_alternatives(_adapter(kind).json_schema())))


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind, config=None if hasattr(kind, "__pydantic_config__") else _CONFIG)


def _alternatives(schema: dict, definitions: dict | None = None) -> Iterator[dict]:
    """The JSON schemas that a schema is a choice of, each with the definitions that it refers to."""
    definitions = definitions or schema.get("$defs", {})
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for option in schema.get("anyOf", []):
        yield from _alternatives(option, definitions)
    if "anyOf" not in schema:
        yield {**schema, "$defs": definitions}


def _wrong_part(key: str, value: Any, location: tuple, schemas: list[dict]) -> SettingsError:
    """The error for the part of a value that lies at a location, where the schemas describe the whole value."""
    for place in location:
        if isinstance(value, dict) and place in value:
            known = [schema for schema in schemas if "properties" in schema]
            if known and place not in known[0]["properties"]:
                return SettingsError(
                    f"{key}: unknown key {place!r}; {did_you_mean(place, list(known[0]['properties']))}"
                )
            key = f"{key}.{place}"
        elif isinstance(value, list | tuple) and isinstance(place, int) and place < len(value):
            key = f"{key}[{place}]"
        else:  # not a place in the value, but the name that pydantic gives to an alternative
            continue
        value = value[place]
        schemas = [inner for schema in schemas for inner in _schemas_at(schema, place)]
    choices = [choice for schema in schemas for choice in _choices(schema)]
    near = nearest(value, choices)
    hint = "." if near is None else f"; did you mean {near!r}?"
    if isinstance(value, int | float) and any(schema.get("type") == "string" for schema in schemas):
        hint = "; put it in quotes."
    return SettingsError(f"{key} must be {_in_words(schemas)}, got {value!r}{hint}")


def _schemas_at(schema: dict, place: str | int) -> Iterator[dict]:
    """The alternatives for what lies at a key or an index of a value that a schema describes."""
    if schema.get("type") == "object":
        inner = schema.get("properties", {}).get(place, schema.get("additionalProperties"))
    elif "prefixItems" in schema:
        inner = schema["prefixItems"][place]
    else:
        inner = schema.get("items")
    if isinstance(inner, dict):
        yield from _alternatives(inner, schema["$defs"])


def _choices(schema: dict) -> list:
    return schema.get("enum", [schema["const"]] if "const" in schema else [])


def _in_words(schemas: list[dict]) -> str:
    choices = [str(choice) for schema in schemas for choice in _choices(schema)]
    words = [f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]] if choices else []
    for schema in schemas:
        if _choices(schema):
            continue
        if schema.get("type") == "array":
            count = schema.get("minItems")
            words.append(f"a list of {count}" if count else "a list")
            continue
        bounds = [f"{word} {schema[bound]:g}" for bound, word in _BOUNDS.items() if bound in schema]
        name = _NAMES.get(schema.get("type", ""), "any value")
        words.append(f"{name} ({' and '.join(bounds)})" if bounds else name)
    return " or ".join(words)
