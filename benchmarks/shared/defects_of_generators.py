"""Planted defects of generators; see `defects.py`."""

from planting import Edit, plant

# fmt: off
NEIGHBOUR = "curator/test_neighbours.py::test_a_neighbour_never_costs_bayesnet_more_than_each_charge"
USER = "curator/test_contribution.py::test_replacing_a_user_never_costs_more_than_each_charge"
FILE = "curator/generators/bayesnet/bayesnet.py"
SELECTION = "curator/test_contribution.py::test_the_selection_of_a_network_has_the_noise_of_its_sensitivity"
plant(FILE, "BayesNet: scores move by two thirds",
       "3 * count_moves(facts) * facts.rows_per_user", "2 * count_moves(facts) * facts.rows_per_user", SELECTION)
plant(FILE, "BayesNet: structure for one row of a user",
       "3 * count_moves(facts) * facts.rows_per_user", "3 * count_moves(facts)", SELECTION)
plant(FILE, "BayesNet: structure without charge or noise",
       "candidates[select(scores)]", "candidates[int(np.argmax(scores))]", NEIGHBOUR)
plant(FILE, "BayesNet: tables drawn without a charge",
       'events.append(count_event("BayesNet tables", *shares.tables, len(schema)))', "pass",
       "contracts/test_contract.py::test_each_draw_is_charged_before_it_is_made[BayesNet]",
       more=(Edit("curator/generators/tables/counts.py",
                  "noisy_counts(c, 1, ledger, label, facts, **each).value for c",
                  "ledger._noise.laplace(c, noise_scale(facts, n_tables, epsilon, 0.0)) * 1.0 for c"),))
plant(FILE, "BayesNet: bins charged as fewer",
       'events.append(count_event("BayesNet bins", *shares.bins, sum(map(is_numeric, schema))))',
       'events.append(count_event("BayesNet bins", *shares.bins, 1))',
       "contracts/test_contract.py::test_each_draw_is_charged_before_it_is_made[BayesNet]",
       more=(Edit("curator/generators/tables/counts.py",
                  "noisy_counts(c, 1, ledger, label, facts, **each).value for c",
                  "ledger._noise.laplace(c, noise_scale(facts, n_tables, epsilon, 0.0)) * 1.0 for c"),))
plant("curator/generators/tables/coding.py", "BayesNet: bounds read from the rows",
       "    rows = RowCodes(private, bins, keep=keep)\n",
       "    frame = private.frame\n    bins = tuple(b if b.column.kind != 'real' else ColumnBins.of(type(b.column)("
       "b.column.name, float(frame[b.column.name].min()), float(frame[b.column.name].max()) + 1.0, "
       "missing=b.column.missing), b.n_present - 2) for b in bins)\n    rows = RowCodes(private, bins, keep=keep)\n",
       NEIGHBOUR)
plant("curator/generators/tables/network.py", "networks: a level may have no row",
      "least = min(LEVEL_ROWS", "least = 0 * min(LEVEL_ROWS",
      "curator/generators/test_bayesnet.py::test_every_declared_level_has_rows_that_weights_can_use")
FILE = "curator/generators/aim/aim.py"
AIM = "curator/test_neighbours.py::test_a_neighbour_never_costs_aim_more_than_each_charge"
ENGINE = "curator/generators/aim/engine.py"
SENSITIVITY = "max(self.weights) * count_moves(facts) * facts.rows_per_user"
plant(ENGINE, "AIM: a replaced row moves a score by one",
       SENSITIVITY, "max(self.weights) * facts.rows_per_user", AIM)
plant(ENGINE, "AIM: scores without their weights",
       SENSITIVITY, "count_moves(facts) * facts.rows_per_user", AIM)
plant(ENGINE, "AIM: selection for one row of a user",
       SENSITIVITY, "max(self.weights) * count_moves(facts)", f"{USER}[AIM]")
plant(FILE, "AIM: selection without charge or noise",
       "allowed[select(scores)]",
       "allowed[int(np.argmax(scores))]", AIM)
plant(FILE, "AIM: targets from the private rows",
       "expected = current.marginal(columns)\n", "expected = current.marginal(columns) * (rows.table((0,))[0] + 1)\n",
       AIM)
plant(ENGINE, "AIM: a round that is not declared",
       "releases = range(1, shares.n_selections // shares.n_tables + 1)", "releases = range(1, shares.n_selections)",
       "contracts/test_contract.py::test_each_draw_is_charged_before_it_is_made[AIM]")
FILE = "curator/generators/tables/steps.py"
plant(FILE, "AIM: a row counts for each of its steps",
      "np.bincount(known, minlength=len(public_steps(column)) + 1)",
      "np.append(np.cumsum(np.bincount(known, minlength=len(public_steps(column)) + 1)[::-1])[:0:-1], len(known))", AIM)
plant(FILE, "AIM: steps from counts without noise",
      "widest_step(public_steps(column), noisy.value, noisy.variance)",
      "widest_step(public_steps(column), counts[columns.index(index)], 0.0)", AIM)
plant(ENGINE, "AIM: steps that are not declared",
      "(count_event(f\"{cls._name} steps\", *shares.steps, n_steps),) if n_steps else ()", "()",
      "contracts/test_contract.py::test_each_draw_is_charged_before_it_is_made[AIM]")
