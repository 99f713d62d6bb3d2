"""What the tables of Ghalebikesabi et al. (UAI 2022) measure weighted synthetic rows by; see ``paper/tables.py``."""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np
import pandas as pd
from data_sets import Data, points
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron, vstack
from scipy.spatial.distance import cdist

import iwbayes as iw

#: Pairs of rows between which a linear program finds the best transport within seconds.
FEW_PAIRS = 100_000
MEASURES = ("WST", "beta MSE", "MLP")


def title(name: str, measure: str) -> str:
    """Name a measure of a data set: that of the perceptron depends on the response."""
    return measure if measure != "MLP" else "MLP MSE" if name == "Boston" else "MLP AUC"


def transport(first: np.ndarray, second: np.ndarray, cost: np.ndarray) -> float:
    """Return the least cost of moving the first distribution to the second, exact.

    Between few rows a linear program of scipy does without POT, which is part of the extra benchmarks.
    """
    if find_spec("ot"):
        import ot

        return float(ot.emd2(first, second, cost, numItermax=1_000_000))
    if cost.size > FEW_PAIRS:
        raise ImportError('the Wasserstein distance of tables needs POT: pip install ".[benchmarks]"')
    sums = vstack([kron(eye_array(len(first)), np.ones((1, len(second)))),
                   kron(np.ones((1, len(first))), eye_array(len(second)))]).tocsr()  # fmt: skip
    # the last sum follows from the others, and rounding must not contradict it
    found = linprog(cost.ravel(), A_eq=sums[:-1], b_eq=np.concatenate([first, second])[:-1])
    if not found.success:
        raise RuntimeError(f"no transport was found: {found.message}")
    return float(found.fun)


class Metrics:
    """What synthetic rows with weights are measured by, against test rows.

    Parameters
    ----------
    data : Data
    test : pandas.DataFrame
        In canonical form.
    seed : int
        Of the perceptron.
    transport : bool
        Measure the Wasserstein distance, which takes as long as all pairs of rows do.
    """

    def __init__(self, data: Data, test: pd.DataFrame, seed: int, *, transport: bool = True) -> None:
        self._data, self._seed = data, seed
        self._points = points(test, data.schema) if transport else None
        self._x, self._y = self._parts(test)
        response = data.schema[data.response]
        self._numeric = isinstance(response, iw.Real)
        self._n_slopes = 1 if self._numeric or len(response.levels) == 2 else len(response.levels)
        self._beta = self._slopes(self._x, self._y, np.ones(len(self._y)))

    @property
    def no_slopes(self) -> float:
        """Mean square error of the beta MSE's predictor when all slopes are 0: what no knowledge at all gives."""
        return float(np.mean(self._beta**2))

    def _parts(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        schema = self._data.schema
        x = np.column_stack([c.encode(frame[c.name]) for c in schema if c.name != self._data.response])
        column = schema[self._data.response]
        if isinstance(column, iw.Real):
            return x, column.encode(frame[column.name])[:, 0]
        return x, column.codes(frame[column.name])

    def _slopes(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        from sklearn.linear_model import LogisticRegression, Ridge

        weights = weights * (len(self._y) / weights.sum())
        if self._numeric:
            return Ridge(alpha=1.0).fit(x, y, sample_weight=weights).coef_
        if len(np.unique(y[weights > 0])) < 2:  # a constant response has no slopes
            return np.zeros((self._n_slopes, x.shape[1]))
        model = LogisticRegression(C=1.0, max_iter=1000).fit(x, y, sample_weight=weights)
        if len(model.coef_) == 1:
            return model.coef_
        slopes = np.zeros((self._n_slopes, x.shape[1]))  # a class without rows has none
        slopes[model.classes_] = model.coef_
        return slopes

    def __call__(self, frame: pd.DataFrame, weights: np.ndarray) -> dict[str, float]:
        """Measure rows in canonical form, with weights (row,) of any scale."""
        share = weights / weights.sum()
        x, y = self._parts(frame)
        return {
            "WST": self._distance(frame, share),
            "beta MSE": float(np.mean((self._slopes(x, y, weights) - self._beta) ** 2)),
            "MLP": self._perceptron(x, y, share * len(share)),
        }

    def _distance(self, frame: pd.DataFrame, share: np.ndarray) -> float:
        if self._points is None:
            return math.nan
        cost = cdist(points(frame, self._data.schema), self._points)
        return transport(share, np.full(len(self._y), 1 / len(self._y)), cost)

    def _perceptron(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        settings = {"hidden_layer_sizes": (100,), "random_state": self._seed}
        some = weights > 1e-10  # a batch in which no row has any weight has no loss
        x, y, weights = x[some], y[some], weights[some]
        if self._numeric:
            unit = self._y.std()
            fitted = MLPRegressor(**settings).fit(x, y / unit, sample_weight=weights)
            return float(np.mean((fitted.predict(self._x) - self._y / unit) ** 2))
        if len(np.unique(y)) < 2:
            return 0.5
        fitted = MLPClassifier(**settings).fit(x, y, sample_weight=weights)
        p = fitted.predict_proba(self._x)
        if self._n_slopes == 1:
            return float(roc_auc_score(self._y, p[:, 1]))
        every = np.zeros((len(p), self._n_slopes))
        every[:, fitted.classes_] = p
        return float(roc_auc_score(self._y, every, multi_class="ovr", labels=range(self._n_slopes)))
