"""Planted defects of mechanisms, noise, prices, ledgers, permits and digests; see `defects.py`."""

from planting import Edit, plant

# fmt: off
# --- mechanisms

FILE = "curator/privacy/mechanisms.py"
LAW = "curator/privacy/test_mechanisms.py::test_the_law_of_the_noise_follows_from_the_sensitivity"
ROUNDING = "curator/privacy/test_mechanisms.py::test_rounding_to_the_grid_is_paid_for"
CHARGES = "curator/privacy/test_mechanisms.py::test_each_mechanism_charges_exactly_one_event_before_it_draws"
SEPARATELY = "curator/privacy/test_mechanisms.py::test_coordinates_that_are_released_separately_are_charged_separately"
plant(FILE, "gaussian: half the scale",
       "scale = multiplier * (sensitivity + slack", "scale = multiplier / 2 * (sensitivity + slack", LAW)
plant(FILE, "gaussian: rounding is not paid for",
       "scale = multiplier * (sensitivity + slack * math.sqrt(together))", "scale = multiplier * sensitivity", ROUNDING)
plant(FILE, "gaussian: rounding is paid for one coordinate",
       "slack * math.sqrt(together)", "slack", ROUNDING)
plant(FILE, "gaussian: coarse grid under little noise",
       "    whole, step = _refined(whole, step, scale)\n", "",
       "curator/privacy/test_mechanisms.py::test_gaussian_noise_spans_many_steps_even_on_a_coarse_grid")
plant(FILE, "gaussian: separate coordinates charged once",
       "float(delta), multiplier, uses)", "float(delta), multiplier, 1)", SEPARATELY)
plant(FILE, "gaussian: noise without a charge",
       'ledger.charge(Event(label, "gaussian", float(epsilon), float(delta), multiplier, uses))', "ledger._noise",
       CHARGES)
plant(FILE, "laplace: scale from the L2 norm",
       "math.nextafter((sensitivity + slack * together) / epsilon, math.inf)",
       "math.nextafter((sensitivity / math.sqrt(together) + slack * together) / epsilon, math.inf)", LAW)
plant(FILE, "laplace: rounding is paid for one coordinate",
       "(sensitivity + slack * together) / epsilon", "(sensitivity + slack) / epsilon", ROUNDING)
plant(FILE, "laplace: separate coordinates charged once",
       'Event(label, "laplace", epsilon, count=uses)', 'Event(label, "laplace", epsilon)', SEPARATELY)
plant(FILE, "laplace: noise before the charge",
       """    noise = ledger.charge(Event(label, "laplace", epsilon, count=uses))
    return Noisy(noise.laplace(whole, scale / step) * step, LaplaceDistribution(scale, len(whole)))""",
       """    drawn = ledger._noise.laplace(whole, scale / step)
    ledger.charge(Event(label, "laplace", epsilon, count=uses))
    return Noisy(drawn * step, LaplaceDistribution(scale, len(whole)))""", CHARGES)
plant(FILE, "laplace: a run that fails gets its charge back",
       "    return Noisy(noise.laplace(whole, scale / step) * step, LaplaceDistribution(scale, len(whole)))",
       """    try:
        return Noisy(noise.laplace(whole, scale / step) * step, LaplaceDistribution(scale, len(whole)))
    except BaseException:
        from dataclasses import replace
        ledger._change(lambda record: replace(record, charges=record.charges[:-1]))
        raise""",
       "curator/privacy/test_ledger.py::test_a_charge_comes_before_the_draw_and_stays_when_the_run_fails")
plant(FILE, "cube: half the scale",
       "scale = (sensitivity + slack) / epsilon", "scale = (sensitivity + slack) / (2 * epsilon)", LAW)
plant(FILE, "cube: scale rounded down",
       "math.floor(scale / step * 2**20) + 1", "math.floor(scale / step * 2**20)",
       "curator/privacy/test_mechanisms.py::test_cube_scale_is_an_exact_fraction_never_below_the_calibrated_one")
plant(FILE, "cube: rounding is not paid for",
       "scale = (sensitivity + slack) / epsilon", "scale = sensitivity / epsilon", ROUNDING)
