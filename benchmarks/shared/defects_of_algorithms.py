"""Planted defects of counts, providers, bounds on users and of what comes out; see `defects.py`."""

from planting import Edit, plant

# fmt: off
# --- what a change of a row, or of a user, moves

NEIGHBOUR = "curator/test_neighbours.py::test_a_neighbour_never_costs_bayesnet_more_than_each_charge"
USER = "curator/test_contribution.py::test_replacing_a_user_never_costs_more_than_each_charge"
FILE = "curator/generators/tables/counts.py"
plant(FILE, "counts: a replaced row moves one cell",
       'return 2 if facts.row_adjacency == "replace-one" else 1', "return 1", NEIGHBOUR)
plant(FILE, "counts: many tables charged as one",
       "count_moves(facts) * n_tables", "count_moves(facts)", NEIGHBOUR)
plant(FILE, "counts: gaussian noise for one row of a user",
       "sensitivity=rows * math.sqrt(moved)", "sensitivity=math.sqrt(moved)", f"{USER}[BayesNet, Gaussian]")
plant(FILE, "counts: laplace noise for one row of a user", "sensitivity=rows * moved,", "sensitivity=moved,",
       f"{USER}[BayesNet]")
plant(FILE, "counts: tables without noise",
       "parts = [noisy_counts(c, 1, ledger, label, facts, **each).value for c in counts]",
       "parts = [c * 1.0 for c in counts]", NEIGHBOUR)
plant("curator/protocols.py", "users: rows of a user are nulled, not replaced",
       'return "replace-one" if self.adjacency == "replace-user"',
       'return "zero-out" if self.adjacency == "replace-user"',
       "curator/test_contribution.py::test_public_facts_of_users")
plant("curator/protocols.py", "users: the bound of a table is not used",
       "ledger.adjacency, rows_per_user or 1, private.n_users)", "ledger.adjacency, 1, private.n_users)",
       "curator/test_contribution.py::test_public_facts_of_users")

# --- contributions of users

FILE = "curator/contribution.py"
plant(FILE, "contributions: the bound from exact counts",
       "index = above_threshold(-above, threshold=-limit, sensitivity=1, monotone=True, **budget)  #",
       "index = next((k for k, a in enumerate(above) if a <= limit), None)  #",
       "curator/test_contribution.py::test_the_bound_and_the_count_ask_for_the_noise_that_they_charge")
OWNERS = "tables/owners.py"
UNCHECKED = (Edit(OWNERS, "if np.max(np.bincount(users, minlength=1)) > tau:", "if False:"),)
plant(OWNERS, "contributions: more rows kept than the bound",
       "return by_user[rank < tau]", "return by_user[rank <= tau]",
       "curator/test_contribution.py::test_the_bound_is_the_first_that_few_users_pass", more=UNCHECKED)
DASK = "tables/test_dask_users.py"
plant(OWNERS, "contributions: each partition has users of its own",
       "        own = np.array([known.setdefault",
       "        known = {}\n        own = before + np.array([known.setdefault",
       f"{DASK}::test_no_user_keeps_more_rows_than_the_bound_wherever_they_lie",
       more=(Edit(OWNERS, "    kinds: set[str] = set()\n", "    kinds: set[str] = set()\n    before = 0\n"),
             Edit(OWNERS, "        yield part, own[part.codes]\n",
                  "        before += len(known)\n        yield part, own[part.codes]\n")))
plant(OWNERS, "contributions: a user's rows are bounded in each partition",
       "users, _, positions = _smallest(held, tau)",
       "users, _, positions = map(np.concatenate, zip(*(_smallest([part], tau) for part in held)))",
       f"{DASK}::test_replacing_a_user_moves_no_count_and_no_sum_by_more_than_the_bound", more=UNCHECKED)
plant("tables/blocks.py", "contributions: all rows of the partitions are read",
       "return rows if self.kept is None else rows", "return rows if True else rows",
       f"{DASK}::test_replacing_a_user_moves_no_count_and_no_sum_by_more_than_the_bound",
       more=(Edit("tables/blocks.py", "rows._kept, rows.n_rows = self.owners.local(positions), len(positions)",
                  "rows._kept = self.owners.local(positions)"),))
plant("tables/blocks.py", "contributions: rows that changed hands",
       "if digest_of(block[self.user]) != self.digest:", "if False:",
       f"{DASK}::test_rows_that_change_hands_are_refused")