FILE = "curator/generators/aim/mst.py"
MST = "curator/test_neighbours.py::test_a_neighbour_never_costs_mst_more_than_each_charge"
plant(ENGINE, "MST: a replaced row moves a score by one",
       SENSITIVITY, "max(self.weights) * facts.rows_per_user", MST)
plant(ENGINE, "MST: selection for one row of a user",
       SENSITIVITY, "max(self.weights) * count_moves(facts)", f"{USER}[MST]")
plant(FILE, "MST: selection without charge or noise",
       "allowed[select(of_allowed)]",
       "allowed[int(np.argmax(of_allowed))]", MST)
plant(FILE, "MST: targets from the private rows",
       "alone = [independent.current.marginal((column,)) for column in range(len(sizes))]",
       "alone = [next(rows.count([(column,)])) / n for column in range(len(sizes))]", MST)
plant(ENGINE, "MST: a selection that is not declared",
       "shares.selection, count=shares.n_selections)", "shares.selection, count=max(1, shares.n_selections - 1))",
       "contracts/test_contract.py::test_each_draw_is_charged_before_it_is_made[MST]")
plant(ENGINE, "MST: pairs at the price of one",
       "*shares.tables, shares.n_tables) for k", "*shares.tables, 1) for k",
       "contracts/test_contract.py::test_each_draw_is_charged_before_it_is_made[MST]")
FILE = "curator/generators/tables/counts.py"
MIXTURE = "curator/generators/test_mixture.py::test_a_replaced_row_never_costs_more_than_each_charge_and_comes_near"
plant(FILE, "Mixture: many tables charged as one",
       "count_moves(facts) * n_tables", "count_moves(facts)", MIXTURE)
plant(FILE, "Mixture: gaussian noise for one row of a user",
       "sensitivity=rows * math.sqrt(moved)", "sensitivity=math.sqrt(moved)",
       "curator/generators/test_mixture.py::test_the_sensitivities_of_all_adjacencies")
plant(FILE, "Mixture: laplace noise for one row of a user", "sensitivity=rows * moved,", "sensitivity=moved,",
       "curator/generators/test_mixture.py::test_the_sensitivities_of_all_adjacencies")
plant("curator/generators/mixture/mixture.py", "Mixture: atoms from exact counts",
       "atoms = [gathers_at_bounds(part, counts, variance) for part, counts in zip(bins, own, strict=True)]",
       "own = [np.bincount(p.codes(private.frame[p.column.name]), minlength=p.size) for p in bins]\n"
       "        atoms = [gathers_at_bounds(part, counts, 0.0) for part, counts in zip(bins, own, strict=True)]",
       "curator/generators/test_mixture.py::test_what_is_public_knows_of_the_rows_by_the_answers_alone")
plant(FILE, "GAN: a replaced row moves one count of the condition",
       'return 2 if facts.row_adjacency == "replace-one" else 1', "return 1",
       "paper/test_gan.py::test_the_law_of_a_condition_has_the_noise_of_its_sensitivity")
plant(FILE, "GAN: counts of the condition for one row of a user",
       "sensitivity=rows * moved,", "sensitivity=moved,",
       "paper/test_gan.py::test_the_law_of_a_condition_has_the_noise_of_its_sensitivity")
FILE = "paper/adversarial/adversarial_generator.py"
plant(FILE, "GAN: exact counts of the condition",
       "mass = np.maximum(noisy, LEAST_COUNT)", "mass = np.maximum(counts, LEAST_COUNT)",
       "paper/test_gan.py::test_a_conditional_generator_draws_its_levels_by_their_noisy_law")
plant("paper/adversarial/gan_training.py", "DPGAN: centre and clip norm from private rows",
       "public_loss, (batch,))", "public_loss, gradients._rows)",
       "paper/test_gan.py::test_what_is_public_knows_of_the_rows_by_the_answers_alone")
plant(FILE, "DPGAN: one user counts as single rows",
       "users=private.users, n_private",
       "users=None if private.users is None else np.arange(len(own)), n_private",
       "paper/test_gan.py::test_the_discriminator_clips_all_rows_of_a_user_together")
FILE = "paper/pate/pate.py"
plant(FILE, "PATEGAN: each vote at the price of all",
       "multiplier = math.sqrt(count) * gaussian_multiplier", "multiplier = gaussian_multiplier",
       "paper/test_pate.py::test_all_votes_together_cost_the_budget_exactly")
FILE = "paper/pate/teachers.py"
plant(FILE, "PATEGAN: half the noise on votes",
       "self._grid * self._scale)\n", "self._grid * self._scale / 2)\n",
       "paper/test_pate.py::test_noise_has_the_scale_that_was_charged")
plant(FILE, "PATEGAN: more votes than were charged", "if len(rows) > self.left:", "if False:",
       "paper/test_pate.py::test_no_more_votes_than_were_charged")
plant(FILE, "PATEGAN: teachers see each other's rows",
       "softplus(-self._logits(self._rows))", "softplus(-self._logits(self._rows + 0.1 * self._rows.mean(dim=0)))",
       "paper/test_pate.py::test_a_teacher_learns_from_its_own_rows_alone")
plant(FILE, "PATEGAN: a user's rows have several teachers",
       "return teacher if users is None else teacher[users]",
       "return teacher if users is None else np.arange(len(users)) % n_teachers",
       "paper/test_pate.py::test_one_user_changes_one_vote_at_most")
