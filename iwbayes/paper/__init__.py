"""Published methods for comparison, on the curator's side: under its protocols, its contract tests and its ledger.

Outside of this folder only the closed registry (`iwbayes.curator.settings`) imports them. Importing this folder does
not load torch. Which paper gave which method:

- Ghalebikesabi, Wilde, Jewson, Doucet, Vollmer & Holmes (UAI 2022): `LogisticWeights`, `NeuralWeights`,
  `OutputNoiseWeights`, `DiscriminatorWeights`, `KnownRatioWeights`, and `METHODS`, which has them by their published
  names.
- Kull, Silva Filho & Flach (AISTATS 2017): `BetaCalibration` and `beta_calibrate`. `BetaCalibratedWeights` fits the map
  on the private rows.
- Chaudhuri, Monteleoni & Sarwate (JMLR 2011): noise on coefficients and on the objective of a regression, for
  `LogisticWeights` and `PrivateLogisticRegression`.
- Abadi et al. (CCS 2016): private gradient steps (`dpsgd`).
- Goodfellow et al. (NeurIPS 2014), Mirza & Osindero (2014), Xie et al. (2018): `GAN`, `CGAN`, `DPGAN` and `DPCGAN`.
- Jordon, Yoon & van der Schaar (ICLR 2019): `PATEGAN`.
- Jälkö, Dikmen & Honkela (UAI 2017): private variational inference, for `iwbayes.Mixture(method="variational")`.
- Koopman, Shephard & Creal (Journal of Econometrics 2009): `finite_variance_test`.
"""

from iwbayes.paper.adversarial.gan import CGAN, DPCGAN, DPGAN, GAN
from iwbayes.paper.beta_calibration import BetaCalibration, beta_calibrate
from iwbayes.paper.beta_weights import BetaCalibratedWeights
from iwbayes.paper.given_ratio import DiscriminatorWeights, KnownRatioWeights
from iwbayes.paper.logistic_weights import LogisticWeights
from iwbayes.paper.methods import METHODS
from iwbayes.paper.neural_weights import NeuralWeights
from iwbayes.paper.output_noise import OutputNoiseWeights
from iwbayes.paper.pate.pate import PATEGAN
from iwbayes.paper.printed_network import PrintedNeuralWeights
from iwbayes.paper.queries import PrivateLogisticRegression
from iwbayes.paper.variance_test import FiniteVarianceTest, finite_variance_test
from iwbayes.paper.without_privacy import run_without_privacy

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
    "FiniteVarianceTest",
    "KnownRatioWeights",
    "LogisticWeights",
    "NeuralWeights",
    "OutputNoiseWeights",
    "PrintedNeuralWeights",
    "PrivateLogisticRegression",
    "beta_calibrate",
    "finite_variance_test",
    "run_without_privacy",
]
