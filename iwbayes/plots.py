"""Figures of releases and analyses, such as `iw.plots.weights(release)`."""

from iwbayes.analyst.reporting.forest import plot_forest as forest
from iwbayes.analyst.reporting.marginal_plots import plot_marginals as marginals
from iwbayes.analyst.reporting.plots import plot_budget as budget
from iwbayes.analyst.reporting.plots import plot_overlap as overlap
from iwbayes.analyst.reporting.plots import plot_weights as weights
from iwbayes.analyst.reporting.quantity_plots import plot_averages as comparisons
from iwbayes.analyst.reporting.quantity_plots import plot_averages as slopes
from iwbayes.analyst.reporting.quantity_plots import plot_predictions as predictions
from iwbayes.analyst.reporting.rehearsal_plots import plot_rehearsals as rehearsals

__all__ = ["budget", "comparisons", "forest", "marginals", "overlap", "predictions", "rehearsals", "slopes", "weights"]
