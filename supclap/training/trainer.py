"""The Trainer of SupCLAP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from supclap.data.rows import caption_languages
from supclap.data.streaming import StreamedClips
from supclap.errors import SettingsError
from supclap.evaluation.encoders import SupClapEncoder
from supclap.evaluation.languages import LanguageScores, mean_metrics, scores_by_language, split_by_language
from supclap.evaluation.retrieval import pooled_retrieval_metrics
from supclap.evaluation.zero_shot import encode_labels, zero_shot_metrics
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
from supclap.training.callbacks.epochs import EpochCallback
from supclap.training.callbacks.guard_rails import leave_out_step
from supclap.training.callbacks.preemption import any_rank
from supclap.training.callbacks.warmup import WeightWarmupCallback
from supclap.training.checkpoints import CheckpointingTrainer
from supclap.training.ema import WeightAverage
from supclap.training.metric_choice import check_best_metric
from supclap.training.model import SupClapForContrastiveTraining
from supclap.training.objective import base_loss, build_criterion
from supclap.training.optimizers import apply_layer_decay, choose_optimizer
from supclap.training.step_values import StepValues
from supclap.training.text_cache import FrozenTextCallback
from supclap.training.towers import check_dual_encoder, limit_logit_scale, log_scales, logit_scale


# The parts of training that join by themselves where the arguments ask for them.
PARTS = (EpochCallback, WeightAverage, WeightWarmupCallback, DriftCallback, FrozenTextCallback)


class _Embedder(torch.nn.Module):
    """A dual encoder that embeds through the training module's own forward, where FSDP gathers the shards."""

    def __init__(self, model: SupClapForContrastiveTraining):
        super().__init__()
        self.model = model
        self.config = model.clap.config

    def get_audio_features(self, **inputs: torch.Tensor) -> BaseModelOutputWithPooling:
        return BaseModelOutputWithPooling(pooler_output=self.model(**inputs))

    get_text_features = get_audio_features


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
    """Trains a dual encoder with support vector regularisation and evaluates it by retrieval.

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
            return self._retrieval_loop(dataloader, metric_key_prefix)

    def _retrieval_loop(self, dataloader, metric_key_prefix: str) -> EvalLoopOutput:
        audio, text, text_to_audio, rows = self._embed(dataloader)
        pool = self._pool_size(len(audio))
        parts = split_by_language(audio, text, text_to_audio, rows).values()
        metrics = mean_metrics(
            [
                pooled_retrieval_metrics(
                    part.audio, part.text, part.text_to_audio, pool_size=self._pool_size(len(part.audio))
                )
                for part in parts
            ]
        )
        first = text[torch.searchsorted(text_to_audio, torch.arange(len(audio)))]
        scale, bias = logit_scale(self._clap).detach().cpu(), getattr(self._clap, "logit_bias", None)
        bias = None if bias is None else bias.detach().cpu()
        metrics["loss"] = base_loss(self.args.objective, audio, first, scale, bias, pool)
        labels = [row["label"] for row in rows]
        if None not in labels and len(set(labels)) > 1:
            metrics["zero_shot/accuracy"] = self._zero_shot_accuracy(audio, labels)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput((audio.numpy(), text.numpy()), text_to_audio.numpy(), metrics, num_samples=len(audio))

    def retrieval(self, dataset) -> LanguageScores:
        """Retrieval metrics of rows with their 95 % bootstrap intervals, in pools as in evaluation; of captions in several
        languages each on its own, and the mean over them.
        """
        loader = self.get_eval_dataloader(dataset)
        self.callback_handler.eval_dataloader = loader  # whose length the bar shows
        audio, text, text_to_audio, rows = self._embed(loader)
        parts = split_by_language(audio, text, text_to_audio, rows)
        scores = scores_by_language(parts, rows, self.args.eval_pool_size)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, scores.metrics)
        return scores

    def embedder(self) -> torch.nn.Module:
        """The dual encoder as evaluation calls it, also where its weights are shards."""
        return _Embedder(self.model)

    @property
    def _clap(self) -> torch.nn.Module:
        return self.accelerator.unwrap_model(self.model).clap

    def _pool_size(self, n_clips: int) -> int:
        return min(self.args.eval_pool_size or n_clips, n_clips)

    def _zero_shot_accuracy(self, audio: torch.Tensor, labels: list[str]) -> float:
        names = sorted(set(labels))
        embeds = encode_labels(self.embedder(), self.processing_class, names, self.args.zero_shot_templates)
        return zero_shot_metrics(audio, embeds, [names.index(label) for label in labels])["accuracy"]

    def _embed(self, dataloader) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[dict]]:
        """Embeddings of all clips (n, D) and captions (m, D) of all ranks, the clip of each caption (m,), and the rows
        of the clips without their audio; `label` is `None` where a clip has none.
        """
        embedded = []
        encoder = SupClapEncoder(self.embedder(), self.processing_class, name="training", fingerprint="")
        for rows in dataloader:
            # one pass each, as sharded ranks must take the same number of them
            audio = encoder.embed_audio([row["audio"] for row in rows], len(rows))
            captions = [caption for row in rows for caption in row["captions"]]
            languages = [code for row in rows for code in caption_languages(row)]
            texts = encoder.embed_texts(captions, None if None in languages else languages, len(captions))
            per_clip = torch.as_tensor(texts).split([len(row["captions"]) for row in rows])
            kept = ("id", "captions", "label", "language")
            named = [{key: row.get(key) for key in kept} for row in rows]
            local = list(zip(torch.as_tensor(audio), per_clip, named, strict=True))
            embedded += self.accelerator.gather_for_metrics(local, use_gather_object=True)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        clips, texts, rows = zip(*embedded, strict=True)
        counts = torch.tensor([len(captions) for captions in texts])
        text_to_audio = torch.repeat_interleave(torch.arange(len(clips)), counts)
        return torch.stack(clips), torch.cat(texts), text_to_audio, list(rows)
