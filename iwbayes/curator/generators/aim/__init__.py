"""AIM: a graphical model of marginals that are chosen where it fits badly."""