plant(FILE, "spherical: half the scale",
       "SphericalDistribution(sensitivity / epsilon, len(exact))",
        "SphericalDistribution(sensitivity / (2 * epsilon), len(exact))", LAW)
plant(FILE, "exponential: scale without the 2",
       """scale = math.nextafter(2 * sensitivity / epsilon, math.inf)
    noise = ledger.charge(Event(label, "exponential", epsilon))""",
       """scale = math.nextafter(sensitivity / epsilon, math.inf)
    noise = ledger.charge(Event(label, "exponential", epsilon))""",
       "curator/privacy/test_mechanisms.py::test_exponential_selects_by_the_permute_and_flip_law")
plant(FILE, "above threshold: half the noise for any queries",
       "scale if monotone else 2 * scale", "scale",
       "curator/test_contribution.py::test_above_threshold_follows_its_law")
plant(FILE, "above threshold: threshold without noise",
       "limit = noise.laplace(np.array([threshold], dtype=np.int64), scale)[0]", "limit = threshold",
       "curator/test_contribution.py::test_above_threshold_follows_its_law")

# --- noise

FILE = "curator/privacy/noise.py"
SYSTEM = "curator/privacy/test_system_noise.py::test_the_law_is_exact_at_every_scale"
NO_GENERATOR = "curator/privacy/test_system_noise.py::test_no_generator_is_behind_system_noise"
_HALVED = Edit(FILE, "values + scale * _standard_normals(len(values))", "values + scale / 2 * _standard_normals(len(values))")  # noqa: E501
_FIXED = Edit(FILE, "        taken = bits < first\n", "        return np.sort(np.argsort(bits)[: round(n * rate)])\n        taken = bits < first\n")  # noqa: E501
plant(*_HALVED[:1], "system: floating noise halved and fixed samples", *_HALVED[1:3], SYSTEM, more=(_FIXED,))
plant(*_HALVED[:1], "system: floating noise halved", *_HALVED[1:3], SYSTEM)
plant(*_FIXED[:1], "system: samples of a fixed size", *_FIXED[1:3], SYSTEM)
plant(FILE, "system: cube from random.Random()",
       "system_below), dtype", "random.Random().randrange), dtype", NO_GENERATOR)
plant(FILE, "system: cube from a seed",
       "system_below), dtype", "random.Random(1).randrange), dtype",
       "curator/privacy/test_system_noise.py::test_no_secret_comes_twice_from_calls_objects_and_copies")
plant(FILE, "system: floating noise from a numpy generator",
       _HALVED.find, "values + np.random.default_rng().normal(0.0, scale, len(values))", NO_GENERATOR)
plant(FILE, "system: floating noise from a seed",
       _HALVED.find, "values + np.random.default_rng(0).normal(0.0, scale, len(values))",
       "curator/privacy/test_system_noise.py::test_no_secret_comes_twice_from_calls_objects_and_copies")
plant(FILE, "system: one number for all coordinates", _HALVED.find, "values + scale * _standard_normals(1)", SYSTEM)
plant(FILE, "system: bits from a generator",
       "os.urandom(n * np.dtype(kind).itemsize)", "random.Random().randbytes(n * np.dtype(kind).itemsize)",
       NO_GENERATOR)
plant(FILE, "system: gaussian halved",
       '_opendp("gaussian", len(values), float(scale))', '_opendp("gaussian", len(values), scale / 2)',
       SYSTEM)
plant(FILE, "system: laplace halved",
       '_opendp("laplace", len(values), float(scale))', '_opendp("laplace", len(values), scale / 2)',
       SYSTEM)
plant(FILE, "system: cube halved", "scale, system_below)", "scale / 2, system_below)", SYSTEM)
plant(FILE, "system: spherical halved", "scale * math.sqrt((normal", "scale / 2 * math.sqrt((normal", SYSTEM)
plant(FILE, "system: noisy maximum halved",
       '_opendp("maximum", None, float(scale))', '_opendp("maximum", None, scale / 2)', SYSTEM)
plant(FILE, "system: permutation is the identity", "order = np.argsort(keys)", "order = np.arange(n)", SYSTEM)
plant(FILE, "system: rows on the threshold never taken",
       "taken[undecided] = _random_bits(len(undecided), np.uint64) < np.uint64(rest)", "taken[undecided] = False",
       "curator/privacy/test_system_noise.py::test_rows_on_the_threshold_are_taken_exactly_at_its_rate")
