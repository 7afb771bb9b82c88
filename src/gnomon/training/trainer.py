"""One stage's training: transformers' Trainer, with what a recipe promises on top."""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback

from gnomon.training.checkpoints import publish, rotate, seal
from gnomon.training.growth import keep_rules
from gnomon.training.growth_state import GrowthState
from gnomon.training.optimization import EpochSampler, build_schedule, decayed_parameters, layer_rates, spread_rates
from gnomon.training.options import TrainingOptions
from gnomon.training.progress import DivergenceError, Progress, StagePlan, Stopwatch
from gnomon.training.tasks.task import Score, Task

Evaluate = Callable[[PreTrainedModel], Score]


class StageTrainer(Trainer):
    """Trainer for one stage of a recipe.

    Differs from Trainer: the data order depends on seed, stage and epoch alone; checkpoints appear whole and
    are written without pickled arguments; a checkpoint that lacks a tensor is refused; the loss is the task's, over
    all targets of a step; held-out data are scored by `gnomon.evaluation`; a loss that is no number ends the run
    before it reaches the weights.

    Args:
        task: What is learned.
        model: The model, in float32.
        options: The stage's training values.
        plan: Its place in the run.
        train_dataset: Rows of tensors, with `labels` among them.
        collate: Makes a batch of rows.
        tokenizer: Or another processor of the task; saved with every model.
        evaluate: Scores held-out data.
        interrupted: Whether to stop after the present step.
        progress: Where the stage stands.
        callbacks: Told about steps and rows of metrics.
    """

    def __init__(
        self,
        *,
        task: Task,
        model: PreTrainedModel,
        options: TrainingOptions,
        plan: StagePlan,
        train_dataset: Any,
        collate: Callable[[list[Any]], dict[str, Tensor]],
        tokenizer: Any,
        evaluate: Evaluate,
        interrupted: Callable[[], bool],
        progress: Progress,
        callbacks: list[TrainerCallback],
    ) -> None:
        self.task, self.options, self.plan, self.progress = task, options, plan, progress
        self.score_held_out, self.interrupted = evaluate, interrupted
        self.stopwatch = Stopwatch(progress.seconds)
        self.last_score: Score | None = None
        self._use_cache = model.config.use_cache
        self._step_loss, self._step_tokens = 0.0, 0
        self._window_started = (progress.seconds, progress.tokens)
        super().__init__(
            model=model,
            args=training_arguments(options, plan),
            data_collator=collate,
            train_dataset=train_dataset,
            eval_dataset=[],  # never read: `evaluate` scores the held-out text itself
            processing_class=tokenizer,
            callbacks=[_Bookkeeper(self), *callbacks],
        )
        # The task's loss divides by the targets of a whole step, so Trainer must not divide by the micro-batches.
        self.model_accepts_loss_kwargs = True
        self.remove_callback(PrinterCallback)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Weight decay is for what has two axes."""
        return decayed_parameters(model)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Trainer's, with smaller rates for earlier layers where the recipe asks for them."""
        is_new, decay = self.optimizer is None, self.options.layer_learning_rate_decay
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if is_new and decay < 1.0:
            spread_rates(optimizer, layer_rates(self.model, decay))
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The recipe's schedule."""
        if self.lr_scheduler is None:
            steps = self.plan.schedule_steps or num_training_steps
            self.lr_scheduler = build_schedule(
                optimizer or self.optimizer, self.options, steps, self.plan.schedule_before
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        return EpochSampler(self.train_dataset, self.plan.seed, self.plan.index, self.options.batch_size)

    def floating_point_ops(self, inputs: Any) -> int:
        """Nothing: the ledger counts operations by formula."""
        return 0

    def get_batch_samples(self, *args: Any) -> tuple[list[Any], Any]:
        """Fetch a step's batches, note how many tokens they hold, and set the score scales of a growth for them."""
        batches, num_items = super().get_batch_samples(*args)
        if self.progress.growth is not None:
            growth = GrowthState(**self.progress.growth)
            growth.anneal(self.model, self.state.global_step)
            growth.follow(self.model, self.state.global_step, batches)
        self._step_loss = 0.0
        self._step_tokens = sum(map(self.task.count, batches))
        return batches, num_items

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The task's loss of a micro-batch, over the targets of its whole step."""
        return self.task.loss(model, inputs, num_items_in_batch, self.options.label_smoothing)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One forward and backward pass; a loss that is no number ends the run before any weight has moved."""
        loss: Tensor = super().training_step(*args, **kwargs)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(self.plan.index, self.state.global_step + 1, f"the loss is {value}")
        self._step_loss += value
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        # With float16 a norm that is no number is ordinary: the loss scaler skips the step and scales down.
        if self.options.precision != "float16" and not math.isfinite(float(norm)):
            raise DivergenceError(self.plan.index, self.state.global_step + 1, f"the gradient's norm is {float(norm)}")
        return norm

    def end_step(self) -> None:
        """Take a finished step into the books."""
        progress, loss = self.progress, self._step_loss
        progress.tokens += self._step_tokens
        progress.window_loss += loss
        progress.window_steps += 1
        if progress.first_loss is None:
            progress.first_loss = loss
        # A loss above that of guessing has lost its way; one that merely rises after a fresh warm-up has not.
        limit = max(progress.first_loss, math.log(self.task.classes(self.model.config)))
        progress.steps_above_start = progress.steps_above_start + 1 if loss > limit else 0
        if 0 < self.options.divergence_steps <= progress.steps_above_start:
            reason = f"the loss has stayed above {limit:.4f} for {progress.steps_above_start} steps"
            raise DivergenceError(self.plan.index, self.state.global_step, reason)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Tell the callbacks a row of metrics; Trainer's closing summary is left to the ledger."""
        progress = self.progress
        if "loss" in logs:
            seconds, tokens = self.stopwatch.seconds, progress.tokens
            progress.train_loss = progress.window_loss / progress.window_steps
            progress.window_loss, progress.window_steps = 0.0, 0
            elapsed = max(seconds - self._window_started[0], 1e-9)
            row = {
                "loss": progress.train_loss,
                "learning_rate": logs["learning_rate"],
                "grad_norm": logs["grad_norm"],
                "tokens_per_second": (tokens - self._window_started[1]) / elapsed,
            }
            self._window_started = (seconds, tokens)
        elif "validation_loss" in logs:
            row = dict(logs)
        else:
            return
        row = {**self._position(), **row}
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, row)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the held-out data; the best model so far is kept."""
        with self.stopwatch.paused():
            score = self.score_held_out(self.model)
            self.last_score = score
            if not math.isfinite(score.loss):
                raise DivergenceError(self.plan.index, self.state.global_step, f"the validation loss is {score.loss}")
            if self.progress.best_loss is None or score.loss < self.progress.best_loss:
                self.progress.best_loss, self.progress.best_step = score.loss, self.state.global_step
                with publish(self.plan.best_folder, replace=True) as folder:
                    self.save_model(str(folder))
        self.log(self.task.measured(score))
        metrics = {"eval_loss": score.loss}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _position(self) -> dict[str, float]:
        """Where in the run a row of metrics stands."""
        return {
            "stage": self.plan.index,
            "step": self.state.global_step,
            "total_step": self.plan.steps_before + self.state.global_step,
            "tokens": self.plan.tokens_before + self.progress.tokens,
            "seconds": round(self.plan.seconds_before + self.stopwatch.seconds, 3),
        }

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with self.stopwatch.paused():
            self.progress.seconds = self.stopwatch.seconds
            target = self.plan.folder / f"checkpoint-{self.state.global_step}"
            with publish(target, replace=True) as folder:
                self.save_model(str(folder), _internal_call=True)
                self._save_optimizer_and_scheduler(str(folder))
                self._save_scaler(str(folder))
                self._save_rng_state(str(folder))
                self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
                seal(folder, asdict(self.progress))
            rotate(self.plan.folder, self.options.keep_checkpoints)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write model, generation settings and tokenizer, without Trainer's pickled arguments."""
        folder = output_dir if output_dir is not None else str(self.plan.folder)
        # Trainer switches the cache off for training; whoever loads the model wants it as it was.
        trained_with, self.model.config.use_cache = self.model.config.use_cache, self._use_cache
        self.model.save_pretrained(folder, state_dict=state_dict)
        self.model.config.use_cache = trained_with
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that does not hold exactly this model's tensors; a tied one is stored once."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        missing = [name for name in load_result.missing_keys if name not in tied]
        for problem, names in (("lacks", missing), ("has an unknown", load_result.unexpected_keys)):
            if names:
                raise ValueError(
                    f"the checkpoint {problem} tensor {sorted(names)[0]} ({len(names)} such), so the run cannot be "
                    "continued from it; remove that checkpoint to continue from the one before."
                )


