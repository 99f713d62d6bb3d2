"""Planted defects in which noise is drawn and charged, and something passes beside it; see `defects.py`."""

from planting import plant

# fmt: off
SAME = "contracts/test_same_noise.py::test_neighbours_with_the_same_noisy_values_give_the_same_release"
AUDIT = "curator/test_release_audit.py::test_a_release_loses_what_it_states_and_no_more"

# --- exact values where noisy ones were drawn

plant("curator/generators/aim/aim.py", "AIM: noise is drawn and exact counts are used",
      "estimated.add([chosen], noisy)",
      "estimated.add([chosen], [noisy[0]._replace(value=rows.table(chosen) * 1.0)])",
      f"{SAME}[replace-one: AIM, UniformWeights]", f"{AUDIT}[AIM]")
plant("curator/generators/aim/mst.py", "MST: noise is drawn and exact counts are used",
      "estimated.add(chosen, noisy)",
      "estimated.add(chosen, [part._replace(value=next(rows.count([c])) * 1.0) for c, part in zip(chosen, noisy)])",
      f"{SAME}[replace-one: MST, UniformWeights]", f"{AUDIT}[MST]")
FILE = "curator/generators/tables/counts.py"
plant(FILE, "counts: noise is drawn and exact counts are used",
      "return [NoisyCounts(part, variance) for part in parts]",
      "return [NoisyCounts(part * 1.0, variance) for part in counts]",
      f"{SAME}[replace-one: BayesNet, UniformWeights]")
plant(FILE, "Mixture: noise is drawn and exact counts are used",
      "return laplace(counts, sensitivity=rows * moved, **settings)",
      "return laplace(counts, sensitivity=rows * moved, **settings)._replace(value=counts * 1.0)",
      f"{SAME}[replace-one: Mixture, UniformWeights]")
plant("paper/dpsgd/private_steps.py", "steps: noise is drawn and exact gradients are used",
      "            flat = self._noise.floating_gaussian(", "            self._noise.floating_gaussian(",
      f"{SAME}[replace-one: DPGAN, UniformWeights]")
plant("paper/pate/teachers.py", "PATEGAN: noise is drawn and exact votes are used",
      "return noisy / (self._grid * self._teachers.n)", "return self._teachers._count(rows) / self._teachers.n",
      f"{SAME}[replace-one: PATEGAN, UniformWeights]")
plant("curator/contribution.py", "contributions: noise is drawn and rows are counted exactly",
      "np.clip(noisy, private.n_users", "np.clip(int(total[0]), private.n_users",
      f"{SAME}[replace-user: BayesNet, UniformWeights]")
plant("curator/weight_providers/exponential.py", "tilt: noise is drawn and the exact mean is used",
      "Measurement(name, noisy.value / n,", "Measurement(name, total * step / n,",
      f"{SAME}[replace-one: GivenTable, TiltWeights]")
plant("paper/logistic_weights.py", "logistic: noise is drawn and exact coefficients are used",
      "LogisticRatio(noisy.value, facts.schema", "LogisticRatio(exact, facts.schema",
      f"{SAME}[replace-one: GivenTable, LogisticWeights]")
plant("paper/output_noise.py", "output noise: noise is drawn and exact log weights are used",
      "Weights(noisy.value + shift", "Weights(exact + shift", f"{SAME}[replace-one: GivenTable, OutputNoiseWeights]")
plant("paper/beta_weights.py", "beta: noise is drawn and exact slopes are used",
      "np.maximum(noisy.value / limit, 0.0)", "np.maximum(exact / limit, 0.0)",
      f"{SAME}[replace-one: GivenTable, BetaCalibratedWeights]")

# --- texts, warnings and outputs that follow from private rows

plant("curator/weight_providers/tilt.py", "text: a tilt tells the exact share of clipped rows",
      '{models}{name})", measurement=measurement)',
      '{models}{name}), {(design.features.transform(fit.private.frame)[:, -1] > 0).mean():.4f} clipped", '
      "measurement=measurement)", f"{SAME}[replace-one: GivenTable, TiltWeights]")
plant("curator/weight_providers/score_stages.py", "text: a staged tilt tells the exact share of clipped rows",
      'f"{self.tilt.label}({what}{name})", measurement=measurement)',
      'f"{self.tilt.label}({what}{name}), {(scores.transform(fit.private.frame)[:, -1] > 0).mean():.4f} clipped", '
      "measurement=measurement)", f"{SAME}[zero-out: GivenTable, TiltWeights to scores]")
plant("curator/pipeline.py", "outputs: a cell is printed",
      'step("sampling synthetic rows")', 'step("sampling synthetic rows"); print(private.frame.iloc[0, 1])',
      f"{SAME}[replace-one: BayesNet, UniformWeights]")
plant("curator/pipeline.py", "outputs: a cell is logged",
      'step("sampling synthetic rows")',
      'step("sampling synthetic rows"); __import__("logging").warning("%s", private.frame.iloc[0, 1])',
      f"{SAME}[replace-one: BayesNet, UniformWeights]")
