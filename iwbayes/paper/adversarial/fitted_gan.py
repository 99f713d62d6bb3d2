"""Fitted adversarial generators: they draw rows, and their discriminators give a log ratio."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from iwbayes.curator.generators.tables.bins import ColumnBins
from iwbayes.paper.adversarial.architecture import Architecture
from iwbayes.paper.dpsgd.parameters import put_parameters
from iwbayes.paper.dpsgd.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.arrays import Array, IntArray, row_blocks
from iwbayes.utils.digest import digest
from iwbayes.utils.threads import one_torch_thread

if TYPE_CHECKING:
    from iwbayes.paper.adversarial.gan_training import Trained

#: Number of rows that are drawn or evaluated at a time.
_ROWS = 2**12


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A trained generator. It is public: it keeps nothing private.

    Parameters
    ----------
    name : str
        Name of the generator's class, for example "DPGAN".
    architecture : Architecture
        Schema and network sizes.
    distribution : ndarray, shape (level,), or None
        Released shares of the condition's levels, missing cells last; None without a condition.
    trained : Trained
        Parameters of both networks.
    """

    name: str
    architecture: Architecture = field(repr=False)
    distribution: Array | None = field(repr=False)
    trained: Trained = field(repr=False)

    @property
    def schema(self) -> Schema:
        """Schema of the drawn rows."""
        return self.architecture.heads.schema

    @property
    def condition(self) -> str | None:
        """Name of the condition column, or None."""
        return self.architecture.heads.condition

    def sample(
        self, n: int, *, random_seed: int | np.random.Generator | None = None, condition: ArrayLike | None = None
    ) -> SyntheticTable:
        """Draw synthetic rows.

        Parameters
        ----------
        n : int
            Number of rows, at least 1.
        random_seed : int or numpy.random.Generator, optional
            Seed of the sampling. Sampling costs no privacy. None (the default) uses fresh entropy.
        condition : array_like, shape (n,), optional
            Level of the condition column for each row. None (the default) draws levels from the released
            distribution. The rows contain the given levels unchanged, so never pass private ones: they would be
            published. A release treats such rows as coming from outside the ledger.

        Returns
        -------
        SyntheticTable
            The n rows, under the generator's schema.

        Raises
        ------
        ValueError
            If n is below 1, if the condition has a different length or undeclared levels, or if the generator was
            trained without a condition.
        ModuleNotFoundError
            If torch is not installed.
        """
        n = checks.whole("n", n)
        torch = import_torch(self.name)
        from iwbayes.paper.adversarial.gan_networks import make_generator

        rng = np.random.default_rng(random_seed)
        codes = self._codes(n, condition, rng)
        source = torch.Generator().manual_seed(int(rng.integers(2**62)))
        module = make_generator(self.architecture, np.random.default_rng(0))
        put_parameters(module, self.trained.generator)
        parts = []
        with one_torch_thread(), torch.no_grad():
            for block in row_blocks(n, _ROWS):
                given = None if codes is None else codes[block]
                rows = self.architecture.draw(module, block.stop - block.start, source, given)
                parts.append(rows.numpy().astype(np.float64))
        table = SyntheticTable(self.schema.decode(np.concatenate(parts)), self.schema, origin=self.name)
        return table._from_source(self.fingerprint() if condition is None else None)

    def _codes(self, n: int, condition: ArrayLike | None, rng: np.random.Generator) -> IntArray | None:
        """Return codes of the condition, shape (n,), missing cells last; None for a generator without a condition."""
        if self.condition is None or self.distribution is None:
            if condition is not None:
                raise ValueError(
                    f"condition must be None, because this {self.name} was trained without one. Leave it out, or fit "
                    f"a CGAN or DPCGAN."
                )
            return None
        if condition is None:
            return rng.choice(len(self.distribution), size=n, p=self.distribution)
        column = self.schema[self.condition]
        values = pd.Series(np.asarray(condition), name=column.name)
        if len(values) != n:
            raise ValueError(f"condition must have one level per row, so {n} levels; got {len(values)}.")
        return ColumnBins(column, None).codes(column.conform(values))

    def fingerprint(self) -> str:
        """Return a digest of everything that the rows and log ratios depend on."""
        spec = self.architecture
        shape = spec.latent, spec.generator, spec.discriminator, spec.image_shape, spec.heads.condition
        parts: list[Any] = [self.trained.center, self.trained.scale]
        for network in (self.trained.generator, self.trained.discriminator):
            parts += chain.from_iterable(sorted(network.items()))
        distribution = () if self.distribution is None else (self.distribution,)
        return digest(type(self).__name__, self.name, self.schema.to_toml(), repr(shape), *distribution, *parts)


class FittedGAN(_Fitted):
    """A generator and the discriminator that was trained on its final rows, with the logistic loss.

    It has a log ratio: because both classes have the same total weight, the discriminator's logit estimates
    log p_private(x)/p_synthetic(x).

    Parameters
    ----------
    name : str
        Name of the generator's class, for example "DPGAN".
    architecture : Architecture
        Schema and network sizes.
    distribution : ndarray, shape (level,), or None
        Released shares of the condition's levels, missing cells last; None without a condition.
    trained : Trained
        Parameters of both networks.
    """

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Return the estimated log ratio log p_private(x)/p_synthetic(x) of each row.

        Parameters
        ----------
        table : PrivateTable or SyntheticTable
            Rows under the schema of the training.

        Returns
        -------
        ndarray, shape (row,)
            Natural logs.

        Raises
        ------
        ValueError
            If the table has a different schema.
        ModuleNotFoundError
            If torch is not installed.
        """
        torch = import_torch(self.name)
        from iwbayes.paper.adversarial.gan_networks import make_discriminator

        if table.schema != self.schema:
            raise ValueError(
                "the table must have the schema under which the log ratio was learned; its schema differs. Pass a "
                "table with that schema."
            )
        rng, trained = np.random.default_rng(0), self.trained
        module = make_discriminator(self.architecture, rng, trained.center, trained.scale).double()
        put_parameters(module, trained.discriminator)
        encoded = self.schema.encode(table.frame)
        with one_torch_thread(), torch.no_grad():
            parts = [module(torch.from_numpy(encoded[b])).numpy() for b in row_blocks(len(encoded), _ROWS)]
        return np.asarray(np.concatenate(parts), dtype=np.float64)


class _NoLogOdds(AttributeError, TypeError):
    """Both an AttributeError and a TypeError: `hasattr` is False, and callers that check types catch it as well."""


class FittedWassersteinGAN(_Fitted):
    """A generator that was trained against a Wasserstein critic. It has no log ratio.

    Parameters
    ----------
    name : str
        Name of the generator's class, for example "DPGAN".
    architecture : Architecture
        Schema and network sizes.
    distribution : ndarray, shape (level,), or None
        Released shares of the condition's levels, missing cells last; None without a condition.
    trained : Trained
        Parameters of both networks.
    """

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError, with an explanation if the attribute is ``log_ratio``."""
        if name == "log_ratio":
            raise _NoLogOdds(
                "a Wasserstein critic has no log odds, so this generator has no log ratio. Train with "
                "loss='logistic', or use NeuralWeights or TiltWeights with this generator."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
