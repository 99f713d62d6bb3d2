"""Fitted adversarial generators: public parameters that draw rows, and the discriminator's log ratio."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from iwbayes._digest import digest
from iwbayes._threads import one_torch_thread
from iwbayes.arrays import Array, IntArray, row_blocks
from iwbayes.curator.generators.adversarial.architecture import Architecture
from iwbayes.curator.generators.fitting import check_sample_size
from iwbayes.curator.generators.tables.bins import ColumnBins
from iwbayes.curator.training.parameters import put_parameters
from iwbayes.curator.training.row_gradients import import_torch
from iwbayes.schema import Schema
from iwbayes.tables import PrivateTable, SyntheticTable

if TYPE_CHECKING:
    from iwbayes.curator.generators.adversarial.training import Trained

#: Rows at a time when a table is drawn or a ratio evaluated.
_ROWS = 2**12


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A trained generator: public, nothing private is kept.

    ``name`` is that of its settings, ``distribution`` the released one of the condition's levels, missing cells last.
    """

    name: str
    architecture: Architecture = field(repr=False)
    distribution: Array | None = field(repr=False)
    trained: Trained = field(repr=False)

    @property
    def schema(self) -> Schema:
        """Schema of the rows."""
        return self.architecture.heads.schema

    @property
    def condition(self) -> str | None:
        """Column that rows are drawn for, or None."""
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
            Seeds the sampling; it costs no privacy.
        condition : array_like, shape (n,), optional
            Level of the condition column for each row; None draws them by their released distribution. Given levels are
            in the rows as they are: private ones would be published. The rows then count as outside ones.

        Raises
        ------
        ValueError
            When n is below 1, the condition has another length or undeclared levels, or the generator has none.
        ImportError
            Without torch.
        """
        n = check_sample_size(n)
        torch = import_torch(self.name)
        from iwbayes.curator.generators.adversarial.networks import make_generator

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
        """Codes of the condition, missing cells as the last; None for a generator without one."""
        if self.condition is None or self.distribution is None:
            if condition is not None:
                raise ValueError(f"this {self.name} was trained without a condition. Leave it out, or train a CGAN.")
            return None
        if condition is None:
            return rng.choice(len(self.distribution), size=n, p=self.distribution)
        column = self.schema[self.condition]
        values = pd.Series(np.asarray(condition), name=column.name)
        if len(values) != n:
            raise ValueError(f"condition must have one level a row, {n} in all; got {len(values)}.")
        return ColumnBins(column, None).codes(column.conform(values))

    def fingerprint(self) -> str:
        """Digest of everything that rows and log ratios depend on."""
        spec = self.architecture
        shape = spec.latent, spec.generator, spec.discriminator, spec.image_shape, spec.heads.condition
        parts: list[Any] = [self.trained.center, self.trained.scale]
        for network in (self.trained.generator, self.trained.discriminator):
            parts += chain.from_iterable(sorted(network.items()))
        distribution = () if self.distribution is None else (self.distribution,)
        return digest(type(self).__name__, self.name, self.schema.to_toml(), repr(shape), *distribution, *parts)


class FittedGAN(_Fitted):
    """A generator and the discriminator of exactly its rows, from logistic losses; see `_Fitted` for its fields.

    It has a log ratio: with both classes normalised, the discriminator's logit estimates log p_private/p_synthetic.
    """

    def log_ratio(self, table: PrivateTable | SyntheticTable) -> Array:
        """Log ratio of each row, natural logs, shape (row,).

        Raises
        ------
        ValueError
            When the table has another schema.
        ImportError
            Without torch.
        """
        torch = import_torch(self.name)
        from iwbayes.curator.generators.adversarial.networks import make_discriminator

        if table.schema != self.schema:
            raise ValueError("the log ratio was learned under another schema. Give it rows under that one.")
        rng, trained = np.random.default_rng(0), self.trained
        module = make_discriminator(self.architecture, rng, trained.center, trained.scale).double()
        put_parameters(module, trained.discriminator)
        encoded = self.schema.encode(table.frame)
        with one_torch_thread(), torch.no_grad():
            parts = [module(torch.from_numpy(encoded[b])).numpy() for b in row_blocks(len(encoded), _ROWS)]
        return np.asarray(np.concatenate(parts), dtype=np.float64)


class _NoLogOdds(AttributeError, TypeError):
    """Both at once: the object has no such attribute, and asking for a log ratio is the wrong type of question."""


class FittedWassersteinGAN(_Fitted):
    """A generator trained against a Wasserstein critic, which has no log odds; see `_Fitted` for its fields."""

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what it does not have, and say why where that is a log ratio."""
        if name == "log_ratio":
            raise _NoLogOdds(
                "a Wasserstein critic has no log odds, so that there is no log ratio. Train with loss='logistic', or "
                "use NeuralWeights or TiltWeights with this generator."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