plant(OWNERS, "contributions: rows that changed hands before they are bounded",
       "if (len(codes), part.digest) != (self.sizes[index], self.digests[index]):", "if False:",
       f"{DASK}::test_rows_that_change_hands_are_refused")
plant("tables/private_table.py", "users: those of a Dask frame are forgotten",
       "return self._users is not None or (self._rows is not None and self._rows.owners is not None)",
       "return self._users is not None",
       f"{DASK}::test_a_table_of_users_tells_their_number_and_not_that_of_the_rows")
plant("tables/private_table.py", "secrets: number of users' rows in a Dask frame",
       "(None, None) if user else (1, rows.n_rows)", "(None, rows.n_rows) if user else (1, rows.n_rows)",
       f"{DASK}::test_a_table_of_users_tells_their_number_and_not_that_of_the_rows")
plant(FILE, "contributions: count without noise",
       "noisy = int(noise.laplace(total, math.nextafter(tau / left, math.inf))[0])", "noisy = int(total[0])",
       "curator/test_contribution.py::test_the_number_of_rows_is_noisy_with_the_scale_of_the_bound")
plant(FILE, "contributions: count moves by one", "math.nextafter(tau / left, math.inf)", "1 / left",
       "curator/test_contribution.py::test_the_number_of_rows_is_noisy_with_the_scale_of_the_bound")
plant(FILE, "contributions: exact number of rows",
       "rows_per_user=tau, n_private=n_private, source=source)",
       "rows_per_user=tau, n_private=int(total[0]), source=source)",
       "curator/test_contribution.py::test_the_number_of_rows_is_noisy_with_the_scale_of_the_bound")

# --- providers

FILE = "curator/weight_providers/exponential.py"
TILT = "curator/test_neighbours.py::test_worst_neighbours_of_the_tilt_reach_its_sensitivity_and_no_more"
plant(FILE, "tilt: the flag of clipped rows is free",
       "max(reach, high) if features.order == math.inf else math.hypot(reach, high)", "reach", TILT)
plant(FILE, "tilt: a replaced row moves by one bound",
       '{"replace-one": 2, "zero-out": 1}[adjacency] * limit', "limit", TILT)
plant(FILE, "tilt: norms of rows not checked",
       "if np.abs(body).max(initial=0) > limit or (size > most).any():", "if False:",
       "curator/test_neighbours.py::test_integer_total_refuses_rows_beyond_their_bound")
plant(FILE, "tilt: for one row of a user", "math.nextafter(rows_per_user * sensitivity, math.inf)",
       "math.nextafter(sensitivity, math.inf)", f"{USER}[TiltWeights]")
FILE = "curator/weight_providers/exponential.py"
EXPONENTIAL = "curator/weight_providers/exponential.py"
UNVERIFIED = (Edit(EXPONENTIAL, "if np.abs(body).max(initial=0) > limit or (size > most).any():", "if False:"),
              Edit(EXPONENTIAL, "if not (np.abs(phi) <= 2 * features.bound).all():", "if False:"))
TILTS = "curator/test_neighbours.py::test_a_neighbour_never_costs_the_tilt_more_than_its_charge"
STAGES = "curator/test_neighbours.py::test_a_neighbour_never_costs_a_stage_of_a_tilt_more_than_its_charge"
plant(FILE, "tilt: private rows not clipped",
       "features.transform(block)", "features.with_bound(1e9).transform(block)", TILTS,
       more=UNVERIFIED)
plant(FILE, "tilt: stages measure scores that are not clipped",
       "features.transform(block)", "features.with_bound(1e9).transform(block)", STAGES,
       more=UNVERIFIED)
FILE = "evidence/scores.py"
plant(FILE, "tilt: centred scores are not clipped again", "self.clip(own)[:, : self.n_coordinates]", "own",
       f"{STAGES}[clipped and centred]", more=UNVERIFIED)
plant(FILE, "tilt: centred by the rows beside", "z = z + (wanted - sum(",
       "z = z - z.mean(axis=1, keepdims=True) + (wanted - sum(",
       "evidence/test_scores.py::test_the_scores_of_a_row_depend_on_this_row_alone")
FILE = "curator/weight_providers/score_stages.py"
plant(FILE, "tilt: stages draw less noise than they charge",
       "budgets = self.parts(**budget._asdict())",
       "budgets = self.parts(epsilon=2 * budget.epsilon, delta=budget.delta)", STAGES)
