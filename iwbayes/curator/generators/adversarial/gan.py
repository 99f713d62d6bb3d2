"""GAN, CGAN, DPGAN, DPCGAN: generators trained against a discriminator that alone sees private rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from iwbayes.curator.generators.adversarial.base import Adversarial
from iwbayes.curator.generators.adversarial.fitted import FittedGAN, FittedWassersteinGAN

__all__ = ["CGAN", "DPCGAN", "DPGAN", "FittedGAN", "FittedWassersteinGAN", "GAN"]


@dataclass(frozen=True, kw_only=True)
class GAN(Adversarial):
    """Generator trained against a discriminator, without privacy, for comparison with `DPGAN`.

    A network draws rows from normal noise; a discriminator learns to tell private rows from these, and the generator
    follows its slope. Numbers are tanh/2 within the public bounds, levels and missing cells a straight-through Gumbel
    softmax, so that rows are always rows of the schema. Before training the columns are independent and about uniform.
    At the end the generator stands still, as the mean of its last iterates, and the discriminator is trained for
    exactly this one.

    Parameters
    ----------
    loss : {"logistic", "wasserstein"}
        With the logistic loss, both classes normalised, the discriminator's logit estimates the log ratio of private
        to synthetic rows, and the generator descends its mean of -logit. A Wasserstein critic with clipped weights
        has no log ratio.
    steps : int or None
        Steps of the discriminator. None takes 600, and 1000 for images.
    discriminator_steps : int
        Steps of the discriminator for each step of the generator, which reads no private row and costs nothing.
    frozen_share : float
        Part of the steps that the discriminator has at the end, when the generator stands still.
    averaged_share : float
        Part of the generator's steps, the last ones, whose weights are averaged: the released generator is their mean,
        which circles less than any of them. 0 releases the last one.
    sampling_probability : float or None
        Chance of each private row to be in a step. None takes all rows of small tables, and as many as make 2048 rows
        (512 for images) in the mean of larger ones.
    batch_size : int or None
        Synthetic rows a step. None takes 1024, and 128 for images.
    generator_hidden, discriminator_hidden : tuple of int, optional
        Widths of the hidden layers: (64, 64) and (32,). For images channels: (32, 16, 8), between which the image is
        enlarged twice, and (16, 32), after each of which it is halved.
    latent : int or None
        Dimension of the normal noise. None takes one for each number (8 at least, 64 at most), and 32 for images.
    image_shape : tuple of int, optional
        Height and width of an image. So many Real columns, pixels row by row, must come first in the schema; other
        columns may follow.
    generator_rate : float or None
        Learning rate of the generator's Adam; it falls to zero while the generator moves. None takes 0.01, and 0.005
        for images. It is smaller where private steps tell little: a generator that follows noise ends worse.
    discriminator_rate : float or None
        Learning rate of the discriminator. None takes, with momentum, the rate at which the noise of 100 steps moves a
        logit by about 1, or the largest stable one if that is smaller; with Adam 0.002.
    discriminator_optimizer : {"momentum", "adam"} or None
        How the discriminator descends along its noisy gradients: with momentum 0.9, or by Adam, which steps alike in
        every parameter, however large its gradients and the noise are. None takes Adam for images under the logistic
        loss, where it kept the game from falling apart, and momentum otherwise.
    gradient_penalty : float
        Of the discriminator's squared slope at synthetic rows, while the generator moves, under the logistic loss. It
        keeps the game from circling (Mescheder et al. 2018, R2).
    weight_clip : float
        Bound on every parameter of a Wasserstein critic.
    device : str
        Where torch trains, "cpu" or "cuda", for example; the private rows are put there as a whole. Synthetic rows
        are always drawn on the CPU.
    random_seed : int or None
        Of initial parameters and latent draws, which are public; never of privacy noise. None takes fresh entropy.
    progressbar : bool
        Show the steps where the error stream is a terminal.

    Notes
    -----
    It costs an infinite epsilon: only ``Ledger(math.inf, ...)`` takes it, and no statement under it is certified.

    References
    ----------
    Goodfellow et al. (NeurIPS 2014); Arjovsky et al. (ICML 2017); Mescheder et al. (ICML 2018).

    Examples
    --------
    >>> GAN(steps=300).pure
    True
    """


@dataclass(frozen=True, kw_only=True)
class CGAN(Adversarial):
    """Class-conditional generator without privacy (Mirza & Osindero 2014): see `GAN` for the other parameters.

    Parameters
    ----------
    condition : str
        A Binary or Categorical column, missing cells one more level where declared. The generator draws rows for its
        levels, the discriminator sees whole rows. Levels follow the private counts, or what `sample` is told.
    """

    condition: str


@dataclass(frozen=True, kw_only=True)
class DPGAN(Adversarial):
    """Generator whose discriminator is trained by private gradient steps (Xie et al. 2018): see `GAN` for parameters.

    Private rows enter through clipped noisy gradients of the discriminator only (`PrivateSteps`); what the generator
    learns from it is post-processing. The gradients of synthetic rows are public: their mean is subtracted from each
    private gradient before clipping, and the clip norm follows them.

    Parameters
    ----------
    clip_norm : float or None
        Bound on the norm of a private row's gradient less the synthetic mean. None takes, in each step, the 70 %
        quantile of the synthetic rows' own.

    Notes
    -----
    The published algorithm has ``loss="wasserstein"``; the logistic loss is the default since its discriminator gives
    weights too (`DiscriminatorWeights`). All steps are charged before the first as one event; the noise is
    floating-point and is recorded so.

    References
    ----------
    Xie et al., "Differentially private generative adversarial network" (2018); Abadi et al. (CCS 2016).

    Examples
    --------
    >>> import iwbayes as iw
    >>> from iwbayes.curator.protocols import PublicFacts
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1), iw.Binary("y")), n_private=1000, n_synthetic=1000)
    >>> [event.label for event in DPGAN().events(facts, epsilon=1, delta=1e-5)]
    ['DPGAN discriminator']
    """

    mechanism: ClassVar[str] = "dp-sgd"

    clip_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class DPCGAN(Adversarial):
    """Class-conditional generator with private steps (Torkzadehmahani et al. 2019): see `GAN`, `CGAN` and `DPGAN`.

    Parameters
    ----------
    condition : str
        A Binary or Categorical column, missing cells one more level where declared.
    condition_share : float
        Part of epsilon that measures the counts of its levels, by which rows are drawn, with Laplace noise.
    clip_norm : float or None
        As in `DPGAN`.

    Notes
    -----
    The published algorithm clips the gradients of synthetic rows too; here they are public and need no clipping.

    References
    ----------
    Torkzadehmahani et al., "DP-CGAN" (CVPR workshops 2019).

    Examples
    --------
    >>> import iwbayes as iw
    >>> from iwbayes.curator.protocols import PublicFacts
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1), iw.Binary("y")), n_private=1000, n_synthetic=1000)
    >>> [event.mechanism for event in DPCGAN(condition="y").events(facts, epsilon=1, delta=1e-5)]
    ['laplace', 'dp-sgd']
    """

    mechanism: ClassVar[str] = "dp-sgd"

    condition: str
    condition_share: float = 0.1
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.condition_share < 1:
            raise ValueError(f"condition_share must be between 0 and 1; got {self.condition_share!r}.")
