"""Bytes of a release file: convert the parts of a release to an archive and back. See `iwbayes.release`."""

from __future__ import annotations

import hashlib
import json
import math
import os
from importlib.metadata import version
from typing import Any, BinaryIO

import numpy as np

from iwbayes.evidence import FeatureMap
from iwbayes.evidence.distributions import DISTRIBUTIONS
from iwbayes.evidence.measurement import Measurement
from iwbayes.evidence.scores import RowFeatures
from iwbayes.release.statement import INFINITE, PrivacyStatement
from iwbayes.release.table import read_table, write_table
from iwbayes.release.weights import Weights
from iwbayes.schema import Schema
from iwbayes.tables import SyntheticTable
from iwbayes.utils import checks
from iwbayes.utils.archive import ArchiveError, check_text, pack, pack_arrays, unpack, unpack_arrays
from iwbayes.utils.arrays import Array

#: Read once, because a process may later lose permission to read installed packages.
PACKAGE_VERSION = version("iwbayes")
FORMAT = "iwbayes release"
FORMAT_VERSION = 1
_PARTS = ("held_back", "columns")  # measurements inside the measurement of a tilt
MANIFEST, TABLE, WEIGHTS, MEASUREMENTS = "manifest.json", "table.parquet", "weights.npz", "measurements.npz"


def to_bytes(
    synthetic: SyntheticTable, weights: Weights, statement: PrivacyStatement, n_private: int, recipe: Any
) -> bytes:
    """Return the archive of the parts of a release; equal content gives equal bytes."""
    measurement, settings = weights.measurement, None
    members = {TABLE: write_table(synthetic), WEIGHTS: pack_arrays({"log_weights": weights.log_weights})}
    if measurement is not None:
        settings, arrays = _measurement_to_parts(measurement)
        members[MEASUREMENTS] = pack_arrays(arrays)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "package_version": PACKAGE_VERSION,
        "schema": synthetic.schema.to_dict(),
        "n_private": n_private,
        "n_synthetic": len(synthetic),
        "origin": synthetic.origin,
        "statement": statement.to_dict(),
        "weights": {"method": weights.method, "steps": list(weights.steps), "measurement": settings},
        "recipe": recipe,
        "members": {name: _seal(content) for name, content in members.items()},
    }
    manifest["sha256"] = _digest(manifest)
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False, default=_plain_number)
    content = text.encode("utf-8")
    try:
        check_text(content)
    except ArchiveError as error:
        raise ValueError(f"schema, statement and settings of a release must not be so large: {error}.") from None
    return pack({MANIFEST: content, **members})