plant(FILE, "system: whole numbers by remainder",
       "        if drawn < stop:\n            return drawn", "        return drawn % stop",
       "curator/privacy/test_system_noise.py::test_whole_numbers_that_are_too_large_are_drawn_anew")
plant(FILE, "cube: a radius of too few draws",
       "for _ in range(dim + 1))", "for _ in range(dim))",
       "curator/privacy/test_noise.py::test_integer_cube_against_brute_force")

# --- accounting

FILE = "curator/privacy/accounting.py"
plant(FILE, "accounting: gaussian delta at half the sensitivity",
       "half, shift = 0.5 / noise_multiplier", "half, shift = 0.25 / noise_multiplier",
       "curator/privacy/test_ledger.py::test_gaussian_delta_equals_its_definition")
plant(FILE, "accounting: multiplier not rounded up",
       "    while gaussian_delta(multiplier, epsilon) > delta:\n        multiplier = float(np.nextafter(multiplier, "
       "np.inf)) * (1 + 1e-13)\n    return multiplier", "    return multiplier * (1 - 1e-9)",
       "curator/privacy/test_ledger.py::test_the_multiplier_is_the_smallest_with_the_guarantee")
plant(FILE, "accounting: replaced rows priced as null rows",
       '"replace-one": "REPLACE_ONE"', '"replace-one": "REPLACE_SPECIAL"',
       "paper/test_dpsgd.py::test_the_event_meets_its_budget")
plant(FILE, "accounting: replaced users priced as null rows",
       '"replace-user": "REPLACE_ONE"', '"replace-user": "REPLACE_SPECIAL"',
       "curator/test_contribution.py::test_gradient_steps_sample_users_and_clip_their_sums")
plant(FILE, "accounting: all steps at the price of one",
       ").self_compose(event.steps)", ")", "paper/test_dpsgd.py::test_the_event_meets_its_budget")
plant(FILE, "accounting: half the sampling probability",
       "sampling_prob=event.sampling_probability,", "sampling_prob=event.sampling_probability / 2,",
       "paper/test_dpsgd.py::test_one_sampled_step_has_the_delta_of_its_mixtures")
plant(FILE, "accounting: false claims of gaussian events",
       "if exact > event.delta * (1 + 1e-6):", "if exact > event.delta * 1e6:",
       "curator/privacy/test_ledger.py::test_a_gaussian_event_that_claims_too_little_is_refused")
plant(FILE, "accounting: gaussian uses counted once",
       "math.fsum(e.count / e.noise_multiplier**2 for e in events if e.noise_multiplier) ** -0.5",
       "math.fsum(1 / e.noise_multiplier**2 for e in events if e.noise_multiplier) ** -0.5",
       "curator/privacy/test_ledger.py::test_equal_events_cost_the_same_one_by_one_or_counted")
plant(FILE, "accounting: pure uses counted once",
       "return pld if event.count == 1 else pld.self_compose(event.count)", "return pld",
       "curator/privacy/test_ledger.py::test_composed_pure_mechanisms_cost_no_less_than_the_worst_of_them")
plant(FILE, "accounting: pure events at half their epsilon",
       "common.DifferentialPrivacyParameters(event.epsilon, event.delta)",
       "common.DifferentialPrivacyParameters(event.epsilon / 2, event.delta)",
       "curator/privacy/test_ledger.py::test_composed_pure_mechanisms_cost_no_less_than_the_worst_of_them")
plant(FILE, "accounting: pure losses beside a gaussian at half their size",
       "(losses, epsilon * (2 * k - count))", "(losses, epsilon * (k - count / 2))",
       "curator/privacy/test_ledger.py::test_gaussians_beside_pure_events_have_the_exact_price")
plant(FILE, "accounting: signs of pure losses are even",
       "k * log_expit(epsilon) + (count - k) * log_expit(-epsilon)", "count * log_expit(0.0) + 0 * k",
       "curator/privacy/test_ledger.py::test_gaussians_beside_pure_events_have_the_exact_price")
