"""What a debugger must find in each program of this folder, known from reading the programs and counted independently.

Names are those of the variable in the outermost frame that holds the object, without a leading `self.`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Truth:
    """One way of running one program. None: not well defined there, do not compare."""

    program: str
    models: tuple[tuple[str, str], ...]  # (name, class)
    optimizers: tuple[tuple[str, str, int], ...]  # (name, class, updates)
    loss: tuple[str, ...]  # kinds of its terms, over all backwards of the run
    steps: int  # updates in total; skipped ones do not count, manual ones do; backwards where nothing is ever updated
    backwards: int  # calls by the user's code; those that checkpointing makes inside a backward do not count
    accumulation: int | None = 1  # backwards per update
    train_passes: int | None = None
    eval_passes: int | None = 0
    orphan_passes: int | None = 0
    loaders: tuple[tuple[str, int], ...] = ()  # (name, workers)
    args: tuple[str, ...] = ()
    manual: bool = False  # parameters move without an optimizer
    skipped: int = 0  # steps the gradient scaler left out
    grad_calls: int = 0  # torch.autograd.grad by the user's code
    processes: int = 1  # with the spawned ones
    in_model: bool = False  # the loss is computed inside the model's forward
    steps_kind: str = "update"

    @property
    def path(self) -> Path:
        return FOLDER / self.program

    @property
    def name(self) -> str:
        return " ".join([Path(self.program).stem, *self.args])


TRUTHS = (
    Truth(
        "gpt_lm.py",
        models=(("model", "GPT"),),
        optimizers=(("optimizer", "AdamW", 24),),
        loss=("cross_entropy",),
        steps=24,
        backwards=24,
        train_passes=24,
        eval_passes=8,
        in_model=True,
    ),
    Truth(
        "gpt_lm.py",
        args=("--accum", "4"),
        models=(("model", "GPT"),),
        optimizers=(("optimizer", "AdamW", 24),),
        loss=("cross_entropy",),
        steps=24,
        backwards=96,
        accumulation=4,
        train_passes=96,
        eval_passes=8,
        in_model=True,
    ),
    Truth(
        "rnn_lm.py",
        models=(("model", "RNNModel"),),
        optimizers=(),
        loss=("cross_entropy",),
        steps=40,
        backwards=40,
        train_passes=40,
        eval_passes=8,
        manual=True,
    ),
    Truth(
        "mnist_cnn.py",
        models=(("model", "Net"),),
        optimizers=(("optimizer", "Adadelta", 30),),
        loss=("cross_entropy",),  # log_softmax belongs to the model
        steps=30,
        backwards=30,
        train_passes=30,
        eval_passes=4,
        loaders=(("train_loader", 0), ("test_loader", 0)),
    ),
    Truth(
        "vae.py",
        models=(("model", "VAE"),),
        optimizers=(("optimizer", "Adam", 24),),
        loss=("bce", "custom"),
        steps=24,
        backwards=24,
        train_passes=24,
        eval_passes=None,  # decode() calls two layers of the model: whether that is one pass or two is nobody's promise
        loaders=(("train_loader", 0),),
    ),
    Truth(
        "dcgan.py",
        models=(("netG", "Generator"), ("netD", "Discriminator")),
        optimizers=(("optimizerD", "Adam", 24), ("optimizerG", "Adam", 24)),
        loss=("bce",),
        steps=48,
        backwards=72,
        accumulation=None,  # 2 for optimizerD, 1 for optimizerG
        train_passes=96,
        orphan_passes=2,
        loaders=(("dataloader", 0),),
    ),
    Truth(
        "actor_critic.py",
        models=(("model", "Policy"),),
        optimizers=(("optimizer", "Adam", 20),),
        loss=("custom", "smooth_l1"),
        steps=20,
        backwards=20,
        train_passes=240,
    ),
    Truth(
        "reinforce.py",
        models=(("policy", "Policy"),),
        optimizers=(("optimizer", "Adam", 20),),
        loss=("custom",),
        steps=20,
        backwards=20,
        train_passes=200,
    ),
    Truth(
        "gcn.py",
        models=(("gcn", "GCN"),),
        optimizers=(("optimizer", "Adam", 30),),
        loss=("cross_entropy",),
        steps=30,
        backwards=30,
        train_passes=30,
        eval_passes=3,
    ),
    Truth(
        "siamese.py",
        models=(("encoder", "Encoder"), ("comparer", "Comparer")),
        optimizers=(("optimizer", "Adam", 24),),
        loss=("bce_with_logits",),
        steps=24,
        backwards=24,
        train_passes=72,
        loaders=(("loader", 0),),
    ),
    Truth(
        "forward_forward.py",
        models=(("net.layers[0]", "Layer"), ("net.layers[1]", "Layer")),
        optimizers=(("layer.opt", "Adam", 20), ("self.opt", "Adam", 20)),
        loss=("custom",),
        steps=40,
        backwards=40,
        train_passes=None,  # 80 by direct .forward() calls, seen once the bypass is noticed
        eval_passes=None,
        orphan_passes=None,
    ),
    Truth(
        "hogwild.py",
        args=("--in-turn",),
        models=(("model", "Net"),),
        optimizers=(("optimizer", "SGD", 20),),  # 10 in each of two workers
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
        eval_passes=1,
        processes=3,
    ),
    Truth(
        "lbfgs.py",
        models=(("seq", "Sequence"),),
        optimizers=(("optimizer", "LBFGS", 10),),
        loss=("mse",),
        steps=10,
        backwards=40,
        accumulation=None,  # a closure, called 4 times per update
        train_passes=40,
        eval_passes=10,
    ),
    Truth(
        "imagenet_style.py",
        models=(("model", "ResNet"),),
        optimizers=(("optimizer", "SGD", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
        eval_passes=6,
        loaders=(("train_loader", 2), ("val_loader", 2)),
    ),
    Truth(
        "hf_style.py",
        models=(("model", "TinyForSequenceClassification"),),
        optimizers=(("optimizer", "AdamW", 24),),
        loss=("cross_entropy",),
        steps=24,
        backwards=24,
        train_passes=24,
        eval_passes=6,
        loaders=(("train_dataloader", 0), ("eval_dataloader", 0)),
        in_model=True,
    ),
    Truth(
        "transformer_encoder.py",
        models=(("model", "TransformerModel"),),
        optimizers=(("optimizer", "SGD", 24),),
        loss=("cross_entropy",),
        steps=24,
        backwards=24,
        train_passes=24,
        eval_passes=1,
    ),
    Truth(
        "amp_scaler.py",
        models=(("model", "Sequential"),),
        optimizers=(("opt", "SGD", 23),),
        loss=("mse",),
        steps=23,
        backwards=24,
        accumulation=None,  # 1, but for the skipped step
        train_passes=24,
        skipped=1,
    ),
    Truth(
        "amp_scaler.py",
        args=("--dtype", "float16"),
        models=(("model", "Sequential"),),
        optimizers=(("opt", "SGD", 23),),
        loss=("mse",),
        steps=23,
        backwards=24,
        accumulation=None,
        train_passes=24,
        skipped=1,
    ),
    Truth(
        "accumulation.py",
        models=(("net", "Sequential"),),
        optimizers=(("optimizer", "RMSprop", 24),),
        loss=("mse",),
        steps=24,
        backwards=96,
        accumulation=4,
        train_passes=96,
        loaders=(("loader", 0),),
    ),
    Truth(
        "checkpointing.py",
        models=(("model", "Tower"),),
        optimizers=(("optimizer", "AdamW", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
    Truth(
        "checkpointing.py",
        args=("--reentrant",),
        models=(("model", "Tower"),),
        optimizers=(("optimizer", "AdamW", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,  # and 60 more that torch itself makes inside them
        train_passes=20,
    ),
    Truth(
        "raw_tensors.py",
        models=(),
        optimizers=(),
        loss=("cross_entropy",),
        steps=30,
        backwards=30,
        train_passes=0,
        manual=True,
    ),
    Truth(
        "regression_manual.py",
        models=(("fc", "Linear"),),
        optimizers=(),
        loss=("smooth_l1",),
        steps=40,
        backwards=40,
        train_passes=40,
        manual=True,
    ),
    Truth(
        "compiled.py",
        models=(("model", "MLP"),),  # OptimizedModule is only the wrapper
        optimizers=(("optimizer", "Adam", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
    Truth(
        "compiled.py",
        args=("--backend", "eager"),
        models=(("model", "MLP"),),
        optimizers=(("optimizer", "Adam", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
    Truth(
        "compiled.py",
        args=("--backend", "eager", "--checkpointed"),
        models=(("model", "MLP"),),
        optimizers=(("optimizer", "Adam", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
    Truth(
        "two_trainings.py",
        models=(("small", "MLP"), ("large", "MLP")),
        optimizers=(("optimizer", "SGD", 20), ("optimizer", "SGD", 30)),
        loss=("mse",),
        steps=50,
        backwards=50,
        train_passes=50,
    ),
    Truth(
        "distillation.py",
        models=(("teacher", "Sequential"), ("student", "Sequential")),
        optimizers=(("teacher_optimizer", "Adam", 20), ("optimizer", "Adam", 20)),
        loss=("cross_entropy", "kl_div"),
        steps=40,
        backwards=40,
        train_passes=40,
        eval_passes=20,
        loaders=(("loader", 0),),
    ),
    Truth(
        "inplace_relu.py",
        models=(("denoiser", "Denoiser"),),
        optimizers=(("optimizer", "Adam", 30),),
        loss=("l1",),
        steps=30,
        backwards=30,
        train_passes=30,
    ),
    Truth(
        "multi_loss.py",
        models=(("model", "MultiTask"),),
        optimizers=(("optimizer", "Adam", 25),),
        loss=("cross_entropy", "mse"),
        steps=25,
        backwards=50,
        accumulation=2,
        train_passes=25,
    ),
    Truth(
        "double_backward.py",
        models=(("critic", "Critic"), ("generator", "Generator")),
        optimizers=(("critic_opt", "Adam", 24), ("gen_opt", "Adam", 12)),
        loss=("custom",),
        steps=36,
        backwards=36,
        train_passes=96,
        eval_passes=24,
        grad_calls=24,
    ),
    Truth(
        "weight_sharing.py",
        models=(("trainer.model", "TiedGRU"),),
        optimizers=(("trainer.optimizer", "AdamW", 25),),
        loss=("cross_entropy",),
        steps=25,
        backwards=25,
        train_passes=25,
    ),
    Truth(
        "frozen_backbone.py",
        models=(("model_conv", "SmallNet"),),
        optimizers=(("optimizer_conv", "SGD", 20),),
        loss=("cross_entropy",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
    Truth(
        "ema_target.py",
        models=(("online", "QNet"), ("target", "QNet")),
        optimizers=(("optimizer", "Adam", 40),),
        loss=("huber",),
        steps=40,  # the moving average of the target is no update
        backwards=40,
        train_passes=40,
        eval_passes=40,
    ),
    Truth(
        "data_parallel_like.py",
        models=(("model", "Wrapped"),),
        optimizers=(("optimizer", "Adagrad", 20),),
        loss=("mse",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
    Truth(
        "bad/no_optimizer.py",
        models=(("model", "Linear"),),
        optimizers=(),
        loss=("mse",),
        steps=10,
        backwards=10,
        accumulation=None,
        train_passes=10,
        steps_kind="backward",
    ),
    Truth(
        "bad/thread_trains.py",
        models=(("model", "Linear"),),
        optimizers=(("optimizer", "SGD", 20),),
        loss=("mse",),
        steps=20,
        backwards=20,
        train_passes=20,
    ),
)
