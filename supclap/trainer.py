"""The Trainer of SupCLAP."""

import shutil
from collections import defaultdict
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, rotate_checkpoints

from supclap.data.collator import ContrastiveCollator
from supclap.data.sampler import LengthGroupedSampler
from supclap.evaluation.embed import embed_audio, embed_texts
from supclap.evaluation.intervals import metrics_with_intervals
from supclap.evaluation.retrieval import pooled_retrieval_metrics, pooled_retrieval_ranks
from supclap.evaluation.zero_shot import encode_labels, zero_shot_metrics
from supclap.losses import SupClapLoss, info_nce
from supclap.training_args import SupClapTrainingArguments
from supclap.training_model import SupClapForContrastiveTraining


STAGING = "_incomplete"


def build_criterion(args: SupClapTrainingArguments) -> SupClapLoss:
    """The objective that the arguments ask for, for the number of pairs of one step on all ranks."""
    return SupClapLoss(
        objective=args.objective,
        svr=args.svr,
        svr_direction=args.svr_direction,
        radius_predictor=args.radius_predictor,
        batch_size=args.train_batch_size * args.world_size,
        alpha=args.svr_weight,
        beta=args.constraint_weight,
        radius_init=args.radius_init,
        clamp_radius=args.clamp_radius,
    )