def _seal(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a release file can contain plain values only; got {type(value).__name__}.")


def _digest(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False, default=_plain_number)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def from_bytes(source: BinaryIO) -> dict[str, Any]:
    """Return the arguments of the `Release` in a file. Bytes that are not valid raise an ArchiveError, or any other."""
    members, manifest = _read_members(source)
    file_size = source.seek(0, os.SEEK_END)
    schema = Schema.from_dict(manifest["schema"])
    n_synthetic = _checked(manifest, "n_synthetic", int)
    return {
        "weights": _read_weights(members, manifest["weights"], schema, n_synthetic, manifest["n_private"]),
        "synthetic": read_table(members[TABLE], schema, n_synthetic, manifest["origin"], file_size=file_size),
        "statement": _read_statement(manifest["statement"]),
        "n_private": manifest["n_private"],
        "recipe": manifest["recipe"],
    }


def read_recipe(source: BinaryIO) -> dict[str, Any]:
    """Return only the recipe of a release file; empty if there is none. Damaged bytes raise an ArchiveError."""
    recipe = _read_members(source)[1].get("recipe")
    return recipe if isinstance(recipe, dict) else {}


def _read_members(source: BinaryIO) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the members of a file as they are stored, and the manifest; no other member is decoded."""
    members = unpack(source, names=[MANIFEST, TABLE, WEIGHTS], optional=[MEASUREMENTS])

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON value")

    try:
        check_text(members[MANIFEST])
        manifest = json.loads(members[MANIFEST].decode("utf-8"), parse_constant=refuse)
    except ArchiveError as error:
        raise ArchiveError(f"its manifest cannot be parsed: {error}") from None
    except (ValueError, RecursionError):
        raise ArchiveError("its manifest is not valid JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArchiveError("it is not a release file: its manifest has a different format")
    found = _checked(manifest, "format_version", int)
    if found > FORMAT_VERSION:
        raise ArchiveError(
            f"it has format version {found}, written by a newer iwbayes "
            f"({str(manifest.get('package_version'))[:40]}); this one reads up to {FORMAT_VERSION}"
        )
    if found < 1 or manifest.get("sha256") != _digest(manifest):
        raise ArchiveError("its manifest was altered: its SHA-256 does not match the stated one")
    records = _checked(manifest, "members", dict)
    if set(records) != set(members) - {MANIFEST}:
        raise ArchiveError("its members are not those that its manifest lists")
    for name, record in records.items():
        if record != _seal(members[name]):
            raise ArchiveError(f"its member {name} was altered: size or SHA-256 do not match the manifest")
    return members, manifest


def _checked(content: dict[str, Any], key: str, kind: type) -> Any:
    value = content.get(key)
    if type(value) is not kind:
        raise ArchiveError(f"its {key} must be of type {kind.__name__}; got {type(value).__name__}")
    return value


def _number(content: dict[str, Any], key: str) -> float:
    value: Any = content.get(key)
    if not checks.is_real(value) or not math.isfinite(value) or value < 0:
        raise ArchiveError(f"its {key} must be a finite number of at least 0")
    return value


def _measurement_to_parts(measurement: Measurement) -> tuple[dict[str, Any], dict[str, Any]]:
    features, maps = (None, {}) if measurement.features is None else measurement.features.to_arrays()
    arrays, noise = {"value": measurement.value, **maps}, measurement.noise
    settings = {
        "name": measurement.name,
        "noise": {"law": noise.name, "scale": float(noise.scale), "dim": int(noise.dim)},
        "sensitivity": float(measurement.sensitivity),
        "features": features,
        "n_private": int(measurement.n_private),
    }
    if math.isfinite(measurement.misfit):
        settings["misfit"] = float(measurement.misfit)
    if measurement.coefficients is not None:
        settings["coefficients"] = True
        settings["floors"] = [*measurement.floors]
        arrays["coefficients"] = measurement.coefficients
    for part in _PARTS:
        other = getattr(measurement, part)
        if other is not None:
            settings[part], more = _measurement_to_parts(other)
            arrays.update({f"{part}_{name}": array for name, array in more.items()})
    return settings, arrays


def _read_weights(
    members: dict[str, bytes], settings: Any, schema: Schema, n_synthetic: int, n_private: int
) -> Weights:
    log_weights = unpack_arrays(members[WEIGHTS], {"log_weights": 2})["log_weights"]
    if log_weights.shape[1] != n_synthetic:
        raise ArchiveError("its numbers of weights and rows differ")
    steps = _checked(settings, "steps", list)
    if not all(isinstance(step, str) for step in steps):
        raise ArchiveError("its steps must be text")
    measured, measurement = settings["measurement"], None
    if (measured is None) != (MEASUREMENTS not in members):
        raise ArchiveError("its measurement lacks arrays or settings")
    if measured is not None:
        arrays = unpack_arrays(members[MEASUREMENTS], _array_dims(measured))
        measurement = _read_measurement(arrays, measured, schema)
    return Weights(log_weights, _checked(settings, "method", str), tuple(steps), measurement)


def _array_dims(settings: dict[str, Any], prefix: str = "") -> dict[str, int]:
    """Return the numbers of dimensions of the arrays of a measurement and of its parts, by array name."""
    dims = {f"{prefix}value": 1}
    if settings["features"] is not None:
        features = settings["features"]
        own = {"values": 2} if "function" in features else {"center": 1, "whitener": 2}
        own |= {"back": 2} if features.get("names") else {}
        dims |= {f"{prefix}{name}": count for name, count in own.items()}
    if prefix:
        if set(_PARTS) & set(settings):
            raise ArchiveError("a part of its measurement has parts itself")
        return dims
    if settings.get("coefficients", False) is True:
        dims["coefficients"] = 1
    for part in _PARTS:
        if settings.get(part) is not None:
            dims |= _array_dims(settings[part], f"{part}_")
    return dims


def _read_measurement(
    arrays: dict[str, Array], settings: dict[str, Any], schema: Schema, prefix: str = ""
) -> Measurement:
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    if not np.isfinite(own["value"]).all():
        raise ArchiveError("its measured mean is not finite")
    noise, features = settings["noise"], None
    parts = {part: settings[part] for part in _PARTS if settings.get(part) is not None}
    if settings["features"] is not None:
        kind = RowFeatures if "function" in settings["features"] else FeatureMap
        features = kind.from_arrays(schema, settings["features"], own)
        if features.to_arrays()[0] != settings["features"]:
            raise ArchiveError("the settings of its feature map are not valid")
    return Measurement(
        name=_checked(settings, "name", str),
        value=own["value"],
        noise=DISTRIBUTIONS[noise["law"]](_number(noise, "scale"), _checked(noise, "dim", int)),
        sensitivity=_number(settings, "sensitivity"),
        features=features,
        n_private=_checked(settings, "n_private", int),
        coefficients=own.get("coefficients"),
        floors=tuple(map(float, settings.get("floors", ()))),
        misfit=_checked(settings, "misfit", float) if "misfit" in settings else math.nan,
        **{part: _read_measurement(arrays, other, schema, f"{part}_") for part, other in parts.items()},
    )


def _read_statement(content: Any) -> PrivacyStatement:
    for part in (content, *content["events"]):
        if part.get("epsilon") != INFINITE:
            _number(part, "epsilon")
        if _number(part, "delta") > 1:
            raise ArchiveError("its delta must be at most 1")
    for event in content["events"]:
        for key, kind in (("label", str), ("mechanism", str), ("count", int), ("steps", int)):
            if key != "steps" or event.get(key) is not None:
                _checked(event, key, kind)
        for key in ("noise_multiplier", "sampling_probability"):
            if event.get(key) is not None:
                _number(event, key)
    _checked(content, "certified", bool)
    _checked(content, "on_undeclared", str)
    if content["rule"] is not None:
        _checked(content, "rule", str)
    for part in _checked(content, "budget", list) if content["budget"] is not None else ():
        if part != INFINITE:
            _number({"budget": part}, "budget")
    if not all(isinstance(note, str) for note in _checked(content, "notes", list)):
        raise ArchiveError("the notes of its statement must be text")
    return PrivacyStatement.from_dict(content)
