"""Figures of releases and analyses, such as `iw.plots.weights(release)`."""

from iwbayes.reporting.forest import plot_forest as forest
from iwbayes.reporting.marginal_plots import plot_marginals as marginals
from iwbayes.reporting.quantity_plots import plot_averages as comparisons
from iwbayes.reporting.quantity_plots import plot_averages as slopes
from iwbayes.reporting.quantity_plots import plot_predictions as predictions
from iwbayes.reporting.release_plots import plot_budget as budget
from iwbayes.reporting.release_plots import plot_overlap as overlap
from iwbayes.reporting.release_plots import plot_rehearsals as rehearsals
from iwbayes.reporting.release_plots import plot_weights as weights

__all__ = ["budget", "comparisons", "forest", "marginals", "overlap", "predictions", "rehearsals", "slopes", "weights"]
