"""The help of `supclap train`: how a recipe is written and overridden, and every key with its default."""

import dataclasses
import json
import textwrap

from supclap.data.field_types import adapter
from supclap.recipes.arguments import SECTIONS
from supclap.recipes.parser import keys


WIDTH = 100
USAGE = """\
usage: supclap train RECIPE [--key value ...] [--dry-run] [--resume-with-changes]

Trains, evaluates and saves a model. RECIPE is a YAML file, or the name of one of configs/ such as quickstart. It has
three sections:
  model      which encoders, or the model to go on from
  data       where the clips and captions are, how they are split, what is done to them
  training   the objective and everything that transformers.TrainingArguments takes
Any key can be overridden on the command line, without its section: a text as it stands, other values as YAML:
  supclap train finetune --data_dir my_sounds --learning_rate 5e-5 --svr none
The same command goes on from the last checkpoint of output_dir after a kill. On several processes it is started as
`accelerate launch train_supclap.py RECIPE ...` or with torchrun.

  --dry-run  print the plan (clips, steps, parameters, memory, time) and write nothing
  --resume-with-changes
             go on from the last checkpoint with other learning rates, weight decay, max_grad_norm, bf16 or fp16
  -h         this text
  --help     this text and all keys of our own, with {what they allow} and [their default]"""


BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _default(item: dataclasses.Field) -> str:
    factory = item.default_factory
    return json.dumps(item.default if factory is dataclasses.MISSING else factory(), ensure_ascii=False)


def _allowed(schema: dict) -> str:
    """What the JSON schema of an annotation allows, in words."""
    if "anyOf" in schema:
        return " | ".join(_allowed(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(schema["enum"])
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in BOUNDS.items() if bound in schema]
    return " ".join([str(schema.get("const", schema.get("type", "object"))), *bounds])


def all_keys() -> str:
    """Every key of the three sections that we describe, and not those that are the Trainer's alone."""
    lines = []
    for section, arguments in SECTIONS.items():
        lines.append(f"\n{section}:")
        for item in dataclasses.fields(arguments):
            if item.name in arguments.__annotations__:
                text = f"{item.metadata['help']} {{{_allowed(adapter(keys()[item.name].kind).json_schema())}}} [{_default(item)}]"
                lines.append(f"  {item.name}")
                lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    lines.append(
        "\n  and every field of transformers.TrainingArguments, such as output_dir, max_steps, eval_strategy."
    )
    return "\n".join(lines)
