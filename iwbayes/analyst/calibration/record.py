"""Record of a calibration: measures of each parameter, how much it moved, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from iwbayes.analyst.calibration.influences import Influences
from iwbayes.analyst.calibration.measure import Check
from iwbayes.analyst.calibration.measures import MEASURES
from iwbayes.analyst.calibration.release_limits import weight_facts
from iwbayes.analyst.calibration.sandwich import CalibratedNormal
from iwbayes.analyst.calibration.verdict import Judgement, judge, source, with_verdict
from iwbayes.analyst.released_tilt import ReleasedTilt
from iwbayes.release import Release
from iwbayes.utils.arrays import Array

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Judged:
    """What a record says of p parameters: measures (p,) by name, facts of the whole fit, and influences.

    `informed` (p,) marks the parameters that the likelihood depends on, all if None. `linked` (p, p) marks the pairs of
    parameters that the prior connects.
    """

    measures: dict[str, Array]
    facts: dict[str, Any]
    influences: Influences | None = None
    informed: NDArray[np.bool_] | None = None
    linked: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, normal: CalibratedNormal) -> Judged:
        """Take them from a calibrated normal of all parameters."""
        return cls(normal.measures, normal.facts, normal.influences)

    @classmethod
    def worst_of(cls, each: Sequence[Judged]) -> Judged:
        """Return the worst values under several weight draws, without influences."""
        measures = {
            name: np.stack([one.measures[name] for one in each]).max(axis=0)
            if measure.worst == "largest"
            else np.stack([one.measures[name] for one in each]).min(axis=0)
            for name, measure in MEASURES.items()
        }
        facts = {name: max(one.facts[name] for one in each) for name in each[0].facts}
        return cls(measures, facts | {"likelihood_ess": min(one.facts["likelihood_ess"] for one in each)})

    @classmethod
    def unknown(cls, p: int) -> Judged:
        """Return those of a posterior without a mode or scores."""
        facts = dict.fromkeys(("kappa0", "misfit", "likelihood_ess"), NAN)
        measures = {name: np.full(p, NAN) for name in MEASURES}
        return cls(measures, facts | dict.fromkeys(("cut_directions", "prior_directions"), -1))


@dataclass(frozen=True, eq=False)
class Moved:
    """Draws before and after calibration, each (sample, p), and the deviation of means between weight draws, (p,)."""

    mean_before: Array
    sd_before: Array
    after: Array
    between: Array
    own: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, before: Array, after: Array, between: Array | None = None) -> Moved:
        """Describe draws (..., p)."""
        before, after = (np.reshape(draws, (-1, draws.shape[-1])) for draws in (before, after))
        none = np.full(after.shape[1], NAN)
        return cls(before.mean(axis=0), before.std(axis=0, ddof=1), after, none if between is None else between)


def calibration_record(
    names: Sequence[str],
    method: str,
    judged: Judged,
    moved: Moved,
    release: Release,
    tilt: ReleasedTilt | None,
    *,
    of_all: Sequence[Check] = (),
    outside: str | None = None,
    unmeasured: str | None = None,
    more: dict[str, Any] | None = None,
) -> xr.Dataset:
    """Describe a calibration: how much each parameter moved, and whether it was inside the domain of calibration.

    `names` are flat names of the p unconstrained parameters. `of_all` are checks of the whole fit; `outside` is the
    reason why nothing is calibrated, if it is known beforehand. `unmeasured` comes from `ReleasedTilt.unmeasured`.
    `more` are further attributes.

    Returns
    -------
    xarray.Dataset
        Dimension ``parameter``. Variables:

        - ``calibrated``: whether all checks of this parameter are inside their limits;
        - `MEASURES` by name, NaN where unknown and for hyperparameters;
        - ``mean_weighted``, ``sd_weighted``, ``mean_calibrated``, ``sd_calibrated``, in unconstrained space; under
          several weight draws, ``sd_between`` is the standard deviation of the means over these, NaN otherwise;
        - with rehearsals, ``sd_formula`` and ``sd_rehearsed``, standard deviations of the estimate before the prior,
          ``rehearsed_coverage_se``, and ``deviation`` (rehearsal, parameter): estimate of each rehearsal less the
          release's, NaN if the refit failed;
        - ``influence`` (influence_part, parameter, other_parameter), for tilt weights: the matrices of `Influences`,
          which judge functions of the parameters (`calibration_groups` makes a group of them).

        Attributes: ``method`` ("tilt", "row sandwich", "rehearsals" or "pool"), ``weight_draws`` (their number),
        ``verdict`` ("calibrated", "calibrated in part" or "not calibrated"), ``reasons`` (text, one per line, empty if
        there are none), ``reasons_of_fit`` (those that concern all parameters), the worst value of each measure
        (``kappa_max``, ``explained_min``, ...), ``misfit``, ``kappa0``, ``nonquadraticity``, ``likelihood_ess``,
        ``cut_directions``, ``prior_directions``, and the facts of the weights (`weight_facts`). With rehearsals,
        ``n_rehearsals``, ``failed_refits`` (share), ``unrehearsed_misfit`` (that no rehearsal shows) and ``unmeasured``
        (the sentence). In pools, ``weight_draws_used`` is the number of weight draws behind the draws, and
        ``kappa_bound`` an upper bound of kappa of any parameter.
    """
    columns = {name: judged.measures[name] for name in MEASURES} | moved.own
    columns |= {
        "mean_weighted": moved.mean_before,
        "sd_weighted": moved.sd_before,
        "mean_calibrated": moved.after.mean(axis=0),
        "sd_calibrated": moved.after.std(axis=0, ddof=1),
        "sd_between": moved.between,
    }
    worst = {measure.worst_name: measure.worst_of(judged.measures[name]) for name, measure in MEASURES.items()}
    facts = {"method": method, "weight_draws": 1, "nonquadraticity": NAN}
    facts |= weight_facts(release, tilt) | worst | judged.facts | (more or {})
    verdict = (
        judge(names, judged.measures, source(method), of_all, unmeasured=unmeasured, informed=judged.informed,
              linked=judged.linked)
        if outside is None
        else Judgement(np.zeros(len(names), dtype=bool), [outside], [outside])
    )  # fmt: skip
    data: dict[str, Any] = {name: ("parameter", np.asarray(own, dtype=np.float64)) for name, own in columns.items()}
    if judged.influences is not None:
        data["influence"] = (("influence_part", "parameter", "other_parameter"), judged.influences.array)
    return with_verdict(xr.Dataset(data, coords={"parameter": list(names)}, attrs=facts), verdict)


def calibration_groups(record: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return the groups of a record: ``calibration``, and ``influence`` with the matrices of `Influences`, if known."""
    if "influence" not in record:
        return {"calibration": record}
    return {"calibration": record.drop_vars("influence"), "influence": record[["influence"]].drop_attrs()}
