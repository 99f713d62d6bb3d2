"""GAN, CGAN, DPGAN, DPCGAN: generators that are trained against a discriminator. Only it reads private rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from iwbayes.paper.adversarial.adversarial_generator import Adversarial
from iwbayes.paper.adversarial.fitted_gan import FittedGAN, FittedWassersteinGAN
from iwbayes.utils import checks

__all__ = ["CGAN", "DPCGAN", "DPGAN", "FittedGAN", "FittedWassersteinGAN", "GAN"]


@dataclass(frozen=True, kw_only=True)
class GAN(Adversarial):
    """Generator trained against a discriminator, without privacy. Use it to compare with `DPGAN`.

    A network turns normal noise into rows that conform to the schema. Numbers are drawn as tanh/2, scaled to their
    public bounds; levels and missing cells by a straight-through Gumbel softmax. At the end the generator is frozen at
    the average of its last parameters, and the discriminator is trained further on rows of exactly this generator.

    Parameters
    ----------
    loss : {"logistic", "wasserstein"}, default "logistic"
        With the logistic loss, private and synthetic rows get the same total weight. The discriminator's logit then
        estimates the log ratio of private to synthetic rows, and the generator minimises the mean of -logit. With
        "wasserstein", the discriminator is a critic with clipped parameters, and there is no log ratio.
    steps : int or None, default None
        Number of discriminator steps. None uses 600 for tables and 1000 for images.
    discriminator_steps : int, default 5
        Discriminator steps for each generator step. Generator steps read no private row and cost nothing.
    frozen_share : float, default 0.2
        Share of the discriminator steps, in (0, 1), that follow after the generator is frozen.
    averaged_share : float, default 0.5
        Share of the generator steps, in [0, 1], whose parameters are averaged. The released generator has the average
        of the last steps' parameters, which is more stable than any single step. 0 releases the last step.
    sampling_probability : float or None, default None
        Probability, in (0, 1], that a private row is used in a step. None uses about 2048 expected rows per step (512
        for images), or all rows of smaller tables.
    batch_size : int or None, default None
        Number of synthetic rows per step. None uses 1024 for tables and 128 for images.
    generator_hidden, discriminator_hidden : tuple of int or None, default None
        Widths of the hidden layers. None uses (64, 64) and (32,). For images these are numbers of channels, by default
        (32, 16, 8) and (16, 32). The generator doubles the image size between two layers; the discriminator halves it
        after each layer.
    latent : int or None, default None
        Number of normal draws per row. None uses one for each numeric feature, at least 8 and at most 64; and 32 for
        images.
    image_shape : tuple of int or None, default None
        Height and width of an image, in pixels. The pixels, row by row, must be the first columns of the schema, as
        Real columns without missing cells. Further columns may follow. None is for tables.
    generator_rate : float or None, default None
        Learning rate of the generator's Adam optimiser. It decreases to zero until the generator is frozen. None uses
        0.01 for tables and 0.005 for images. The rate is reduced if the private steps carry little information, because
        a generator that learns from noise gets worse.
    discriminator_rate : float or None, default None
        Learning rate of the discriminator. None uses 0.002 with Adam. With momentum it uses the rate at which the noise
        of 100 steps moves a logit by about 1, or the largest stable rate if that is smaller.
    discriminator_optimizer : {"momentum", "adam"} or None, default None
        Gradient descent with momentum 0.9, or Adam, which rescales the noisy gradient of each parameter. None uses Adam
        for images with the logistic loss, because training with momentum failed there, and momentum otherwise.
    gradient_penalty : float, default 1.0
        Factor, at least 0, of the penalty on the discriminator's squared gradient at synthetic rows (R2 of Mescheder et
        al. 2018). It keeps the two networks from circling. It applies until the generator is frozen, and only with the
        logistic loss.
    weight_clip : float, default 0.5
        Bound on the absolute value of each parameter of a Wasserstein critic.
    device : str, default "cpu"
        Torch device for the training, for example "cpu" or "cuda". All private rows are copied to it. Synthetic rows
        are always drawn on the CPU.
    random_seed : int or None, default None
        Seed of the initial parameters and the latent draws, which are public. It never seeds privacy noise. None uses
        fresh entropy.
    progressbar : bool, default True
        Show a progress bar if standard error is a terminal.

    Raises
    ------
    ValueError
        If a setting is outside its range.

    Notes
    -----
    Fitting costs an infinite epsilon. Only ``Ledger(math.inf, ...)`` accepts it, and its statement is not certified.

    References
    ----------
    Goodfellow et al., Generative adversarial nets, NeurIPS 2014. Arjovsky, Chintala & Bottou, Wasserstein generative
    adversarial networks, ICML 2017. Mescheder, Geiger & Nowozin, Which training methods for GANs do actually converge?,
    ICML 2018.

    Examples
    --------
    >>> GAN(steps=300).pure
    True
    """


@dataclass(frozen=True, kw_only=True)
class CGAN(Adversarial):
    """Generator of rows given the level of one column, without privacy. See `GAN` for the other parameters.

    The generator draws the other columns given a level of the condition. The discriminator sees complete rows. When
    the fitted generator draws rows, the levels follow the exact private shares, or the levels passed to its ``sample``
    method.

    Parameters
    ----------
    condition : str
        Name of a Binary or Categorical column. Missing cells are one more level if the column may have them.

    Raises
    ------
    ValueError
        If a setting is outside its range. `events` and `fit` raise it if the schema has no such column.

    Notes
    -----
    Fitting costs an infinite epsilon. Only ``Ledger(math.inf, ...)`` accepts it, and its statement is not certified.

    References
    ----------
    Mirza & Osindero, Conditional generative adversarial nets (2014), arXiv:1411.1784.

    Examples
    --------
    The cost is an infinite epsilon, both for the counts of the condition and for the training:

    >>> import iwbayes as iw
    >>> from iwbayes.curator.protocols import PublicFacts
    >>> facts = PublicFacts(iw.Schema(iw.Real("x", 0, 1), iw.Binary("y")), n_private=1000, n_synthetic=1000)
    >>> [event.epsilon for event in CGAN(condition="y").events(facts, epsilon=1.0)]
    [inf, inf]
    """

    condition: str


@dataclass(frozen=True, kw_only=True)
class DPGAN(Adversarial):
    """Generator whose discriminator is trained by private gradient steps. See `GAN` for the other parameters.

    Private rows are used only in clipped, noisy gradients of the discriminator (see `PrivateSteps`). The generator
    learns from the discriminator, which is post-processing and costs nothing. Gradients at synthetic rows are public:
    their mean is subtracted from each private gradient before clipping, and the default clip norm is computed from
    them.

    Parameters
    ----------
    clip_norm : float or None, default None
        Bound on the L2 norm of a private row's gradient minus the mean gradient of synthetic rows. None uses, in each
        step, the 70 % quantile of this norm over the synthetic rows.

    Raises
    ------
    ValueError
        If a setting is outside its range.

    Notes
    -----
    The published algorithm uses ``loss="wasserstein"``. The logistic loss is the default here, because its
    discriminator also gives weights (`DiscriminatorWeights`). All steps are charged as one event before the first step.
    The noise is drawn in floating-point arithmetic, and the statement says so.

    References
    ----------
    Xie, Lin, Wang, Wang & Zhou, Differentially private generative adversarial network (2018), arXiv:1802.06739. Abadi
    et al., Deep learning with differential privacy, CCS 2016.

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
    """Generator of rows given the level of one column, trained by private gradient steps.

    It combines `CGAN` and `DPGAN`. See `GAN` for the other parameters.

    Parameters
    ----------
    condition : str
        Name of a Binary or Categorical column. Missing cells are one more level if the column may have them.
    condition_share : float, default 0.1
        Share of epsilon, in (0, 1), for the counts of the condition's levels, which are released with Laplace noise.
        Drawn levels follow these noisy counts.
    clip_norm : float or None, default None
        Bound on the L2 norm of a private row's gradient minus the mean gradient of synthetic rows. None uses, in each
        step, the 70 % quantile of this norm over the synthetic rows.

    Raises
    ------
    ValueError
        If a setting is outside its range. `events` and `fit` raise it if the schema has no such column.

    Notes
    -----
    The published algorithm clips the gradients of synthetic rows too. Here they are public and need no clipping.

    References
    ----------
    Torkzadehmahani, Kairouz & Paten, DP-CGAN: differentially private synthetic data and label generation, CVPR
    workshops 2019.

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
        checks.share("condition_share", self.condition_share)