plant(FILE, "accounting: scale of a release above its budget",
       "        if not unknown or low == 64:\n            return low",
       "        if not unknown or low == 64:\n            return high",
       "curator/privacy/test_ledger.py::test_the_largest_scale_fits_and_a_little_more_does_not")

# --- ledger: charges

FILE = "curator/privacy/ledger.py"
plant(FILE, "ledger: no charge is recorded",
       "record.after(replace(record.admit(events, delta, named), date=today)))", "record)",
       "curator/privacy/test_mechanisms.py::test_each_mechanism_charges_exactly_one_event_before_it_draws")
plant(FILE, "ledger: parts of a release are taken twice",
       "        self._take(events)\n        return _Account", "        return _Account",
       "curator/privacy/test_permit.py::test_parts_of_a_release_take_what_was_charged_and_no_more")
plant(FILE, "ledger: charges are not written to the file",
       "                self._file.write(record)\n", "                pass\n",
       "curator/privacy/test_ledger_file.py::test_a_charge_is_in_the_file_before_noise_is_drawn_and_stays")
plant(FILE, "ledger: threads charge at once",
       "with self._lock, nullcontext() if self._file is None else self._file.lock:",
       "with nullcontext() if self._file is None else self._file.lock:",
       "curator/privacy/test_ledger.py::test_no_thread_charges_between_another_ones_price_and_charge")
plant(FILE, "ledger: draws are not counted",
       "return Permit(self._noise, events)", "return self._noise", "curator/privacy/test_permit.py")
plant(FILE, "account: takes nothing from its release",
       "            self._left -= Counter(count_uses(events))\n", "",
       "curator/privacy/test_permit.py",
       "curator/privacy/test_ledger.py::test_a_release_is_taken_once_and_nothing_else_is_taken_from_it")
plant(FILE, "account: takes what is not in its release",
       "        if missing:\n", "        if not self._left:\n",
       "curator/privacy/test_permit.py",
       "curator/privacy/test_ledger.py::test_a_release_is_taken_once_and_nothing_else_is_taken_from_it")
plant(FILE, "ledger: holds whatever it is asked for",
       "return fingerprint in self._now().products", "return True",
       "curator/test_outside.py::test_a_declared_cost_is_charged_once_and_the_release_certified")
plant(FILE, "file: the lock is not taken",
       "with self._lock, nullcontext() if self._file is None else self._file.lock:", "with self._lock:",
       "curator/privacy/test_ledger_file.py::test_processes_that_charge_at_once_never_overspend")
FILE = "curator/privacy/ledger_file.py"
plant(FILE, "file: charges that are gone are not missed",
       "record.charges[: len(since.charges)] != since.charges", "False",
       "curator/privacy/test_ledger_file.py::test_charges_that_are_gone_are_missed")
plant(FILE, "file: checksum not compared",
       'if values.pop("sha256", None) != _digest(values):', 'if values.pop("sha256", None) is None:',
       "curator/privacy/test_ledger_file.py::test_a_damaged_file_is_refused_and_never_begun_anew")
plant(FILE, "file: a lost ledger is begun anew",
       "if not stood and record is not None:", "if record is not None:",
       "curator/privacy/test_ledger_file.py::test_a_ledger_that_is_gone_is_not_begun_anew_while_its_lock_file_stands")
plant(FILE, "file: charges are not read",
       "        charges=charges,\n", "        charges=charges[:0],\n",
       "curator/privacy/test_filters.py")
plant(FILE, "file: a second name is another ledger",
       ".st_nlink > 1", ".st_nlink > 2",
       "curator/privacy/test_ledger_file.py::test_another_name_of_the_file_is_the_same_ledger")

# --- ledger: rules

FILTERS = "curator/privacy/test_filters.py"
PLANNED_USES = "curator/privacy/test_filters.py::test_a_plan_covers_what_is_as_private_once_and_nothing_less_private"
BASIC = "curator/privacy/test_filters.py::test_under_basic_composition_deltas_add_up_to_the_budgets"
FILE = "curator/privacy/ledger_record.py"
plant(FILE, "record: what does not fit is accepted",
       "        raise BudgetExceeded(self._refusal(charge))", "        return charge",
       "curator/privacy/test_ledger.py::test_over_budget_nothing_is_charged_and_nothing_is_drawn")
