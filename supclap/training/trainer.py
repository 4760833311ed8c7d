"""The Trainer of SupCLAP."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from supclap.data.streaming import StreamedClips
from supclap.errors import SettingsError
from supclap.evaluation.inputs import Column, without_audio
from supclap.evaluation.languages import EmbeddedClips, captions_of, languages_of, retrieval_scores, retrieve
from supclap.evaluation.zero_shot import embed_labels, zero_shot_metrics
from supclap.losses import SupClapLoss
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.batches import (
    build_collator,
    check_last_batch,
    evaluation_rows,
    length_grouped_sampler,
    stream_loader,
    training_samples,
)
from supclap.training.callbacks.drift import DriftCallback
from supclap.training.callbacks.guard_rails import leave_out_step
from supclap.training.callbacks.preemption import any_rank
from supclap.training.callbacks.schedules import EpochCallback, WeightWarmupCallback
from supclap.training.checkpoints import CheckpointingTrainer
from supclap.training.ema import WeightAverage
from supclap.training.metric_choice import check_best_metric
from supclap.training.model import SupClapForContrastiveTraining
from supclap.training.objective import base_loss, build_criterion
from supclap.training.optimizers import apply_layer_decay, choose_optimizer
from supclap.training.sharded_encoder import ShardedEncoder
from supclap.training.step_values import StepValues
from supclap.training.text_cache import FrozenTextCache
from supclap.training.towers import check_dual_encoder, limit_logit_scale, log_scales, logit_scale


# The parts of training that join by themselves where the arguments ask for them.
PARTS = (EpochCallback, WeightAverage, WeightWarmupCallback, DriftCallback, FrozenTextCache)


def _check_model(model: torch.nn.Module, args: SupClapTrainingArguments) -> None:
    """Raises a [`SettingsError`] where the arguments do not suit the model, or the way that the process was started."""
    if not isinstance(args, SupClapTrainingArguments):
        raise SettingsError(
            f"args must be SupClapTrainingArguments, which have the objective; got {type(args).__name__}."
        )
    has_bias = getattr(model, "logit_bias", None) is not None
    if args.objective == "siglip" and not has_bias:
        raise SettingsError("objective 'siglip' needs a model with a bias: set logit_bias_init_value, e.g. to -10.")
    if args.objective == "infonce" and has_bias:
        raise SettingsError(
            "The model has a bias, of training with SigLIP, which InfoNCE cannot train: set objective 'siglip', or "
            "model.logit_bias and model.config.logit_bias_init_value to None."
        )
    if args.n_gpu > 1:
        raise SettingsError(
            f"One process would share {args.n_gpu} GPUs, each with its own negatives: start one process a GPU with "
            "`accelerate launch` or `torchrun`, or name one GPU in CUDA_VISIBLE_DEVICES."
        )


class SupClapTrainer(CheckpointingTrainer):
    """Trains a dual encoder with support vector regularization and evaluates it by retrieval.

    Args:
        model: A [`SupClapModel`]; or a `ClapModel`, `CLIPModel` or the like, with a `data_collator` of your own that
            returns its inputs, and without evaluation in training.
        args: Training arguments, which also describe the objective; their defaults when omitted.
        data_collator: A [`~supclap.data.collator.ContrastiveCollator`] of the processor when omitted.
        train_dataset: Rows (a list in the row format, or a `datasets.Dataset` with columns of the usual names), or what
            makes samples of them in a way of its own: [`~supclap.data.dataset.CaptionedClips`],
            [`~supclap.data.streaming.StreamedClips`].
        eval_dataset: Rows with all their captions.
        processing_class: The processor.
        criterion: The objective; the one that the arguments describe when omitted.
        manifest: What the model is trained on, saved beside every checkpoint; see
            [`~supclap.data.manifest.build_manifest`].
        kwargs: Further arguments of [`transformers.Trainer`], such as `callbacks` and `optimizers`.

    Raises:
        SettingsError: The arguments do not go together, or with the model or the data.

    Example:
        >>> rows = [{"id": "a", "audio": "a.wav", "captions": ["a dog barks"]}, ...]
        >>> trainer = SupClapTrainer(model, args, train_dataset=rows, processing_class=processor)
        >>> trainer.train()
        >>> metrics = trainer.evaluate(test_rows)
    """

    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        args: SupClapTrainingArguments | None = None,
        *,
        data_collator: Callable | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        criterion: SupClapLoss | None = None,
        manifest: dict | None = None,
        **kwargs: Any,
    ):
        args = SupClapTrainingArguments("tmp_trainer") if args is None else args
        check_dual_encoder(model)
        _check_model(model, args)
        data_collator = build_collator(args, data_collator, processing_class)
        train_dataset = training_samples(train_dataset, data_collator, args)
        check_last_batch(args, train_dataset)
        check_best_metric(args, eval_dataset)
        if args.freeze_temperature:
            for value in log_scales(model):
                value.requires_grad_(False)
        super().__init__(
            SupClapForContrastiveTraining(model, criterion or build_criterion(args), args.grad_cache_chunk_size),
            args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        self.manifest = manifest
        self.can_return_loss = True
        self._values = StepValues(args.device)
        for part in PARTS:
            callback = part.for_trainer(self)
            if callback is not None:
                self.add_callback(callback)

    # ---- Training ----

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """Trains as the parent does; with `ema_decay` the model has the averaged weights afterwards.

        Going on from the last step of a run returns at once: the parent would train one step too many.
        """
        if isinstance(resume_from_checkpoint, str) and self.args.max_steps > 0:
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / "trainer_state.json"))
            if state.global_step >= self.args.max_steps:
                self.state = state
                self.load_trained(resume_from_checkpoint)
                return TrainOutput(state.global_step, 0.0, {"train_runtime": 0.0})
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        # The forward pass limits it too, but what it sees under FSDP is a copy.
        limit_logit_scale(self._clap)
        if self.args.features_on_device:
            self.data_collator.add_features(inputs, self.args.device)
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ids = inputs.pop("ids", None)
        if ids is None:  # the collator of another model need not name its rows
            ids = inputs["clip_ids"].tolist() if "clip_ids" in inputs else []
        outputs = model(**inputs)
        if model.training:
            self._values.add_batch(ids, outputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        # Every version of the parent calls this between the backward pass and the step of the optimizer, and no public
        # method gets the norm there.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        # The gradients are the same on all ranks, the losses are not. A GradScaler handles infinite gradients itself.
        finite = not any_rank(not self._values.losses_are_finite(), self.args.device)
        if self.accelerator.scaler is None:
            finite = finite and bool(torch.isfinite(torch.as_tensor(grad_norm)))
        if not finite:
            allowed = 0 if self.is_deepspeed_enabled else self.args.skip_nonfinite_steps
            skipped = leave_out_step(self.args, self.state, self._values.batches, float(grad_norm), allowed)
            model.zero_grad()  # without gradients, the optimizer does nothing
            self.log({"skipped_steps": skipped})
        self._values.end_step(counted=finite)
        return grad_norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._values.means(self.accelerator)
        super().log(logs, start_time)

    def get_train_dataloader(self) -> DataLoader:
        if isinstance(self.train_dataset, StreamedClips):
            return stream_loader(self.train_dataset, self.data_collator, self.args)
        return super().get_train_dataloader()

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy == "group_by_length" and hasattr(dataset, "lengths"):
            return length_grouped_sampler(dataset, self.args)
        return super()._get_train_sampler(dataset)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        kept = ("logit_scale", "logit_bias", "pos_embed", "criterion.")
        return [name for name in super().get_decay_parameter_names(model) if not any(part in name for part in kept)]

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer that `optim` names, with Muon and the learning rates of parts of the model where they are set.

        An optimizer that was passed to the Trainer stays as it is.
        """
        if self.optimizer is not None:
            return super().create_optimizer(model)
        given = self.optimizer_cls_and_kwargs
        named = given or self.get_optimizer_cls_and_kwargs(self.args, self.model)
        self.optimizer_cls_and_kwargs = choose_optimizer(self, *named)
        optimizer = super().create_optimizer(model)
        self.optimizer_cls_and_kwargs = given
        if self.args.layer_decay is not None:
            other = getattr(self._clap, "audio_model", None) or self._clap.vision_model
            apply_layer_decay(optimizer, (self._clap.text_model, other), self.args.layer_decay)
        return optimizer

    # ---- Evaluation ----

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        # Not the parent's: it would drop the last batch of the evaluation too, and collate training pairs.
        dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if dataset is None or self.processing_class is None:
            raise SettingsError("Evaluation needs rows and a processor: pass eval_dataset and processing_class.")
        loader = DataLoader(
            evaluation_rows(dataset), batch_size=self.args.eval_batch_size, collate_fn=list, shuffle=False
        )
        return self.accelerator.prepare(loader)

    get_test_dataloader = get_eval_dataloader

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Retrieval in both directions over all captions, the same on any number of processes.

        `predictions` are the embeddings of the clips (n, D) and of all their captions (m, D), `label_ids` the clip of
        each caption (m,).
        """
        self.callback_handler.eval_dataloader = dataloader
        with self._averaged():
            embeds, texts, clip_of, metrics = self._score(dataloader.dataset)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput((embeds.numpy(), texts.numpy()), clip_of, metrics, num_samples=len(embeds))

    def _score(self, dataset: Sequence[dict]) -> tuple[torch.Tensor, torch.Tensor, np.ndarray, dict[str, float | int]]:
        """Embeddings of the clips (n, D) and captions (m, D), the clip of each caption (m,), and the metrics.

        These are the retrieval as at the end of a run but without intervals, the loss of each clip with its first caption,
        and, where every row has a label, the accuracy of classification.
        """
        encoder, rows = self.encoder(), without_audio(dataset)
        captions, ids = captions_of(rows), [str(row["id"]) for row in rows]
        clips = EmbeddedClips(ids, *encoder.embed_audio(Column(dataset, "audio"), ids, self._show_progress))
        by_language = {
            language: retrieve(encoder, clips, captions, language, self.args.eval_pool_size)
            for language in languages_of(captions)
        }
        metrics = {name: one["value"] for name, one in retrieval_scores(by_language, intervals=False).items()}
        ranks = [one.ranks for one in by_language.values()]
        metrics["n_audio"] = max(len(one.audio_clips) for one in ranks)
        metrics["n_text"] = sum(len(one.text_clips) for one in ranks)
        texts = torch.empty(len(captions), clips.embeds.shape[1])
        for one in by_language.values():
            texts[one.captions] = one.text
        clip_of = np.array([caption.clip for caption in captions])
        first = texts[np.unique(clip_of, return_index=True)[1]]
        scale, bias = logit_scale(self._clap).detach().cpu(), getattr(self._clap, "logit_bias", None)
        bias = None if bias is None else bias.detach().cpu()
        pool_size = min(self.args.eval_pool_size or len(ids), len(ids))
        metrics["loss"] = base_loss(self.args.objective, clips.embeds, first, scale, bias, pool_size)
        labels = [row.get("label") for row in rows]
        if None not in labels and len(set(labels)) > 1:
            names = sorted(set(labels))
            label_embeds = embed_labels(encoder, names, self.args.zero_shot_templates)
            targets = [names.index(label) for label in labels]
            metrics["zero_shot/accuracy"] = zero_shot_metrics(clips.embeds, label_embeds, targets)["accuracy"]
        return clips.embeds, texts, clip_of, metrics

    def encoder(self, name: str = "training", fingerprint: str = "", with_contents: bool = False) -> ShardedEncoder:
        """The model as an evaluation embeds with it; arguments as in [`ShardedEncoder`]. All processes call it alike."""
        size = self.args.eval_batch_size
        return ShardedEncoder(self.model, self.processing_class, size, name, fingerprint, with_contents)

    def _show_progress(self, done: int, total: int) -> None:
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

    @property
    def _clap(self) -> torch.nn.Module:
        return self.accelerator.unwrap_model(self.model).clap
