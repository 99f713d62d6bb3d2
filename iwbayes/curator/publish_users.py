"""publish_users(): bound the rows of each user, then publish, within one budget that both steps share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iwbayes.curator.contribution import bound_contributions, bounding_events, check_bounding
from iwbayes.curator.generators.bayesnet.bayesnet import BayesNet
from iwbayes.curator.plan import check_algorithms, check_delta, check_share, check_whole, joint_events, weights_for
from iwbayes.curator.privacy.accounting import check_budget, noise_event
from iwbayes.curator.privacy.ledger import Ledger
from iwbayes.curator.protocols import Generator, PublicFacts, WeightEstimator
from iwbayes.curator.publish import publish
from iwbayes.release import Release
from iwbayes.tables import PrivateTable

#: Part of epsilon that bounds the rows of users.
BOUND_SHARE = 0.1


def publish_users(
    private: PrivateTable,
    *,
    epsilon: float,
    delta: float,
    grid: Sequence[int] = (1, 2, 4, 8),
    bound_share: float = BOUND_SHARE,
    n_synthetic: int | None = None,
    generator: Generator | None = None,
    weights: WeightEstimator | None = None,
    for_models: Sequence[str] = (),
    share: float = 0.3,
    ledger: Ledger | None = None,
    random_seed: int | np.random.Generator | None = None,
    progressbar: bool = True,
) -> Release:
    """Publish a table in which people own several rows, so that what is released protects people.

    `bound_contributions` keeps at most tau rows of each user, tau chosen privately from a public grid, and `publish`
    does the rest. Both must fit in the budget before either is charged: a bound alone would be of no use.

    Parameters
    ----------
    private : PrivateTable
        With a user column, as it was read.
    epsilon, delta : float
        Budget of both steps together.
    grid : sequence of int
        Candidates for tau, increasing, chosen without looking at the rows.
    bound_share : float
        Part of epsilon that chooses tau and counts the rows, in (0, 1).
    n_synthetic, generator, weights, for_models, share, random_seed, progressbar
        As in `publish`.
    ledger : Ledger, optional
        With adjacency "replace-user"; a new one of this budget by default.

    Returns
    -------
    Release

    Raises
    ------
    BudgetExceeded
        When both steps do not fit in the ledger; nothing is charged or drawn.
    TypeError, ValueError
        For a wrong argument; see `bound_contributions` and `publish`.

    Notes
    -----
    Calibrated intervals for such a release are out of scope: rows of one person are alike, and no interval here
    accounts for that. Every fit of it says "not calibrated", and describes the rows, not the people.

    Examples
    --------
    >>> import pandas as pd
    >>> import iwbayes as iw
    >>> visits = pd.DataFrame({"person": range(60), "cost": [float(i % 9) for i in range(60)]})
    >>> private = iw.PrivateTable(visits, iw.Schema(iw.Real("cost", 0, 10)), user="person")
    >>> release = iw.publish_users(private, epsilon=1, delta=1e-6, grid=[1], n_synthetic=50, progressbar=False)
    >>> release.statement.adjacency, release.certified
    ('replace-user', True)
    """
    epsilon, delta = check_budget(epsilon, delta)
    ledger = Ledger(epsilon, delta, "replace-user") if ledger is None else ledger
    grid = check_bounding(private, ledger, grid)
    check_delta(delta, ledger)
    left = release_epsilon(epsilon, delta, len(grid), ledger, bound_share=bound_share)
    generator = BayesNet() if generator is None else generator
    estimator = weights_for(weights, for_models)
    # refuse what publish() would, while nothing is charged
    check_algorithms(generator, estimator, private)
    check_share(share)
    n = 1 if n_synthetic is None else check_whole("n_synthetic", n_synthetic)
    facts = PublicFacts(private.schema, private.n_users, n, "replace-user", max(grid), private.n_users)
    joint_events(facts, generator, estimator, share, left, delta)(1.0)
    bounding = bounding_events(bound_share * epsilon, len(grid))
    ledger.check_releases(bounding, [noise_event("release", left, delta)])
    bounded = bound_contributions(private, ledger, epsilon=bound_share * epsilon, grid=grid)
    return publish(
        bounded,
        epsilon=left,
        delta=delta,
        n_synthetic=n_synthetic,
        generator=generator,
        weights=estimator,
        share=share,
        ledger=ledger,
        random_seed=random_seed,
        progressbar=progressbar,
    )


def release_epsilon(
    epsilon: float, delta: float, n_candidates: int, ledger: Ledger, *, bound_share: float = BOUND_SHARE
) -> float:
    """Epsilon of both steps that is left to the release beside the bound, under a ledger's rule; charges nothing."""
    if not 0 < bound_share < 1:
        raise ValueError(f"bound_share must be in (0, 1), the bound's part of epsilon; got {bound_share!r}.")
    both = Ledger(epsilon, delta, "replace-user", rule=ledger.rule)
    both.charge_release(*bounding_events(bound_share * epsilon, n_candidates))  # no noise is drawn here
    return min((1 - bound_share) * epsilon, both.left[0])