plant(FILE, "record: joint price of what was chosen after looking",
       "        elif self._accepts((*self.charges, charge)):",
       "        elif self.joint_price([*self.events, *events])[0] <= self.epsilon:", FILTERS)
plant(FILE, "record: each release has the whole budget",
       "        if not self.charges and not self.plan:\n            if self.joint_price(events)",
       "        if not self.plan:\n            if self.joint_price(events)", FILTERS)
plant(FILE, "record: the opening leaves all of delta",
       "delta=self.delta - opening.delta)", "delta=self.delta)",
       "curator/privacy/test_filters.py::test_the_opening_takes_its_delta_from_what_follows")
plant(FILE, "record: the opening leaves all of epsilon",
       "epsilon=self.epsilon - opening.main,", "epsilon=self.epsilon,", FILTERS)
plant(FILE, "record: the order of a rule is chosen anew",
       "rule = replace(self.rule, epsilon=", "rule = type(self.rule)(epsilon=", FILTERS)
plant(FILE, "record: deltas do not count in pure sums",
       'if any(event.delta or event.mechanism == "none" for event in self.events):',
       'if any(event.mechanism == "none" for event in self.events):', FILTERS)
plant(FILE, "record: a plan's later releases are forgotten",
       "return (*charges, *(charge for index, charge in enumerate(self.plan) if index not in done))",
       "return tuple(charges)", "curator/privacy/test_filters.py::test_what_is_planned_is_held_for_the_plan")
plant(FILE, "plan: covers a larger epsilon",
       "        and event.epsilon <= plan.epsilon * (1 + ROUNDING)\n", "", PLANNED_USES)
plant(FILE, "plan: covers less noise",
       "        and (event.noise_multiplier or 0.0) >= (plan.noise_multiplier or 0.0) * (1 - ROUNDING)\n",
       "", PLANNED_USES)
plant(FILE, "plan: covers more uses", " and count <= wanted[plan]", "", PLANNED_USES)
plant(FILE, "plan: covers larger samples", '"mechanism", "sampling_probability", "steps")', '"mechanism", "steps")',
       PLANNED_USES)
plant(FILE, "plan: covers more steps", '"sampling_probability", "steps")', '"sampling_probability")', PLANNED_USES)
plant(FILE, "plan: one place taken twice",
       "first = 1 + max((c.planned for c in self.charges if c.planned is not None), default=-1)",
       "first = 0", PLANNED_USES)
plant(FILE, "statement: joint price of what was chosen after looking",
       "return len(self.charges) <= 1 if not self.plan else", "return True if not self.plan else", FILTERS)
FILE = "curator/privacy/filters.py"
plant(FILE, "filter: limit ten per cent too high",
       "spent.main <= limit.main * (1 + slack)", "spent.main <= limit.main * 1.1", FILTERS)
plant(FILE, "filter: delta not limited", " and spent.delta <= limit.delta * (1 + ROUNDING)", "", BASIC)
plant(FILE, "filter: uses counted once", "event.count * self._cost_of(", "self._cost_of(", FILTERS)
plant(FILE, "gdp: half the mu of pure events", "return -2 * float(ndtri_exp", "return -1 * float(ndtri_exp", FILTERS)
plant(FILE, "gdp: half the mu of small pure events",
       "return epsilon * math.sqrt(math.pi / 2)", "return epsilon * math.sqrt(math.pi / 8)", FILTERS)
plant(FILE, "renyi: overhead dropped",
       "Cost(max(self.epsilon - float(self._overhead(self.order)), 0.0) if", "Cost(self.epsilon if", FILTERS)
plant(FILE, "renyi: half the divergence of gaussian noise",
       "event.noise_multiplier) ** 2 / 2", "event.noise_multiplier) ** 2 / 4", FILTERS)
plant(FILE, "renyi: half the divergence of pure events",
       "bound = min(epsilon, self.order * epsilon**2 / 2)", "bound = min(epsilon, self.order * epsilon**2 / 2) / 2",
       FILTERS)