plant(FILE, "tilt: noise of stages by the synthetic rows",
       "budgets = self.parts(**budget._asdict())",
       "budgets = self.parts("
       "epsilon=budget.epsilon * float(synthetic.frame.iloc[0, 0] > 0 or 0.5), delta=budget.delta)",
       "curator/weight_providers/test_score_stages.py"
       "::test_the_stages_cost_what_the_whole_costs_and_follow_from_public_numbers_only")
plant(FILE, "tilt: how predictors are related is not measured", "read_by(scores, synthetic.schema, products=products)",
       "read_by(scores, synthetic.schema, products=False)",
       "curator/weight_providers/test_score_stages.py::test_how_strongly_predictors_are_related_is_measured")
FILE = "analyst/calibration/measures/curvature_error.py"
CURVATURE, DIAGNOSTICS = "analyst/calibration/test_curvature.py", "analyst/criticism/test_diagnostics.py"
MEASURED = "::test_rehearsals_do_not_calibrate_what_the_release_did_not_measure"
plant(FILE, "curvature: noise of the moments left out", "by_noise + sampled", "sampled",
       f"{CURVATURE}::test_the_error_is_that_of_a_curvature_with_the_noise_of_its_moments")
plant(FILE, "curvature: what was not measured counts as known", "own, rest, shares) * left", "own, rest, shares) * 0",
       f"{CURVATURE}::test_a_relation_that_no_row_shows_is_not_overlooked")
plant("analyst/calibration/measures/explained.py", "verdict: rehearsals are calibrated whatever was measured",
      '"rehearsals": OF_REHEARSALS', '"rehearsals": "Not judged."', f"{DIAGNOSTICS}{MEASURED}")
plant("analyst/calibration/verdict.py", "verdict: a bad measure is forgotten",
      "good[bad] = False", "good[bad[1:]] = False", f"{DIAGNOSTICS}::test_what_is_wrong_with_a_fit_is_said")
FILE = "analyst/calibration/score_marginals.py"
plant(FILE, "score test: an unsure curvature keeps the normal", "informed & (unsure | few_rows)", "informed & few_rows",
      "analyst/calibration/test_score_marginals.py::test_a_slope_whose_curvature_is_noisy_has_fieller_s_interval")
FILE = "analyst/inference/model_scores.py"
OF_MODELS = "analyst/inference/test_model_scores.py"
ALONE = f"{OF_MODELS}::test_the_scores_of_a_row_depend_on_this_row_alone[offset]"
plant(FILE, "models: scores that look at other rows", "undefined = ~(known &",
       "scores -= scores.mean(axis=0); undefined = ~(known &", ALONE)
plant(FILE, "models: rows that a model does not know are others", "undefined = ~(known &", "undefined = ~(True &",
       f"{OF_MODELS}::test_a_row_that_the_model_has_no_number_for_is_zero_and_counts_as_clipped")
FILE = "analyst/inference/row_graph.py"
plant(FILE, "models: an invalid parameter of a private row is an error", "isinstance(node.op, CheckAndRaise)", "False",
       f"{OF_MODELS}::test_a_row_that_the_model_has_no_number_for_is_zero_and_counts_as_clipped")
plant(FILE, "models: functions of somebody's see private rows", "if not _is_known(op):", "if False:",
       f"{OF_MODELS}::test_what_cannot_be_measured_is_refused_before_anything_is_charged")
FILE = "curator/weight_providers/tilt.py"
plant(FILE, "tilt: features and bound from private rows",
       "design = self.design(synthetic, facts, epsilon=parts.epsilon, delta=parts.delta, shares=shares)",
       "design = self.design(SyntheticTable(fit.private.frame, fit.private.schema), facts, "
       "epsilon=parts.epsilon, delta=parts.delta)", TILTS)
plant(FILE, "tilt: test of fit drawn without a charge",
       'own = (*own, self._event(parts.test_epsilon, parts.delta, f"{self.label}, {TEST_OF_FIT}"))', "pass",
       "curator/weight_providers/test_tilt.py::test_the_test_of_fit_is_charged_before_it_is_drawn",
       more=(Edit("curator/weight_providers/exponential.py",
                  "noisy = self._noisy(total, self.mechanism, **budget._asdict(), **settings)",
                  "free = Ledger(float('inf'), 0.1, noise=ledger._noise)\n        settings['ledger'] = ledger "
                  "if label == self.label else free\n        "
                  "noisy = self._noisy(total, self.mechanism, **budget._asdict(), **settings)"),))
