"""Values printed by Ghalebikesabi et al. (UAI 2022), means of ten runs; Tables 1 and 2 at epsilon 1."""

from __future__ import annotations

_METHODS = ("None", "BetaNoised", "BetaDebiased", "DP-MLP", "Discriminator", "LogReg", "MLP")
#: Data set and metric, then a value for each method: DPGAN/DPCGAN/PrivBayes (Boston: DPGAN/PrivBayes).
_PRINTED = """
Breast, WST
2.3665/1.5853/2.1117 1.4337/2.2232/1.2322 1.8922/1.9913/1.1825 1.4570/1.0315/1.2190 1.0007/1.0001/-
1.6451/2.2953/1.4663 1.6129/1.0709/1.4141

Banknote, WST
.4746/.7442/.3237 .2509/.4355/.2318 .4015/.4618/.2369 .2035/.4298/.0456 .3382/.1087/- .2508/.4348/.2348
.0913/.3860/.0021

Breast, beta MSE
2.0643/4.9828/2.3904 2.7532/2.5025/2.1144 2.8337/2.2324/1.8266 2.3965/3.8865/2.3130 1.4591/4.0612/-
2.6934/2.2156/1.5333 2.3999/3.8343/1.6581

Banknote, beta MSE
11.0215/19.3243/8.1724 8.4298/15.2862/5.7001 8.3508/12.9909/6.6862 17.1597/16.4618/3.5519 12.5471/10.9282/-
8.4760/15.2964/5.6751 17.9390/15.5211/2.6286

Breast, MLP
.6374/.6791/.8366 .6110/.6546/.7076 .6820/.7173/.8557 .7942/.5686/.7353 .6992/.7290/- .6631/.6484/.7618
.7730/.7358/.7573

Banknote, MLP
.8546/.6863/.7630 .8495/.6063/.8943 .8729/.5868/.7632 .7697/.5657/.8953 .8695/.7114/- .8172/.6034/.9102
.8291/.5974/.8594

Boston, WST
2.2013/1.3938 2.0922/1.3009 2.0930/1.2705 2.0542/1.0265 2.0145/- 2.2051/1.4078 2.0350/1.0072

Boston, beta MSE
.1867/.0011 .1761/.0088 .0667/.0077 .1530/.0048 .1567/- .0749/.0037 .1476/.0008

Boston, MLP
1.8851/.1973 1.0057/.2200 .9024/.2139 .9462/.1877 1.6256/- 1.0606/.2515 1.0979/.1697
"""


def _read() -> dict[tuple[str, str, str, str], float]:
    found = {}
    for block in _PRINTED.strip().split("\n\n"):
        head, values = block.split("\n", 1)
        data, metric = head.split(", ")
        generators = ("DPGAN", "PrivBayes") if data == "Boston" else ("DPGAN", "DPCGAN", "PrivBayes")
        for method, cells in zip(_METHODS, values.split(), strict=True):
            for generator, value in zip(generators, cells.split("/"), strict=True):
                if value != "-":
                    found[data, metric, generator, method] = float(value)
    return found


#: (data set, metric, generator, method) to the printed mean.
TABLES = _read()

#: Table 3, DPCGAN at epsilon 9.64: beta MSE and area under the ROC curve by method.
MNIST = {
    "None": (0.6605, 0.8502),
    "BetaNoised": (0.6247, 0.8766),
    "BetaDebiased": (0.6240, 0.8783),
    "DP-MLP": (0.5813, 0.8683),
    "Discriminator": (0.6242, 0.8631),
    "LogReg": (0.6234, 0.8770),
    "MLP": (0.5707, 0.8737),
}
