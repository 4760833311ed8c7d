"""Drift of a training run: measured every so many steps, to all trackers and to `drift.jsonl`."""

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import Trainer

from supclap.errors import DataError, SettingsError
from supclap.evaluation.embed import evaluation_mode
from supclap.files import DRIFT, write_whole
from supclap.losses import diagnostics as forces
from supclap.training.callbacks.part import TrainingPart, check_weights_are_whole
from supclap.training.model import SupClapForContrastiveTraining
from supclap.training.towers import logit_scale


MEMORY_BATCHES = 16


class DriftCallback(TrainingPart):
    """Measures, at every `drift_steps`-th step, what `supclap.losses.diagnostics` defines.

    Values are means over both directions (texts pulled to audios, audios pulled to texts) and over the rows of this
    process:

    - `cos_gradient`, `cos_gradient_tangent`: between the negative gradient of the whole objective with respect to the
      embeddings of the training batch and the pull. The gradients are those of the step itself.
    - `cos_step`, `cos_step_tangent`: between the pull and the change that the step of the optimizer makes to the
      embeddings of a probe, which are pairs set aside for this (in eval mode and float32, whatever training computes
      in).
    - `push_ratio`, `push_global`, `push_local`: on the probe, from the embeddings of the last 16 training batches, which
      are up to 16 steps old. An embedding with the same `clip_ids` as an anchor, such as that of its own pair, does not
      push it. Batches without `clip_ids` do not tell which these are, so there all embeddings push.
    - `radius_p10` … `shrink_p90`: of the training batch, with SVR.

    The callback draws nothing from the random numbers of training, whose course is the same without it.

    Args:
        log: Called with the values, to send them to the trackers: the Trainer's `log`.
    """

    def __init__(self, log: Callable[[dict], None]):
        self.log = log
        self.memory: deque[tuple[Tensor, Tensor, Tensor | None]] = deque(maxlen=MEMORY_BATCHES)
        self.probe: list[dict[str, Tensor]] | None = None
        self.probe_ids: Tensor | None = None
        self.measuring = False
        self.values: dict[str, Tensor] = {}

    @classmethod
    def for_trainer(cls, trainer: Trainer) -> "DriftCallback | None":
        if not trainer.args.drift:
            return None
        check_weights_are_whole(trainer, "drift")
        if isinstance(trainer.train_dataset, IterableDataset):
            raise SettingsError(
                "drift holds out a probe of the training rows, which a stream does not give: leave it out."
            )
        return cls(trainer.log)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.memory.clear()
        self.hook = model.criterion.register_forward_hook(self._after_loss, with_kwargs=True)
        path = Path(args.output_dir) / DRIFT
        if state.is_world_process_zero and path.exists():  # a run goes on: drop what was measured after its checkpoint
            kept = [entry for entry in read_drift(path) if entry["step"] <= state.global_step]
            write_whole(path, "".join(json.dumps(entry) + "\n" for entry in kept))

    def on_train_end(self, args, state, control, **kwargs):
        self.hook.remove()

    def on_step_begin(self, args, state, control, **kwargs):
        self.measuring = (state.global_step + 1) % args.drift_steps == 0
        self.values = {}
        self.gradients: dict[str, Tensor] = {}

    def _after_loss(self, criterion, inputs, named, output) -> None:
        if not (criterion.training and torch.is_grad_enabled()):
            return
        audio, text = inputs[:2]
        self.memory.append((audio.detach(), text.detach(), named.get("ids")))
        if self.measuring and not self.gradients and audio.requires_grad and text.requires_grad:
            self.pair = audio.detach(), text.detach()
            audio.register_hook(partial(self._keep, "audio"))
            text.register_hook(partial(self._keep, "text"))
            if output.radii is not None:
                self.values |= forces.radius_statistics(output.radii, output.distance)

    def _keep(self, name: str, gradient: Tensor) -> None:
        self.gradients.setdefault(name, gradient)

    def on_pre_optimizer_step(self, args, state, control, model=None, train_dataloader=None, **kwargs):
        if not self.measuring:
            return
        if self.gradients:
            audio, text = self.pair
            self._add_cosines(
                "cos_gradient", (-self.gradients["audio"], audio, text), (-self.gradients["text"], text, audio)
            )
        if self.probe is None:
            self.probe, self.probe_ids = _build_probe(
                train_dataloader, args.drift_probe_size, args.train_batch_size, args.device
            )
        audio, text = self.before = embed_in_eval_mode(model, self.probe)
        scale, bias = logit_scale(model.clap).detach(), getattr(model.clap, "logit_bias", None)
        bias = None if model.criterion.objective == "infonce" else 0.0 if bias is None else bias.detach()
        audios, texts, ids = zip(*self.memory, strict=True)
        known = self.probe_ids
        same_clip = [None if known is None or one is None else known[:, None] == one for one in ids]
        on_text = forces.push_statistics(text, audio, audios, scale, bias, same_clip)
        on_audio = forces.push_statistics(audio, text, texts, scale, bias, same_clip)
        self.values |= {name: (on_text[name] + on_audio[name]) / 2 for name in on_text}

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.measuring:
            (audio, text), (new_audio, new_text) = self.before, embed_in_eval_mode(model, self.probe)
            self._add_cosines("cos_step", (new_audio - audio, audio, text), (new_text - text, text, audio))

    def _add_cosines(self, name: str, *sides: tuple[Tensor, Tensor, Tensor]) -> None:
        cosines = torch.stack([torch.stack(forces.pull_cosine(*(x.float() for x in side))) for side in sides]).mean(0)
        self.values |= {name: cosines[0], f"{name}_tangent": cosines[1]}

    def on_step_end(self, args, state, control, **kwargs):
        if not self.measuring:
            return
        self.measuring = False
        values = {name: value.item() for name, value in self.values.items()}
        if state.is_world_process_zero:
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            with open(Path(args.output_dir) / DRIFT, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **values}) + "\n")
        due = control.should_log
        self.log({f"drift/{name}": value for name, value in values.items()})
        control.should_log = due  # a log turns it off, and the Trainer would leave out the losses of this step