FILE = "paper/logistic_loss.py"
REACH = "paper/test_logistic.py::test_the_reach_of_real_columns_is_the_published_one"
PLANNED = "paper/test_logistic.py::test_the_measurement_carries_the_noise_that_was_planned"
plant(FILE, "logistic: replaced rows move as null rows do", '"replace-one": max(reach.diameter, size)',
       '"replace-one": size', REACH)
plant(FILE, "logistic: no room for the rows' size", '"replace-one": max(reach.diameter, size)',
       '"replace-one": reach.diameter', REACH)
plant(FILE, "logistic: diameter of a column's corners halved", "diameter += float(np.max(",
       "diameter += 0.25 * float(np.max(",
       "paper/test_logistic.py::test_the_reach_of_a_schema_is_that_of_its_rows")
plant(FILE, "logistic: tolerance of the solver is free", "(gradient_reach / n_private + 2 * TOLERANCE) / l2",
       "gradient_reach / n_private / l2",
       "paper/test_logistic.py::test_the_sensitivity_holds_the_tolerance_of_the_solver")
plant(FILE, "logistic: solver stops early", "if np.linalg.norm(gradient) <= tolerance:",
       "if np.linalg.norm(gradient) <= 1e6 * tolerance:",
       "paper/test_logistic.py::test_the_solver_meets_its_tolerance_on_separated_and_on_tiny_tables")
plant(FILE, "logistic: constant without a penalty", "    shift = b - center\n",
       "    shift = (b - center) * np.append(np.ones(len(b) - 1), 0.0)\n",
       "paper/test_logistic.py::test_the_minimiser_is_scipys")
FILE = "paper/logistic_weights.py"
plant(FILE, "logistic: laplace noise of the L2 sensitivity",
       'if self.mechanism in ("laplace", "paper") else change', "if False else change",
       f"{PLANNED}[laplace-replace-one]")
plant(FILE, "logistic: divided by the synthetic rows", "change = sensitivity(reach, facts.n_private, self.l2)",
       "change = sensitivity(reach, facts.n_synthetic, self.l2)", PLANNED)
plant(FILE, "logistic: published noise at its nominal price",
       'spent = self._true_epsilon(facts, epsilon) if self.mechanism == "paper" else epsilon', "spent = epsilon",
       "paper/test_logistic.py::test_the_published_noise_is_as_printed_and_charged_at_its_true_cost",
       more=(Edit(FILE, '(Event(self.label, "laplace", self._true_epsilon(facts, epsilon)),)',
                  '(Event(self.label, "laplace", epsilon),)'),))
plant(FILE, "logistic: for one row of a user",
       "reach = facts.rows_per_user * gradient_reach(self._reach(facts)",
       "reach = gradient_reach(self._reach(facts)", f"{USER}[LogisticWeights]")
FILE = "paper/logistic_loss.py"
GIVEN_BACK = "paper/test_queries.py::test_the_perturbed_minimiser_gives_the_noise_back"
plant(FILE, "objective: determinants are free",
       "left = epsilon - facts.rows_per_user * math.log1p(curvature / l2) - rounding", "left = epsilon - rounding",
       GIVEN_BACK)
plant(FILE, "objective: penalty not raised",
       "l2 = max(float(l2), curvature / math.expm1(epsilon / (2 * facts.rows_per_user)))", "l2 = float(l2)",
       f"{GIVEN_BACK}[0.0001-replace-one]")
plant(FILE, "objective: half the noise", "change / left, tolerance", "change / left / 2, tolerance", GIVEN_BACK)
plant(FILE, "objective: the noise's slope is free", "rounding = 4 * k / ROUNDING * 2 + shift * slope",
       "rounding = 4 * k / ROUNDING * 2",
       "paper/test_logistic.py::test_rounding_is_taken_off_epsilon_and_refused_where_it_takes_too_much")
plant(FILE, "objective: minimiser not rounded", "return np.rint(b / plan.grid) * plan.grid", "return b",
       "paper/test_logistic.py::test_a_perturbed_minimiser_is_released_on_its_grid")