plant(FILE, "renyi: steps in the cheaper direction only",
       "(event.steps or 0) * max(*found, 0.0)", "(event.steps or 0) * max(min(found), 0.0)", FILTERS)
plant(FILE, "renyi: steps of replaced rows priced as of null rows",
       'if adjacency == "zero-out" else log_density(-1.0)', "", FILTERS)
plant(FILE, "basic: delta of a release dropped",
       "return Cost(*price(events, delta, scale=self.epsilon, adjacency=adjacency))",
       "return Cost(price(events, delta, scale=self.epsilon, adjacency=adjacency)[0])", BASIC)

# --- permits and certificates

FILE = "curator/privacy/permit.py"
PERMIT = "curator/privacy/test_permit.py"
plant(FILE, "permit: never refuses", "if draws > self._left[method]:", "if False:", PERMIT)
plant(FILE, "permit: counts calls where coordinates are paid",
       "draws = len(arguments[0]) if method in self._each else 1", "draws = 1", PERMIT)
plant(FILE, "permit: twice the steps",
       "steps = (event.steps or 0) * event.count", "steps = 2 * (event.steps or 0) * event.count", PERMIT)
plant(FILE, "permit: more than one vector a use", "{name: event.count} for name", "{name: math.inf} for name", PERMIT)
plant(FILE, "certificate: sources say what they are",
       'return "seeded" if isinstance(source, SeededNoise) else "unverified"',
       'return getattr(source, "kind", "unverified")', PERMIT)
plant(FILE, "certificate: subclasses of the system's noise",
       "if type(source) is SystemNoise:", "if isinstance(source, SystemNoise):", PERMIT)
FILE = "curator/privacy/ledger_record.py"
plant(FILE, "certificate: notes do not count", "not record.notes and ", "",
       "curator/test_outside.py::test_an_undeclared_cost_leaves_the_release_uncertified")
plant(FILE, "certificate: endless budgets", " and math.isfinite(self.epsilon),", ",",
       "curator/privacy/test_ledger.py::test_nothing_under_an_infinite_budget_is_certified")
plant(FILE, "certificate: floating noise counts as hardened",
       "floating = any(event.mechanism in FLOATING_POINT for event in charge.events)", "floating = False",
       "curator/privacy/test_mechanisms.py::test_spherical_noise_is_recorded_as_floating_point")
plant("release/release.py", "certificate: parts of a release not checked", "        self._check_parts()\n", "",
       "curator/test_outside.py::test_a_release_put_together_by_hand_is_certified_for_what_its_ledger_made")
plant("curator/protocols.py", "certificate: bounds of other ledgers",
       "if not ledger.holds(private._source):", "if False:",
       "curator/test_contribution.py::test_a_bound_of_another_ledger_leaves_the_release_uncertified")
FILE = "curator/pipeline.py"
plant(FILE, "outside: undeclared cost not noted",
       '        ledger.note("The synthetic rows come from outside and what their making cost was not declared.")\n', "",
       "curator/test_outside.py::test_an_undeclared_cost_leaves_the_release_uncertified")
plant(FILE, "outside: declared cost not charged",
       "if ledger is not None and ledger.holds(synthetic.fingerprint()):", "if True:",
       "curator/test_outside.py::test_a_declared_cost_is_charged_once_and_the_release_certified")
plant("curator/weight_providers/tilt.py", "outside: base weights of unknown cost not noted",
       "if not ledger.holds(base.source):", "if False:",
       "curator/test_outside.py::test_a_file_keeps_the_certificate_and_its_parts_are_outside_ones_elsewhere")
plant("paper/given_ratio.py", "outside: a ratio of unknown cost not noted",
       '            ledger.note("The log ratio comes from outside, and its privacy cost was not declared.")\n', "",
       "curator/test_outside.py::test_a_log_ratio_that_is_given_leaves_the_release_uncertified")

# --- digests

FILE = "utils/digest.py"
DIGESTS = "tables/test_digest.py"
plant(FILE, "digest: no names of columns",
       '("frame", len(part), [str(name) for name in part.columns])', '("frame", len(part))', DIGESTS)
