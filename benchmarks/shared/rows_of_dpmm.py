"""Rows of AIM and MST by dpmm 0.1.9, which needs an environment of its own: see `marginals.py`.

``python rows_of_dpmm.py MECHANISM EPSILON DELTA N FILE``: codes (row, column) and sizes are read from FILE, an npz of
numpy; as many rows as asked for are written there in their place. Its neighbours differ by one row that is there or
not, which is a weaker promise than that of a replaced row: it has less noise at the same epsilon.
"""

import sys

import numpy as np
import pandas as pd

MECHANISMS = ("aim", "mst")


def main(mechanism: str, epsilon: str, delta: str, n: str, file: str) -> None:
    """Fit, draw and write."""
    from dpmm.models.aim import AIMGM
    from dpmm.models.mst import MSTGM

    kind = dict(zip(MECHANISMS, (AIMGM, MSTGM), strict=True))[mechanism]
    with np.load(file) as given:
        codes, sizes = given["codes"], given["sizes"]
    names = [f"c{index:03d}" for index in range(len(sizes))]
    domain = dict(zip(names, map(int, sizes), strict=True))
    settings = {"degree": 3, "max_model_size": 16} if mechanism == "aim" else {}
    model = kind(epsilon=float(epsilon), delta=float(delta), domain=domain, n_jobs=1, **settings)
    model.fit(pd.DataFrame(codes, columns=names))
    found = model.generate(int(n))[names].to_numpy(np.int64)
    np.savez(file, codes=found, sizes=sizes)


if __name__ == "__main__":
    main(*sys.argv[1:])