plant(FILE, "objective: change for one row of a user",
       "n, change = facts.n_private, facts.rows_per_user * row_change", "n, change = facts.n_private, row_change",
       "paper/test_logistic.py::test_objective_perturbation_of_users_has_the_noise_of_all_their_rows")
plant(FILE, "objective: determinants for one row of a user",
       "left = epsilon - facts.rows_per_user * math.log1p", "left = epsilon - math.log1p",
       "paper/test_logistic.py::test_objective_perturbation_of_users_has_the_noise_of_all_their_rows")
FILE = "paper/queries.py"
plant(FILE, "query: a replaced row moves by its size",
       '{"replace-one": 2.0, "zero-out": 1.0}', '{"replace-one": 1.0, "zero-out": 1.0}',
       f"{GIVEN_BACK}[0.3-replace-one]")
plant(FILE, "query: for one row of a user", "sensitivity(facts.rows_per_user * self._change(facts, reach),",
       "sensitivity(self._change(facts, reach),", "paper/test_queries.py::test_noise_grows_with_the_rows_of_a_user")
FILE = "paper/output_noise.py"
OUTPUT = "curator/test_privacy.py::test_many_noisy_log_weights_cost_more_than_one[laplace-0.0]"
plant(FILE, "output noise: log weights move as coefficients do",
       "        change *= math.hypot(reach.radius, 1.0)\n", "",
       "paper/test_logistic.py::test_noisy_log_weights_have_the_noise_of_the_farthest_row")
plant(FILE, "output noise: all log weights charged as one",
       "self._event(*check_budget(epsilon, delta), count=facts.n_synthetic)",
       "self._event(*check_budget(epsilon, delta))", OUTPUT, more=(Edit(FILE, ", separately=True)", ")"),))
plant(FILE, "output noise: for one row of a user",
       "row_change = facts.rows_per_user * gradient_reach", "row_change = gradient_reach",
       f"{USER}[OutputNoiseWeights]")
FILE = "paper/beta_weights.py"
BETA = "paper/test_beta_calibration.py::test_a_neighbour_never_costs_more_than_the_charge"
plant(FILE, "beta: laplace noise of the L2 sensitivity", "sensitivity=reach * self._norm(),", "sensitivity=reach,",
       "paper/test_beta_calibration.py::test_the_default_penalty_leaves_noise_of_the_stated_size[laplace]")
plant(FILE, "beta: private log ratios not cut", "_features(_cut(base, private, limit), limit)",
       "_features(base.log_ratio(private), limit)",
       "paper/test_beta_calibration.py::test_log_ratios_beyond_the_limit_or_undefined_are_cut", BETA)
plant(FILE, "beta: the cut from private rows", "at_synthetic = _cut(base, synthetic, self.limit)\n        limit = float(np.clip(np.abs(at_synthetic).max()",  # noqa: E501
       "at_synthetic = _cut(base, synthetic, self.limit)\n        limit = float(np.clip(np.abs(_cut(base, private, self.limit)).max()",  # noqa: E501
       "paper/test_beta_calibration.py::test_what_is_public_knows_of_the_rows_by_the_answers_alone")
plant(FILE, "beta: replaced rows move by one size", "block = Reach(np.zeros(_SLOPES), math.sqrt(2),",
       "block = Reach(np.zeros(_SLOPES), math.sqrt(2) / 2,",
       "paper/test_beta_calibration.py::test_a_null_row_needs_less_noise")
plant(FILE, "beta: for one row of a user", "reach = facts.rows_per_user * gradient_reach(block,",
       "reach = gradient_reach(block,", f"{USER}[BetaCalibratedWeights]")

# --- gradient steps

FILE = "paper/dpsgd/row_gradients.py"
MOVED = "paper/test_dpsgd.py::test_no_row_moves_the_sum_by_more_than_the_clip_norm"
plant(FILE, "steps: gradients not clipped", "(clip_norm * (1 - MARGIN) / norms).clamp(max=1.0) / grid",
       "torch.ones_like(norms) / grid", MOVED)
plant(FILE, "steps: clipping without a margin", "(clip_norm * (1 - MARGIN) / norms)",
       "(clip_norm * (1 + 1e-6) / norms)",
       MOVED)
plant(FILE, "steps: rows without a finite gradient count",
       "            gradients[~usable] = 0.0\n            scale[~usable] = 0.0\n",
       "            pass\n", MOVED)
