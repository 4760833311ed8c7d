"""Checkpoints that are whole or absent: a kill, a full disk or an unwritable folder leaves the earlier ones intact."""

import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint, rotate_checkpoints

from supclap.data.manifest import save_manifest
from supclap.errors import CheckpointError, SettingsError
from supclap.files import flush, flush_entry
from supclap.training.ema import WeightAverage


if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

STAGING = "_incomplete"
# Words in the messages of torch's zip writer, which raises a RuntimeError of one kind or another when the disk is full.
_ZIP_WRITER = ("PytorchStreamWriter", "inline_container", "iostream")


class CheckpointingTrainer(Trainer):
    """A `Trainer` whose checkpoints and model appear whole, with the manifest of the data, and that uploads once.

    With an average of the weights, that is what it saves and evaluates.
    """

    manifest: dict | None = None
    _staging = False

    @property
    def _ema(self) -> WeightAverage | None:
        return next((one for one in self.callback_handler.callbacks if isinstance(one, WeightAverage)), None)

    def _averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights to evaluate and save."""
        return nullcontext() if self._ema is None else self._ema.applied()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model as the parent does; into the folder of the run whole or not at all.

        Unlike the parent, it never uploads: there are no results and no card yet.

        Raises:
            CheckpointError: The disk is full or the folder cannot be written. What was there is as it was.
        """
        if output_dir is not None:
            super().save_model(output_dir, _internal_call=True)
            if self.manifest is not None and self.args.should_save:
                save_manifest(self.manifest, output_dir)
            return
        run_dir = Path(self.args.output_dir)
        staged = run_dir / STAGING / "model"
        with self._whole(run_dir, "the model"):
            self.save_model(str(staged))
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                flush(staged)
                for path in staged.iterdir():
                    path.replace(run_dir / path.name)
                flush_entry(run_dir)

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / STAGING) if self._staging else folder

    @contextmanager
    def _whole(self, run_dir: Path, name: str) -> Iterator[None]:
        """Removes the staging folder after a write, and reports a write that has failed."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(run_dir / STAGING, ignore_errors=True)  # first, so that the free space told is right
            if isinstance(error, RuntimeError) and not any(word in str(error) for word in _ZIP_WRITER):
                raise
            raise CheckpointError(_write_failure(run_dir, name, error)) from error
        finally:
            self._staging = False
            if self.args.should_save:
                shutil.rmtree(run_dir / STAGING, ignore_errors=True)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Writes a checkpoint into a staging folder and moves it to its place when it is whole, so that a kill leaves no half."""
        run_dir = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        staged = run_dir / STAGING / name
        if self.args.should_save:
            shutil.rmtree(run_dir / STAGING, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._staging = True
        with self._whole(run_dir, name):
            with self._averaged():
                super()._save_checkpoint(model, trial)
            if self._ema is not None and self.args.should_save:
                self._ema.save_training_weights(staged)
            self.accelerator.wait_for_everyone()
            if self.state.best_global_step:
                best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
                if best.name == name or best.exists():
                    self.state.best_model_checkpoint = str(best)
            if self.args.should_save:
                self.state.save_to_json(str(staged / "trainer_state.json"))
                if (run_dir / name).exists():
                    (run_dir / name).replace(run_dir / STAGING / "replaced")
                flush(staged)
                staged.replace(run_dir / name)
                flush_entry(run_dir)
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=str(run_dir),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=False,  # a kill while deleting renews the time of what is half gone
            )
        self.accelerator.wait_for_everyone()  # the best checkpoint, perhaps this one, may be opened next

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        self.accelerator.unwrap_model(model or self.model).load_checkpoint(resume_from_checkpoint)
        if self._ema is not None:
            self._ema.resume(resume_from_checkpoint)

    def load_trained(self, last_checkpoint: str) -> None:
        """Loads what training left that ended with this checkpoint: the best model where it is chosen, or the average."""
        self._load_from_checkpoint(last_checkpoint)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        if self._ema is not None:
            self._ema.finish()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Loads both, with the learning rates and weight decay of the arguments, which may have changed since.

        Where they have not, these are the values of the checkpoint. DeepSpeed loads its optimizer by itself.
        """
        keys = ("initial_lr", "weight_decay")
        asked = [{key: group[key] for key in keys if key in group} for group in self.optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        if checkpoint is None or self.is_deepspeed_enabled or not isinstance(scheduler, LambdaLR):
            return
        scheduler.base_lrs = [group["initial_lr"] for group in asked]
        scheduler._last_lr = [
            base * factor(scheduler.last_epoch)
            for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, values, rate in zip(self.optimizer.param_groups, asked, scheduler._last_lr, strict=True):
            group.update(values, lr=rate)

    def _load_scaler(self, checkpoint: str | None) -> None:
        if self.accelerator.scaler is not None:  # none after a change from fp16 to bf16
            super()._load_scaler(checkpoint)

    def _load_best_model(self) -> None:
        self.accelerator.unwrap_model(self.model).load_checkpoint(self.state.best_model_checkpoint)
        if self._ema is not None:
            self._ema.average = None  # what was loaded is an average

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> "CommitInfo | None":
        """Uploads what is saved in `output_dir` (model, processor, code, card) as one commit.

        Args:
            commit_message: Message of the commit.
            blocking: Must be true; kept for the parent's interface.
            token: Token with write permission; `hub_token` when omitted.
            revision: Branch; `hub_revision` when omitted.
            kwargs: `private`, `create_pr` and `license` of [`~supclap.publishing.hub.push_checkpoint`].

        Returns:
            The commit; `None` on processes other than the first.
        """
        from supclap.publishing.hub import push_checkpoint

        if not blocking:
            raise SettingsError(
                "push_to_hub uploads at the end of training only, in the foreground; leave out blocking."
            )
        if not self.is_world_process_zero():
            return None
        options = {"private": self.args.hub_private_repo, **kwargs}
        if getattr(self, "hub_model_id", None) is None:
            self.init_hf_repo(token=token, private=options["private"])
        return push_checkpoint(
            self.args.output_dir,
            self.hub_model_id,
            revision=revision or self.args.hub_revision,
            message=commit_message or "End of training",
            token=token or self.args.hub_token,
            **options,
        )


def check_whole(checkpoint: str | Path) -> None:
    """Checks that the files of a checkpoint are there and not cut short. What they hold is not read.

    Raises:
        CheckpointError: One is missing or cut short.
    """
    folder = Path(checkpoint)
    try:
        for path in (folder / "trainer_state.json", *sorted(folder.iterdir())):
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                safe_open(path, "pt")
            elif path.suffix in (".pt", ".pth") and not zipfile.is_zipfile(path):
                raise ValueError("no zip file")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is missing or damaged ({error}). Delete the folder {folder}, then run the same command again: it "
            "goes on from the checkpoint before it."
        ) from error


def _write_failure(run_dir: Path, name: str, error: Exception) -> str:
    """A message that says what went wrong, what is left and what to do."""
    last = get_last_checkpoint(str(run_dir)) if run_dir.is_dir() else None
    existing = next(folder for folder in (run_dir, *run_dir.parents) if folder.is_dir())
    left = f"{Path(last).name} is whole" if last else "there is no earlier checkpoint"
    return (
        f"{name} could not be written to {str(run_dir)!r}: {error} ({shutil.disk_usage(existing).free / 2**30:.1f} GiB "
        f"free). {left[0].upper() + left[1:]}. Free space there (save_total_limit keeps fewer checkpoints) or make the "
        "folder writable, then run the same command again: it goes on from the last whole checkpoint."
    )