def _build_probe(
    loader: Any, size: int, batch_size: int, device: torch.device
) -> tuple[list[dict[str, Tensor]], Tensor | None]:
    """The batches of the probe, spread evenly over the data, and the ids of their clips where the collator gives ids."""
    data, collate = loader.dataset, loader.collate_fn
    batches, clip_ids = [], []
    with torch.random.fork_rng():
        samples = [data[index * len(data) // size] for index in range(min(size, len(data)))]
        for start in range(0, len(samples), batch_size):
            batch = collate(samples[start : start + batch_size])
            if getattr(collate, "features_later", False):  # with features_on_device, the batch holds waveforms
                collate.add_features(batch, device)
            batch.pop("ids", None)  # names for messages, and no input of the model
            if "clip_ids" in batch:
                clip_ids.append(batch.pop("clip_ids").to(device))
            batches.append({name: value.to(device) for name, value in batch.items()})
    return batches, torch.cat(clip_ids) if clip_ids else None


@torch.no_grad()
def embed_in_eval_mode(
    model: SupClapForContrastiveTraining, batches: list[dict[str, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Audio and text embeddings of the batches, in eval mode; each module's mode is as before afterwards."""
    with evaluation_mode(model):
        audio, text = zip(*(model.embed(batch) for batch in batches), strict=True)
    return torch.cat(audio), torch.cat(text)


def read_drift(path: str | Path) -> list[dict[str, float]]:
    """The measurements of a `drift.jsonl`, in order.

    A last line that a kill cut short is left out.

    Raises:
        DataError: A line before the last is not a measurement; file and line are named.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            entry["step"]
        except (json.JSONDecodeError, KeyError, TypeError):
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number}, is not a measurement: {line[:80]!r}.") from None
        entries.append(entry)
    return entries


def measurements(folder: str | Path) -> list[dict[str, float]]:
    """The drift that the run in a folder has measured.

    Raises:
        DataError: It has measured none.
    """
    path = Path(folder) / DRIFT
    entries = read_drift(path) if path.is_file() else []
    if not entries:
        raise DataError(f"{folder} has no measurements in {DRIFT}: train it with `--drift true`.")
    return entries
