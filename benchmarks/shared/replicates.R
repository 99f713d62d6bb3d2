# Estimates with 90 % intervals from an exported release, by its replicate weights: see benchmarks/replicates.py.
# Arguments: the CSV, a CSV of models (formula, family), rho, and the CSV to write.
suppressPackageStartupMessages(library(survey))
given <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(given[1], stringsAsFactors = TRUE)
models <- read.csv(given[2], stringsAsFactors = FALSE)
design <- svrepdesign(data = rows, weights = ~weight, repweights = "^rep[0-9]+$", type = "Fay",
                      rho = as.numeric(given[3]), combined.weights = TRUE, mse = TRUE)
columns <- grep("^(weight|rep[0-9]+)$", names(rows), value = TRUE, invert = TRUE)
found <- list()
add <- function(kind, of, estimates, sd, intervals) {
  found[[length(found) + 1]] <<- data.frame(kind = kind, of = of, name = names(estimates), estimate = unname(estimates),
                                            sd = unname(sd), lower = intervals[, 1], upper = intervals[, 2],
                                            row.names = NULL)
}
for (column in columns) {
  asked <- reformulate(column)
  mean <- svymean(asked, design)
  kind <- if (is.numeric(rows[[column]]) && length(unique(rows[[column]])) > 2) "mean" else "proportion"
  add(kind, column, coef(mean), SE(mean), confint(mean, level = 0.9, df = degf(design)))
  if (kind == "mean") {
    found_at <- svyquantile(asked, design, c(0.25, 0.5, 0.9), alpha = 0.1)[[column]]
    add("quantile", column, found_at[, 1], found_at[, 4], found_at[, 2:3])
  }
}
for (i in seq_len(nrow(models))) {
  fitted <- svyglm(as.formula(models$formula[i]), design, family = get(models$family[i])())
  add("regression", models$formula[i], coef(fitted), SE(fitted), confint(fitted, level = 0.9, ddf = degf(design)))
}
write.csv(do.call(rbind, found), given[4], row.names = FALSE)