SILENT = "contracts/test_same_noise.py::test_scores_that_cannot_be_computed_show_nothing_beside_the_noise"
plant("evidence/scores.py", "warnings: scores of private rows warn", "with one_blas_thread(), quietly():",
      "with one_blas_thread():", f"{SILENT}[careless]")

# --- rows that depend on each other, and functions that nobody looked into

plant("evidence/scores.py", "tilt: rows are centred by whether another is far", "phi = self.clip(unclipped)",
      "phi = self.clip(unclipped - 0.1 * bool(far.size))",
      "evidence/test_scores.py::test_the_features_of_a_row_are_the_same_whether_another_is_far_or_not[interaction]")
plant("evidence/scores.py", "tilt: all rows are centred if any is far", "unclipped[far[",
      "unclipped = unclipped - unclipped.mean(axis=0) if far.size else unclipped\n        unclipped[far[",
      "evidence/test_scores.py::test_the_features_of_a_row_are_the_same_whether_another_is_far_or_not[interaction]")
INSIDE = "analyst/inference/test_model_scores.py::test_a_function_inside_another_operation_is_refused_too"
GRAPH = "analyst/inference/row_graph.py"
plant(GRAPH, "models: functions by element are not looked into", '("scalar_op", "core_op")', '("core_op",)',
      f"{INSIDE}[by element]")
plant(GRAPH, "models: functions by row are not looked into", '("scalar_op", "core_op")', '("scalar_op",)',
      f"{INSIDE}[by row]")
plant(GRAPH, "models: functions inside composites are not looked into", "yield from _operations(getattr(op, name))",
      "yield getattr(op, name)", f"{INSIDE}[in a composite]")
plant(GRAPH, "models: graphs of somebody's are known", "type(op) is OpFromGraph", "isinstance(op, OpFromGraph)",
      f"{INSIDE}[a graph by row]")

# --- rows that decide whether a release succeeds, or what it costs

DOMAIN = ("analyst/inference/test_row_graph.py::"
          "test_a_row_outside_the_domain_of_a_model_has_no_scores_and_affects_no_other_row")
plant(GRAPH, "models: an index may be out of range", "pt.clip(at, 0, size - 1)", "at", f"{DOMAIN}[index]")
plant(GRAPH, "models: a negative index counts from the end", "[pt.all(pt.ge(at, 0)), pt.all(pt.lt(at, size))]",
      "[pt.all(pt.lt(at, size))]", f"{DOMAIN}[index_above_the_smallest]")
plant(GRAPH, "models: an invalid parameter is used", "if condition in of_cells]", "if False]", f"{DOMAIN}[scale]")
plant(GRAPH, "models: whole numbers are divided by zero", "pt.switch(divides, inputs[1], 1)", "inputs[1]",
      f"{DOMAIN}[divisor]")
plant("analyst/weighting/release_rows.py", "models: a number that a type cannot hold becomes another",
      "known &= (cast == array)", "known |= (cast == array)", f"{DOMAIN}[index_of_a_small_type]")
plant("evidence/scores.py", "scores: a row that fails decides about its block",
      "except Exception:  # of any kind, whose message may contain a private value",
      "except ArithmeticError:",
      "curator/weight_providers/test_score_stages.py::test_a_row_whose_scores_fail_counts_as_clipped_and_affects_no_other_row")
plant("utils/arrays.py", "rounding: the last rows of a block are rounded in another way", "_WHOLE_BLOCK = 64",
      "_WHOLE_BLOCK = 1",
      "evidence/test_scores.py::"
      "test_the_rounding_of_a_row_depends_neither_on_its_place_nor_on_how_many_rows_there_are[products of columns]")
plant("paper/queries.py", "query: rows are read before they are charged",
      "account = ledger.charge_release(*events)\n        codes = target.codes(private.frame[target.name])",
      "codes = target.codes(private.frame[target.name])\n        account = ledger.charge_release(*events)",
      "curator/test_publish.py::test_every_use_of_rows_is_charged_before_the_first_look[queried]")
plant("curator/settings.py", "text: the repr of a function is in the recipe",
      "return type(algorithm).__name__ if data is None else _words(data)", "return repr(algorithm)",
      "contracts/test_secrets.py::test_nothing_that_comes_out_holds_a_private_value[drive_models]")
plant("analyst/inference/model_scores.py", "text: the repr of a model shows its function", "field(repr=False)",
      "field(repr=True)", "contracts/test_secrets.py::test_nothing_that_comes_out_holds_a_private_value[drive_models]")
plant("curator/privacy/ledger_record.py", "delta: one over the number of rows is accepted",
      "if math.isinf(self.epsilon) or self.delta < 1 / n:", "if math.isinf(self.epsilon) or self.delta <= 1:",
      "curator/test_publish.py::"
      "test_a_delta_of_one_over_the_number_of_rows_is_refused_where_a_ledger_meets_a_table[weights]")
# fmt: on