class SupClapTrainer(Trainer):
    """Trains a [`SupClapModel`] with support vector regularisation and evaluates it by retrieval.

    Args:
        model: The dual encoder.
        args: Training arguments, which also describe the objective.
        train_dataset: [`~supclap.data.captions.CaptionedClips`].
        eval_dataset: Rows with all their captions, e.g. a list or a `datasets.Dataset` in the row format.
        processing_class: The processor.
        data_collator: [`~supclap.data.collator.ContrastiveCollator`] of the processor when omitted.
    """

    loss_is_scaled_for_ga = False

    def __init__(self, model=None, args=None, processing_class=None, data_collator=None, **kwargs):
        if args.freeze_temperature:
            model.logit_scale.requires_grad_(False)
        if args.objective == "siglip" and model.logit_bias is None:
            raise ValueError("objective 'siglip' needs a model with a bias: set logit_bias_init_value in its config.")
        super().__init__(
            model=SupClapForContrastiveTraining(model, build_criterion(args)),
            args=args,
            processing_class=processing_class,
            data_collator=data_collator or ContrastiveCollator(processing_class, seed=args.seed),
            **kwargs,
        )
        self.can_return_loss = True
        self._sums: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), device=self.args.device))
        self._steps = 0

    # ---- Training ----

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if model.training:
            for name, value in outputs.items():
                if name != "loss":
                    self._sums[name] += value.float().mean()
            self._steps += 1
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._steps:
            names = sorted(self._sums)
            means = torch.stack([self._sums[name] for name in names]) / self._steps
            means = self.accelerator.reduce(means, reduction="mean")
            logs |= dict(zip(names, means.tolist(), strict=True))
            self._sums.clear()
            self._steps = 0
        super().log(logs, start_time)

    def _get_train_sampler(self, train_dataset=None) -> torch.utils.data.Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        lengths = getattr(dataset, "lengths", None)
        if lengths is None or self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(dataset)
        return LengthGroupedSampler(lengths, self.args.train_batch_size * self.args.world_size, self.args.seed)

    def get_decay_parameter_names(self, model) -> list[str]:
        kept = ("logit_scale", "logit_bias", "pos_embed", "criterion.")
        return [name for name in super().get_decay_parameter_names(model) if not any(part in name for part in kept)]

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """The parent's optimiser, with the radius and the text encoder at learning rates of their own if set."""
        optimizer = super().create_optimizer(model)
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
        audio, text, text_to_audio, labels = self._embed(dataloader)
        pool = self._pool_size(len(audio))
        metrics = pooled_retrieval_metrics(audio, text, text_to_audio, pool_size=pool)
        first = text[torch.searchsorted(text_to_audio, torch.arange(len(audio)))]
        metrics["loss"] = _pool_loss(audio, first, self._clap.get_logit_scale().detach().cpu(), pool)
        if all(label is not None for label in labels):
            metrics["zero_shot/accuracy"] = self._zero_shot_accuracy(audio, labels)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(audio))

    def retrieval(self, dataset) -> dict[str, dict[str, float | int]]:
        """Retrieval metrics of rows with their 95 % bootstrap intervals, in pools as in evaluation."""
        audio, text, text_to_audio, _ = self._embed(self.get_eval_dataloader(dataset))
        return metrics_with_intervals(
            pooled_retrieval_ranks(audio, text, text_to_audio, pool_size=self._pool_size(len(audio)))
        )

    @property
    def _clap(self):
        return self.accelerator.unwrap_model(self.model).clap

    def _pool_size(self, n_clips: int) -> int:
        return min(self.args.eval_pool_size or n_clips, n_clips)

    def _zero_shot_accuracy(self, audio: torch.Tensor, labels: list[str]) -> float:
        names = sorted(set(labels))
        embeds = encode_labels(self._clap, self.processing_class, names, self.args.zero_shot_templates)
        return zero_shot_metrics(audio, embeds, [names.index(label) for label in labels])["accuracy"]

    def _embed(self, dataloader) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[str | None]]:
        """Embeddings of all clips (n, D) and captions (m, D) of all ranks, the clip of each caption (m,), and the
        label of each clip where it has one.
        """
        embedded = []
        for rows in dataloader:
            audio = embed_audio(self._clap, self.processing_class, [row["audio"] for row in rows], len(rows))
            captions = [caption for row in rows for caption in row["captions"]]
            texts = embed_texts(self._clap, self.processing_class, captions)
            per_clip = torch.as_tensor(texts).split([len(row["captions"]) for row in rows])
            labels = [row.get("label") for row in rows]
            local = list(zip(torch.as_tensor(audio), per_clip, labels, strict=True))
            embedded += self.accelerator.gather_for_metrics(local, use_gather_object=True)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        clips, texts, labels = zip(*embedded, strict=True)
        counts = torch.tensor([len(captions) for captions in texts])
        text_to_audio = torch.repeat_interleave(torch.arange(len(clips)), counts)
        return torch.stack(clips), torch.cat(texts), text_to_audio, list(labels)

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
            kwargs: `private`, `create_pr` and `licence` of [`~supclap.hub.push_checkpoint`].

        Returns:
            The commit; `None` on processes other than the first.
        """
        from supclap.hub import push_checkpoint

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

    # ---- Checkpoints ----

    def _get_output_dir(self, trial) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / STAGING) if getattr(self, "_staging", False) else folder

    def _save_checkpoint(self, model, trial) -> None:
        """Writes a checkpoint beside its place and moves it there when it is whole, so that a kill leaves no half."""
        run_dir = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        staged = run_dir / STAGING / name
        if self.args.should_save:
            shutil.rmtree(run_dir / STAGING, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._staging = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = False
        self.accelerator.wait_for_everyone()
        if self.state.best_global_step:
            best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            if best.name == name or best.exists():
                self.state.best_model_checkpoint = str(best)
        if self.args.should_save:
            self.state.save_to_json(str(staged / "trainer_state.json"))
            shutil.rmtree(run_dir / name, ignore_errors=True)
            staged.replace(run_dir / name)
            (run_dir / STAGING).rmdir()
            rotate_checkpoints(
                output_dir=str(run_dir),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None) -> None:
        self.accelerator.unwrap_model(model or self.model).load_checkpoint(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        self.accelerator.unwrap_model(self.model).load_checkpoint(self.state.best_model_checkpoint)


def _pool_loss(audio: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, pool_size: int) -> float:
    """InfoNCE (both directions) of each clip with its first caption, averaged over pools."""
    losses = []
    for start in range(0, len(audio) - pool_size + 1, pool_size):
        logits = scale * text[start : start + pool_size].float() @ audio[start : start + pool_size].float().T
        losses.append(info_nce(logits) + info_nce(logits.T))
    return torch.stack(losses).mean().item()