plant(FILE, "digest: no type of arrays", 'f"{part.dtype.str}{part.shape}"', 'f"{part.shape}"', DIGESTS)
plant(FILE, "digest: no shape of arrays", 'f"{part.dtype.str}{part.shape}"', 'f"{part.dtype.str}"', DIGESTS)
plant(FILE, "digest: no order of rows",
       "return (str(dtype), values.to_numpy())", "return (str(dtype), np.sort(values.to_numpy()))", DIGESTS)
plant(FILE, "digest: the first rows only",
       "_add(total, _column(part.iloc[:, index]))", "_add(total, _column(part.iloc[:50, index]))", DIGESTS)
plant(FILE, "digest: missing whole numbers are zeros",
       "return (str(dtype), absent, values", "return (str(dtype), values", DIGESTS)
plant(FILE, "digest: levels by their codes", "bool(dtype.ordered), levels, kinds,", "bool(dtype.ordered),",
       DIGESTS)
plant(FILE, "digest: parts run into each other",
       'f"{len(head)}:{head}{len(body)}:".encode()', 'head.encode()', DIGESTS)
LOOKED_AT = "return self._maker if self._maker is not None and self._made_as == self.fingerprint() else None"
plant(FILE, "table: rows not looked at again", LOOKED_AT, "return self._maker",
       "curator/test_outside.py::test_rows_that_were_edited_after_they_were_drawn_are_outside_rows")
plant("tables/synthetic_table.py", "table: fingerprint without the declared cost",
       "self.already_spent, self.frame, *ratio)",
       "self.frame, *ratio)", "curator/test_outside.py::test_another_declared_cost_is_another_table")
plant("tables/synthetic_table.py", "table: fingerprint without the log ratio", "self.frame, *ratio)", "self.frame)",
       DIGESTS)
plant(FILE, "weights: not looked at again", LOOKED_AT, "return self._maker", DIGESTS)
plant("release/weights.py", "weights: fingerprint without the measurement",
       'digest("Weights", self.log_weights, *measured)', 'digest("Weights", self.log_weights)',
       DIGESTS)
plant("curator/generators/tables/network.py", "BayesNet: fingerprint without tables",
       "*edges, *shares, *self.tables)",
       "*edges, *shares)", "curator/generators/test_bayesnet.py::test_a_fingerprint_covers_all_that_rows_depend_on")
plant("curator/generators/mixture/mixture.py", "Mixture: fingerprint without draws",
       "distributions, *edges, self.draws)",
       "distributions, *edges)",
       "curator/generators/test_mixture.py::test_a_fingerprint_covers_all_that_rows_depend_on")
plant("paper/adversarial/fitted_gan.py", "GAN: fingerprint without the discriminator",
       "for network in (self.trained.generator, self.trained.discriminator)",
       "for network in (self.trained.generator,)",
       "paper/test_gan.py::test_a_fingerprint_covers_all_that_rows_and_ratios_depend_on")
plant("paper/ratio_network.py", "NeuralWeights: fingerprint without the top layer", "*layers, *top)",
       "*layers)", "paper/test_neural.py::test_a_fingerprint_covers_all_that_a_ratio_depends_on")
plant("paper/logistic_loss.py", "LogisticWeights: fingerprint without the noise law",
       "self.schema.to_toml(), repr(self.distribution), self.centred)", "self.schema.to_toml(), self.centred)",
       "paper/test_logistic.py::test_a_fingerprint_covers_all_that_a_ratio_depends_on")
plant("paper/beta_weights.py", "BetaCalibratedWeights: registers what rests on unknown ratios",
       "if ledger.holds(base.fingerprint()):", "if True:",
       "paper/test_beta_calibration.py::test_the_ledger_knows_the_ratio_when_it_knows_the_base")
plant("paper/given_ratio.py", "DiscriminatorWeights: networks that no ledger holds",
       "if not fit.ledger.holds(self.gan.fingerprint()):", "if False:",
       "paper/test_gan.py::test_the_discriminator_weights_are_free_under_the_same_ledger_and_no_other")
plant("paper/given_ratio.py", "DiscriminatorWeights: a ratio that the ledger does not know is calibrated",
      "self._open(private, synthetic, ledger, epsilon, delta).pay()", "pass",
      "paper/test_beta_calibration.py::test_a_discriminator_is_calibrated_with_the_whole_budget")