plant(FILE, "steps: sums round", ".trunc_()", "", "paper/test_dpsgd.py::test_the_sum_is_exact")
plant(FILE, "steps: layers that mix rows", "if isinstance(module, nn.modules.batchnorm._BatchNorm):", "if False:",
       "paper/test_dpsgd.py::test_modules_that_mix_or_remember_rows_are_refused")
FILE = "paper/dpsgd/private_steps.py"
plant(FILE, "steps: no noise on the empty sample", "        if self._event.noise_multiplier is not None:\n",
       "        if self._event.noise_multiplier is not None and len(indices):\n",
       "paper/test_dpsgd.py::test_every_step_has_noise_the_empty_one_too")
plant(FILE, "steps: noise without the clip norm", "(flat, self._event.noise_multiplier * clip_norm)",
       "(flat, self._event.noise_multiplier * min(clip_norm, 0.1))",
       "paper/test_dpsgd.py::test_every_step_has_noise_the_empty_one_too")
plant(FILE, "steps: divided by the size of the sample", "flat / (rate * self._n_private)",
       "flat / max(len(indices), 1)", "paper/test_dpsgd.py::test_a_step_divides_by_the_expected_sample_size")
plant(FILE, "steps: one more than charged", "if self._left == 0:", "if self._left < 0:",
       "paper/test_dpsgd.py::test_noise_is_drawn_once_a_step_and_no_step_is_taken_that_was_not_charged")
plant(FILE, "steps: samples of a fixed size", "self._noise.poisson_sample(n, rate)", "np.arange(round(n * rate))",
       "paper/test_dpsgd.py::test_a_step_divides_by_the_expected_sample_size")
plant(FILE, "steps: rows of users clipped one by one", "else self._rows_of(chosen)",
       "else (self._rows_of(chosen)[0], None)",
       "curator/test_contribution.py::test_gradient_steps_sample_users_and_clip_their_sums")
plant(FILE, "steps: an error shows what the loss said", "        except Exception:  # noqa: S110 - raised below, outside this block, so the private error is not chained\n            pass\n",  # noqa: E501
       "        except Exception as error:\n            raise RuntimeError(str(error)) from error\n",
       "paper/test_dpsgd.py::test_errors_and_printed_forms_hold_no_private_value")
FILE = "paper/neural_weights.py"
ALONE = "curator/test_privacy.py::test_neural_weights_show_nothing_beside_their_noisy_gradients"
plant(FILE, "NeuralWeights: centre and clip norm from private rows", "rows=batch), (batch,))", "rows=batch), gradients._rows)",  # noqa: E501
       ALONE)
plant(FILE, "NeuralWeights: standardised by private rows",
       "center, scale = encoded.mean(axis=0), np.maximum(encoded.std(axis=0), LEAST_SPREAD)",
       "own = private.schema.encode(private.frame)\n"
       "        center, scale = own.mean(axis=0), np.maximum(own.std(axis=0), LEAST_SPREAD)", ALONE)
plant(FILE, "NeuralWeights: the row loss of two rows", "synthetic[: self.batch_size],", "gradients._rows[0],", ALONE)

FILE = "paper/printed_network.py"
ALONE = "paper/test_printed_network.py::"
plant(FILE, "PrintedNeuralWeights: the noise of one row for a lot", " * math.sqrt(len(lot))", "",
      ALONE + "test_noise_grows_with_the_private_rows_of_the_lot_and_is_absent_without_any")
plant(FILE, "PrintedNeuralWeights: a replaced row moves the sum by one clip norm", "np.sqrt(k) / 2", "np.sqrt(k)",
      ALONE + "test_the_delta_bounds_the_worst_rows")
plant(FILE, "PrintedNeuralWeights: a budget instead of the cost", '"printed-steps", cost,', '"printed-steps", epsilon,',
      ALONE + "test_the_true_cost_is_charged")

# --- what comes out

FILE = "schema/columns.py"
plant(FILE, "secrets: a cell in an error",
       "has cells that do not fit: it takes", "has cells such as {values.iloc[0]!r} that do not fit: it takes",
       "tables/test_tables.py::test_wrong_cells_are_refused_by_column_and_never_quoted")
FILE = "utils/frames.py"
plant(FILE, "secrets: the message of another library's frame", "quote private cells\n        known = True",
       "quote private cells\n        raise",
       "utils/test_frames.py::test_an_error_while_a_lazy_frame_is_computed_quotes_nothing")
