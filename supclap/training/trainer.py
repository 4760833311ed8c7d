"""The Trainer of SupCLAP."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.utils import logging

from processing_supclap import SupClapFeatureExtractor
from supclap.data.collator import ContrastiveCollator
from supclap.data.sampler import LengthGroupedSampler
from supclap.data.scenes import SceneMixer
from supclap.data.streaming import StreamedClips
from supclap.errors import NonFiniteError, SettingsError
from supclap.evaluation.inputs import Column, without_audio
from supclap.evaluation.languages import EmbeddedClips, captions_of, languages_of, retrieval_scores, retrieve
from supclap.evaluation.zero_shot import embed_labels, zero_shot_metrics
from supclap.losses import StaticRadius, SupClapLoss, info_nce
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.callbacks.drift import DriftCallback
from supclap.training.callbacks.guard_rails import record_nonfinite_batch
from supclap.training.callbacks.preemption import any_rank
from supclap.training.callbacks.progress import EpochCallback, WeightWarmupCallback
from supclap.training.checkpoints import CheckpointingTrainer
from supclap.training.ema import WeightAverage
from supclap.training.layer_rates import apply_layer_decay
from supclap.training.metric_choice import check_best_metric
from supclap.training.model import SupClapForContrastiveTraining
from supclap.training.muon import MuonAdamW, hidden_matrices, use_muon
from supclap.training.sharded_encoder import ShardedEncoder
from supclap.training.text_cache import FrozenTextCache
from supclap.training.towers import limit_logit_scale, log_scales, logit_scale


logger = logging.get_logger(__name__)


def build_criterion(args: SupClapTrainingArguments) -> SupClapLoss:
    """The objective that the arguments ask for, for the number of pairs of one step on all ranks."""
    return SupClapLoss(
        objective=args.objective,
        svr=args.svr,
        svr_direction=args.svr_direction,
        bi_mode=args.bi_mode,
        radius_predictor=args.radius_predictor,
        batch_size=args.train_batch_size * args.world_size,
        alpha=args.svr_weight,
        beta=args.constraint_weight,
        radius_init=args.radius_init,
        radius_range=args.radius_range,
        share_radius=args.share_radius,
        sort_negatives=args.sort_negatives,
        clamp_radius=args.clamp_radius,
        on_batch_mismatch=args.on_batch_mismatch,
        normalize_support=args.normalize_support,
        detach_positive=args.detach_positive,
        detach_direction=args.detach_direction,
        pull_weight=args.pull_weight,
        perpendicular_push=args.perpendicular_push,
        chunk_size=args.loss_chunk_size,
    )


def _check_last_batch(args: SupClapTrainingArguments, data: object) -> None:
    """Raises a [`SettingsError`] for a last batch that the radius predictor would refuse at the end of the first epoch."""
    fixed = args.svr == "dynamic" and args.radius_predictor == "similarities" and args.on_batch_mismatch == "error"
    # Accelerate fills the last batch of several ranks
    filled = args.dataloader_drop_last or (args.world_size > 1 and args.accelerator_config.even_batches)
    if not fixed or filled or not hasattr(data, "__len__"):
        return
    pairs = args.train_batch_size * args.world_size
    if rest := len(data) % pairs:
        raise SettingsError(
            f"dataloader_drop_last false leaves a last batch of {rest} of {pairs} pairs, which radius_predictor "
            "'similarities' cannot read: leave it at true, or choose on_batch_mismatch 'pad' or radius_predictor 'summary'."
        )


class SupClapTrainer(CheckpointingTrainer):
    """Trains a dual encoder with support vector regularisation and evaluates it by retrieval.

    Args:
        model: A [`SupClapModel`]; or a `ClapModel`, `CLIPModel` or the like, with a `data_collator` of your own that
            returns its inputs, and without evaluation in training.
        args: Training arguments, which also describe the objective.
        train_dataset: [`~supclap.data.dataset.CaptionedClips`].
        eval_dataset: Rows with all their captions, e.g. a list or a `datasets.Dataset` in the row format.
        processing_class: The processor.
        data_collator: [`~supclap.data.collator.ContrastiveCollator`] of the processor when omitted.
        manifest: What the model is trained on, saved beside every checkpoint; see
            [`~supclap.data.manifest.build_manifest`].
    """

    loss_is_scaled_for_ga = False

    def __init__(self, model=None, args=None, processing_class=None, data_collator=None, manifest=None, **kwargs):
        self.manifest = manifest
        if args.freeze_temperature:
            for value in log_scales(model):
                value.requires_grad_(False)
        if args.objective == "siglip" and getattr(model, "logit_bias", None) is None:
            raise ValueError("objective 'siglip' needs a model with a bias: set logit_bias_init_value, e.g. to -10.")
        if args.objective == "infonce" and getattr(model, "logit_bias", None) is not None:
            raise ValueError(
                "The model has a bias, of training with SigLIP, which InfoNCE cannot train: set objective 'siglip', or "
                "model.logit_bias and model.config.logit_bias_init_value to None."
            )
        if args.n_gpu > 1:
            raise ValueError(
                f"One process would share {args.n_gpu} GPUs, each with its own negatives: start one process a GPU with "
                "`accelerate launch` or `torchrun`, or name one GPU in CUDA_VISIBLE_DEVICES."
            )
        check_best_metric(args, kwargs.get("eval_dataset"))
        _check_last_batch(args, kwargs.get("train_dataset"))
        super().__init__(
            model=SupClapForContrastiveTraining(model, build_criterion(args), args.grad_cache_chunk_size),
            args=args,
            processing_class=processing_class,
            data_collator=data_collator
            or ContrastiveCollator(processing_class, seed=args.seed, positives=args.positives),
            **kwargs,
        )
        if args.features_on_device:
            extractor = getattr(processing_class, "feature_extractor", None)
            ours = isinstance(extractor, SupClapFeatureExtractor) and isinstance(
                self.data_collator, ContrastiveCollator
            )
            if not ours:
                raise ValueError(
                    "features_on_device true is for the features of CED in a ContrastiveCollator; those of other encoders "
                    "are made on the CPU, best in the data workers: leave it out."
                )
            self.data_collator = replace(self.data_collator, features_later=True)
        self.can_return_loss = True
        self.add_callback(EpochCallback())
        if args.ema_decay is not None:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError(
                    "ema_decay needs the whole weights on each process: leave it out with FSDP or DeepSpeed."
                )
            self._ema = WeightAverage(self.model, args.ema_decay)
            self.add_callback(self._ema)
        if args.svr_warmup or args.constraint_warmup:
            self.add_callback(WeightWarmupCallback(self.model.criterion, args))
        if args.drift:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError("drift needs the whole weights on each process: leave it out with FSDP or DeepSpeed.")
            if isinstance(self.train_dataset, torch.utils.data.IterableDataset):
                raise ValueError(
                    "drift holds out a probe of the training rows, which a stream does not give: leave it out."
                )
            self.add_callback(DriftCallback(self.log, args.drift_steps, args.drift_probe_size))
        self._sums: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), device=self.args.device))
        self._steps = 0
        self._micro_batches: list[tuple[list[str], dict[str, torch.Tensor]]] = []  # of the step in progress

    # ---- Training ----

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """Trains as the parent does; with `ema_decay` the model has the averaged weights afterwards.

        A run that goes on from its last step trains nothing more (the parent would take one step too many).
        """
        if isinstance(resume_from_checkpoint, str) and self.args.max_steps > 0:
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / "trainer_state.json"))
            if state.global_step >= self.args.max_steps:
                return self._finished(resume_from_checkpoint, state)
        if self.args.cache_frozen_text:
            rows = getattr(self.train_dataset, "rows", None)
            if rows is None or isinstance(rows, SceneMixer) or isinstance(self.train_dataset, StreamedClips):
                raise SettingsError(
                    "cache_frozen_text needs to know all captions beforehand: leave it out for scenes and streams."
                )
            if hasattr(getattr(self.processing_class, "tokenizer", None), "src_lang"):
                raise SettingsError(
                    "cache_frozen_text does not tell languages apart: leave it out for a multilingual tokenizer."
                )
            self.model.text_cache = FrozenTextCache(self._clap)
            self.model.text_cache.fill(self.processing_class, (text for row in rows for text in row["captions"]))
        result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        if self._ema is not None:
            self._ema.finish()
        return result

    def _finished(self, checkpoint: str, state: TrainerState) -> TrainOutput:
        """Ends as the run did that wrote its last checkpoint."""
        self.state = state
        self._load_from_checkpoint(checkpoint)
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best_model()
        if self._ema is not None:
            self._ema.finish()
        return TrainOutput(state.global_step, 0.0, {"train_runtime": 0.0})

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        # The forward pass limits these too, but under FSDP what it sees are copies.
        limit_logit_scale(self._clap)
        for radius in self.accelerator.unwrap_model(self.model).criterion.radius:
            if isinstance(radius, StaticRadius):
                radius.limit()
        return super().training_step(*args, **kwargs)

    def _prepare_inputs(self, inputs):
        if self.args.features_on_device:
            self.data_collator.add_features(inputs, self.args.device)
        return super()._prepare_inputs(inputs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = inputs.pop("ids", None)
        if ids is None:  # a collator of another model may name its rows or not
            ids = inputs["clip_ids"].tolist() if "clip_ids" in inputs else []
        outputs = model(**inputs)
        if model.training:
            values = {name: value.detach().float().mean() for name, value in outputs.items()}
            self._micro_batches.append((ids, values))
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def _get_grad_norm(self, model, grad_norm=None):
        # The one place that every Trainer passes between the backward pass and the optimizer's step.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        losses = torch.stack([values["loss"] for _, values in self._micro_batches])
        # gradients are the same on all ranks, losses are not; a GradScaler handles infinite gradients itself
        finite = not any_rank(not losses.isfinite().all(), self.args.device)
        if self.accelerator.scaler is None:
            finite = finite and bool(torch.isfinite(torch.as_tensor(grad_norm)))
        if finite:
            for _, values in self._micro_batches:
                for name, value in values.items():
                    if name != "loss":
                        self._sums[name] += value
                self._steps += 1
        else:
            self._skip_step(model, grad_norm)
        self._micro_batches.clear()
        return grad_norm

    def _skip_step(self, model, grad_norm) -> None:
        """Drops the gradients of a step, so that the optimizer does nothing.

        Raises:
            NonFiniteError: More steps than allowed were dropped.
        """
        step, folder = self.state.global_step + 1, Path(self.args.output_dir)
        for ids, values in self._micro_batches:
            values = {name: value.item() for name, value in values.items()} | {"grad_norm": float(grad_norm)}
            path = record_nonfinite_batch(folder, step, self.args.process_index, ids, values)
        skipped = 1 + max((entry.get("skipped_steps", 0) for entry in self.state.log_history), default=0)
        if skipped > self.args.skip_nonfinite_steps or self.is_deepspeed_enabled:
            raise NonFiniteError(
                f"step {step}: the loss or its gradient is NaN or infinite. The ids of the batch are in {path}. Look at "
                "those clips; try a lower learning rate, bf16 instead of fp16, or skip_nonfinite_steps to leave out "
                f"single steps ({skipped - 1} were left out). train_supclap.py goes on from the last checkpoint with "
                "them when --resume-with-changes is added. The weights were not changed by this step."
            )
        model.zero_grad()
        self.log({"skipped_steps": skipped})

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._steps:
            names = sorted(self._sums)
            means = torch.stack([self._sums[name] for name in names]) / self._steps
            means = self.accelerator.reduce(means, reduction="mean")
            logs |= dict(zip(names, means.tolist(), strict=True))
            self._sums.clear()
            self._steps = 0
        super().log(logs, start_time)

    def get_train_dataloader(self) -> DataLoader:
        if not isinstance(self.train_dataset, StreamedClips):
            return super().get_train_dataloader()
        # Not prepared by Accelerate, which would split among the ranks what is split already.
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def _get_train_sampler(self, train_dataset=None) -> torch.utils.data.Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length" or not hasattr(dataset, "lengths"):
            return super()._get_train_sampler(dataset)
        lengths = dataset.lengths
        if lengths is None:
            logger.warning_once(
                "group_by_length: neither rows nor files tell how long clips are; batches are of clips of any length."
            )
            return torch.utils.data.RandomSampler(dataset)
        return LengthGroupedSampler(lengths, self.args.train_batch_size * self.args.world_size, self.args.seed)

    def get_decay_parameter_names(self, model) -> list[str]:
        kept = ("logit_scale", "logit_bias", "pos_embed", "criterion.")
        return [name for name in super().get_decay_parameter_names(model) if not any(part in name for part in kept)]

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """The parent's optimiser, with the radius and the text encoder at learning rates of their own if set."""
        muon_rate = self.args.muon_learning_rate
        if muon_rate is not None:
            optimizer_cls, kwargs = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            if optimizer_cls is not torch.optim.AdamW:
                raise SettingsError(f"muon_learning_rate goes with optim adamw_torch(_fused), got {self.args.optim}.")
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise SettingsError(
                    "muon_learning_rate needs the whole matrices on each process: leave it out with FSDP or DeepSpeed."
                )
            self.optimizer_cls_and_kwargs = (
                MuonAdamW,
                {**kwargs, "muon_dtype": torch.bfloat16 if self.args.bf16 else torch.float32},
            )
        optimizer = super().create_optimizer(model)
        if muon_rate is not None:
            use_muon(optimizer, hidden_matrices(self.model.clap), muon_rate)
        rates = {"criterion.": self.args.radius_learning_rate, "clap.text_model.": self.args.text_learning_rate}
        for prefix, rate in rates.items():
            if rate is None:
                continue
            own = {id(value) for name, value in self.model.named_parameters() if name.startswith(prefix)}
            for group in list(optimizer.param_groups):
                moved = [parameter for parameter in group["params"] if id(parameter) in own]
                if moved:
                    group["params"] = [parameter for parameter in group["params"] if id(parameter) not in own]
                    optimizer.add_param_group({"params": moved, "lr": rate, "weight_decay": group["weight_decay"]})
        if self.args.layer_decay is not None:
            other = getattr(self.model.clap, "audio_model", None) or self.model.clap.vision_model
            apply_layer_decay(optimizer, (self.model.clap.text_model, other), self.args.layer_decay)
        return optimizer

    # ---- Evaluation ----

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        # Not the parent's: it would drop the last batch of the evaluation too, and collate training pairs.
        dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        loader = DataLoader(dataset, batch_size=self.args.eval_batch_size, collate_fn=list, shuffle=False)
        return self.accelerator.prepare(loader)

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Retrieval in both directions over all captions, the same on any number of processes."""
        self.callback_handler.eval_dataloader = dataloader
        with self._averaged():
            metrics = self._score(dataloader.dataset)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataloader.dataset))

    def _score(self, dataset: Sequence[dict]) -> dict[str, float | int]:
        """Retrieval as at the end of the run but without intervals, the loss, and, where all rows have a label, accuracy."""
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
        text = torch.empty(len(captions), clips.embeds.shape[1])
        for one in by_language.values():
            text[one.captions] = one.text
        first = np.unique([caption.clip for caption in captions], return_index=True)[1]
        pool_size = min(self.args.eval_pool_size or len(ids), len(ids))
        metrics["loss"] = _pool_loss(clips.embeds, text[first], logit_scale(self._clap).detach().cpu(), pool_size)
        labels = [row.get("label") for row in rows]
        if None not in labels and len(set(labels)) > 1:
            names = sorted(set(labels))
            embeds = embed_labels(encoder, names, self.args.zero_shot_templates)
            targets = [names.index(label) for label in labels]
            metrics["zero_shot/accuracy"] = zero_shot_metrics(clips.embeds, embeds, targets)["accuracy"]
        return metrics

    def encoder(self, name: str = "training", fingerprint: str = "", with_contents: bool = False) -> ShardedEncoder:
        """The model as an evaluation embeds with it; arguments as in [`ShardedEncoder`]. All processes call it alike."""
        size = self.args.eval_batch_size
        return ShardedEncoder(self.model, self.processing_class, size, name, fingerprint, with_contents)

    def _show_progress(self, done: int, total: int) -> None:
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

    @property
    def _clap(self):
        return self.accelerator.unwrap_model(self.model).clap

    # ---- Hub ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model. Unlike the parent, it never uploads: there are no results and no card yet."""
        super().save_model(output_dir, _internal_call=True)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token=None,
        revision=None,
        **kwargs,
    ):
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
            raise ValueError("push_to_hub uploads at the end of training only, in the foreground; leave out blocking.")
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


def _pool_loss(audio: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, pool_size: int) -> float:
    """InfoNCE (both directions) of each clip with its first caption, averaged over pools."""
    losses = []
    for start in range(0, len(audio) - pool_size + 1, pool_size):
        logits = scale * text[start : start + pool_size].float() @ audio[start : start + pool_size].float().T
        losses.append(info_nce(logits) + info_nce(logits.T))
    return torch.stack(losses).mean().item()