class _Bookkeeper(TrainerCallback):
    """Calls the trainer back where Trainer itself has no method to override."""

    def __init__(self, trainer: StageTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Put the rules of a growth into force, and start the clock."""
        trainer = self.trainer
        if trainer.progress.growth is not None:
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps it
            keep_rules(optimizer, trainer.model, GrowthState(**trainer.progress.growth))
        trainer.stopwatch.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Book the step; the last one is always logged, and an interrupt saves and stops."""
        self.trainer.end_step()
        if state.global_step >= state.max_steps:
            control.should_log = True
        if self.trainer.interrupted():
            control.should_save = control.should_training_stop = True


def training_arguments(options: TrainingOptions, plan: StagePlan) -> TrainingArguments:
    """Trainer's own settings for a stage: nothing is reported anywhere, and nothing is filtered from the loss."""
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    arguments = TrainingArguments(
        output_dir=str(plan.folder),
        max_steps=plan.max_steps,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        adam_epsilon=options.epsilon,
        max_grad_norm=options.max_grad_norm or 0.0,
        bf16=options.precision == "bfloat16",
        fp16=options.precision == "float16",
        use_cpu=not accelerated,
        activation_checkpointing=options.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if options.gradient_checkpointing else None,
        logging_strategy="steps",
        logging_steps=options.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=min(options.evaluate_every or plan.max_steps, plan.max_steps),
        save_strategy="steps",
        save_steps=min(options.save_every or plan.max_steps, plan.max_steps),
        seed=plan.seed + plan.index,
        dataloader_num_workers=options.workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
    )
    # What the surroundings would add: a reporter inside Kubeflow, accelerate's precision, DataParallel over all GPUs.
    arguments.report_to = []
    arguments.mixed_precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[options.precision]
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