FILE = "tables/file_formats.py"
plant(FILE, "secrets: the message of a reader of files", "        except Exception:  # replaced\n            pass",
       "        except Exception:  # replaced\n            raise",
       "tables/test_file_formats.py::test_damaged_files_are_refused_without_their_content",
       "contracts/test_secrets.py::test_no_check_prints_or_writes_a_private_value")
plant(FILE, "secrets: warnings of a reader of files",
       'warnings.simplefilter("ignore")', 'warnings.simplefilter("default")',
       "tables/test_file_formats.py::test_a_cell_beyond_the_header_or_a_broken_date_of_excel_quotes_nothing")
plant(FILE, "files: user-missing values are values", "kept = [not is_missing(cell, ranges) or",
       "kept = [True or not is_missing(cell, ranges) or",
       "tables/test_file_formats.py::test_every_kind_of_file_is_the_same_table")
plant("schema/codebook.py", "code books: rows are read", "read_statistical(path, metadataonly=True)",
       "read_statistical(path)", "schema/test_codebook.py::test_no_row_of_a_statistical_file_is_read")
FILE = "tables/private_table.py"
plant(FILE, "secrets: number of users' rows", "(None, None) if user else (1, len(canonical))",
       "(None, len(canonical)) if user else (1, len(canonical))",
       "curator/test_contribution.py::test_a_table_of_users_tells_their_number_and_not_that_of_the_rows")
plant(FILE, "secrets: length of a table of users", "        if self.of_users:\n            raise TypeError(",
       "        if self.of_users:\n            return len(self.frame)\n            raise TypeError(",
       "curator/test_contribution.py::test_a_table_of_users_tells_their_number_and_not_that_of_the_rows")
plant(FILE, "secrets: a table prints its rows", 'return f"PrivateTable of {self.schema!r}"',
       'return f"PrivateTable of {self.schema!r} {self._frame}"',
       "tables/test_tables.py::test_its_printed_forms_show_the_schema_only")
plant(FILE, "secrets: a table can be pickled",
       'raise TypeError("a PrivateTable cannot be pickled. Build it again from its source.")',
       "return PrivateTable, (self.frame, self.schema)", "tables/test_tables.py::test_it_cannot_be_pickled")
plant(FILE, "secrets: the published schema follows the rows",
       "self._fill(published, on_undeclared, _frame=canonical,",
       "self._fill(published if canonical.isna().any(axis=None) else schema, on_undeclared, _frame=canonical,",
       "schema/test_undeclared.py::test_the_published_schema_by_hand",
       "schema/test_undeclared.py::test_a_table_that_conforms_keeps_its_cells")
plant(FILE, "secrets: rows that do not fit are dropped",
       "        canonical = schema.conform(frame, on_undeclared=on_undeclared)\n",
       "        canonical = schema.conform(frame, on_undeclared=on_undeclared)\n"
       "        if on_undeclared != 'refuse':\n"
       "            canonical = canonical.dropna().reset_index(drop=True)\n",
       "schema/test_undeclared.py::test_every_rubbish_cell_in_every_column_and_dtype")
plant("schema/columns.py", "secrets: numbers beyond their bounds are kept",
       "return np.clip(numbers, self.lower, self.upper), np.zeros(", "return numbers, np.zeros(",
       "schema/test_schema.py::test_numbers_outside_their_bounds_are_clipped",
       "schema/test_dates.py::test_the_ends_are_attained_and_dates_beyond_are_moved_to_them")
plant("schema/columns.py", "secrets: missing codes are values",
       "        return np.where(absent, np.nan, found), absent", "        return found, absent",
       "schema/test_reading.py::test_missing_codes_are_missing")
plant("schema/cells.py", "secrets: a cell changes how another is read", "        if type(cell) is not str:",
       "        if not isinstance(cell, str | int | float):",
       "schema/test_reading.py::test_equal_cells_of_different_types_are_read_each")
plant("tables/candidates.py", "rules: rows that break them are published", "obey = ~schema.broken(frame)",
       "obey = schema.broken(frame) >= 0", "schema/test_rules.py::test_synthetic_rows_obey")
plant("schema/schema.py", "rules: private rows that break them are measured",
       "read[name] = read[name].mask(broken)", "pass",
       "schema/test_rules.py::test_cells_of_a_broken_rule_do_not_fit")
