"""Published methods for comparison: the methods of Ghalebikesabi et al. (UAI 2022) and their components."""

from iwbayes.beta_calibration import BetaCalibration, beta_calibrate
from iwbayes.curator.estimators.beta import BetaCalibratedWeights
from iwbayes.curator.estimators.fixed import DiscriminatorWeights, KnownRatioWeights
from iwbayes.curator.estimators.logistic import LogisticWeights
from iwbayes.curator.estimators.neural import NeuralWeights
from iwbayes.curator.estimators.output import OutputNoiseWeights
from iwbayes.curator.generators.adversarial.gan import CGAN, DPCGAN, DPGAN, GAN
from iwbayes.curator.generators.pate.pate import PATEGAN
from iwbayes.curator.paper import PAPER_METHODS as METHODS
from iwbayes.curator.queries import PrivateLogisticRegression

__all__ = [
    "CGAN",
    "DPCGAN",
    "DPGAN",
    "GAN",
    "METHODS",
    "PATEGAN",
    "BetaCalibratedWeights",
    "BetaCalibration",
    "DiscriminatorWeights",
    "KnownRatioWeights",
    "LogisticWeights",
    "NeuralWeights",
    "OutputNoiseWeights",
    "PrivateLogisticRegression",
    "beta_calibrate",
]
