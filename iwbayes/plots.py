"""Figures of releases and analyses, such as `iw.plots.weights(release)`."""

from iwbayes.reporting.criticism_plots import plot_pareto_k as pareto_k
from iwbayes.reporting.criticism_plots import plot_ppc as ppc
from iwbayes.reporting.forest import plot_forest as forest
from iwbayes.reporting.marginal_plots import plot_marginals as marginals
from iwbayes.reporting.quantity_plots import plot_averages as comparisons
from iwbayes.reporting.quantity_plots import plot_averages as slopes
from iwbayes.reporting.quantity_plots import plot_predictions as predictions
from iwbayes.reporting.release_plots import plot_budget as budget
from iwbayes.reporting.release_plots import plot_overlap as overlap
from iwbayes.reporting.release_plots import plot_rehearsals as rehearsals
from iwbayes.reporting.release_plots import plot_weights as weights

__all__ = [
    "budget",
    "comparisons",
    "forest",
    "marginals",
    "overlap",
    "pareto_k",
    "ppc",
    "predictions",
    "rehearsals",
    "slopes",
    "weights",
]