plant("tables/owners.py", "users: a person with a blank is another", "cells.map(plain)", "cells.map(lambda cell: cell)",
       "tables/test_read_table.py::test_blanks_and_forms_of_letters_make_no_other_person")
plant("cli/check.py", "secrets: a check names what is not declared",
       "[index for index, name in enumerate(names)", "[name for place, name in enumerate(names)",
       "contracts/test_secrets.py::test_no_check_prints_or_writes_a_private_value")
plant("cli/check.py", "secrets: a check looks at the cells unasked",
       "unfit=unfit_columns(path, schema, form) if look else None", "unfit=unfit_columns(path, schema, form)",
       "journeys/test_check.py::test_no_cell_decides_on_a_check")
plant("replaying/one_replay.py", "rehearsals: rows are drawn without the weights", ", p=weights / weights.sum())", ")",
      "replaying/test_rehearse.py::test_rows_are_drawn_in_proportion_to_the_weights_of_the_release")
plant("replaying/one_replay.py", "rehearsals: one population for all", "(root @ rng", "(0 * root @ rng",
      "replaying/test_rehearse.py::test_errors_of_replays_are_those_against_their_own_populations")
plant("release/rehearsals.py", "rehearsals: errors against the release",
      "self.population(index))", "self.release.weights.values)",
      "replaying/test_rehearse.py::test_errors_of_replays_are_those_against_their_own_populations")
plant("analyst/calibration/sandwich.py", "rehearsals: what they cannot see is left out",
      "wanted = np.diag(formula), spread.variance + missed", "wanted = np.diag(formula), spread.variance + 0 * missed",
      "analyst/calibration/test_from_rehearsals.py::test_intervals_of_what_was_not_measured_are_never_narrow")
plant("analyst/calibration/from_rehearsals.py", "rehearsals: refits that fail are forgotten",
      "level = min(LEVEL / (1 - self.failed_share), 1 - 1e-3)", "level = LEVEL",
      "analyst/calibration/test_from_rehearsals.py::test_refits_that_fail_count_as_outside")
plant("analyst/inference/weight_draws.py", "pool: shared proposals count as draws of a flat density",
      "densities - log_proposal", "densities",
      "analyst/inference/test_several_draws.py::test_draws_near_have_the_closed_form_of_every_weight_draw")
plant("evidence/feature_map.py", "features: rows without weight say how a term varies",
      "np.maximum(shares, LEAST_SHARE * shares.sum() / len(shares))", "shares",
      "evidence/test_features.py::test_a_level_of_rows_without_weight_does_not_hide_private_rows")
FILE, NOISY = "reporting/noisy_utility.py", "reporting/test_noisy_utility.py::"
plant(FILE, "utility: means for one row of a user", "most = facts.rows_per_user * count_moves(facts) / 2",
      "most = count_moves(facts) / 2", f"{NOISY}test_a_user_never_costs_more_than_each_charge")
plant(FILE, "utility: means for one number", "sensitivity=most * np.sqrt(len(columns))", "sensitivity=most",
      f"{NOISY}test_a_neighbour_never_costs_more_than_each_charge")
plant(FILE, "utility: laplace noise of means for one number", "sensitivity=most * len(columns)", "sensitivity=most",
      f"{NOISY}test_a_neighbour_never_costs_more_than_each_charge")
plant(FILE, "utility: a replaced row counts as a zeroed one", "* count_moves(facts) / 2", "/ 2",
      f"{NOISY}test_a_neighbour_never_costs_more_than_each_charge")
plant(FILE, "utility: numbers beyond their bounds", "np.clip(np.nan_to_num((numbers - middle) / width), -0.5, 0.5)",
      "2 * np.nan_to_num((numbers - middle) / width)", f"{NOISY}test_a_neighbour_never_costs_more_than_each_charge")
plant(FILE, "utility: rows are counted before the charge",
      "    account = ledger.charge_release(*events",
      "    private.sum_blocks(partial(_sums, columns=_numbers(facts)))\n    account = ledger.charge_release(*events",
      f"{NOISY}test_all_of_it_is_charged_before_a_row_is_read_and_costs_the_budget")
plant(FILE, "utility: exact means", "zip(columns, noisy.value, strict=True)",
      "zip(columns, sums / _STEPS, strict=True)", f"{NOISY}test_the_noise_is_as_large_as_it_says")
# fmt: on
