"""Pictures of a release and of analyses: `iw.plots.weights(release)` and its like."""

from iwbayes.analyst.reporting.plots import plot_budget as budget
from iwbayes.analyst.reporting.plots import plot_comparison as forest
from iwbayes.analyst.reporting.plots import plot_marginals as marginals
from iwbayes.analyst.reporting.plots import plot_overlap as overlap
from iwbayes.analyst.reporting.plots import plot_weights as weights

__all__ = ["budget", "forest", "marginals", "overlap", "weights"]
