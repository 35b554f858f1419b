"""Layer names: the canonical one, the aliases people type, and the answer to an unknown one. Pure over sites."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from neuraldbg.errors import UnknownLayer
from neuraldbg.records import Site, SiteKind

# torch class -> the name Keras and the `.neural` language give the same layer
KERAS_NAME: Final[dict[str, str]] = {
    "Linear": "Dense",
    **{f"Conv{n}d": f"Conv{n}D" for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": f"Conv{n}DTranspose" for n in (1, 2, 3)},
    **{f"MaxPool{n}d": f"MaxPooling{n}D" for n in (1, 2, 3)},
    **{f"AvgPool{n}d": f"AveragePooling{n}D" for n in (1, 2, 3)},
    **{f"AdaptiveMaxPool{n}d": f"AdaptiveMaxPooling{n}D" for n in (1, 2, 3)},
    **{f"AdaptiveAvgPool{n}d": f"AdaptiveAveragePooling{n}D" for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": "BatchNormalization" for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": "InstanceNormalization" for n in (1, 2, 3)},
    "LayerNorm": "LayerNormalization",
    "GroupNorm": "GroupNormalization",
    "RMSNorm": "RMSNormalization",
    "RNN": "SimpleRNN",
    "MultiheadAttention": "MultiHeadAttention",
    "TransformerEncoderLayer": "TransformerEncoder",
    "TransformerDecoderLayer": "TransformerDecoder",
    "Dropout1d": "SpatialDropout1D",
    "Dropout2d": "SpatialDropout2D",
    "Dropout3d": "SpatialDropout3D",
}
_DIMENSION: Final = re.compile(r"\d+d$")
_GLOB: Final = re.compile(r"[*?\[]")
# who is meant when several sites bear one name
_PREFERENCE: Final = (
    SiteKind.MODULE,
    SiteKind.PARAMETER,
    SiteKind.MODEL,
    SiteKind.SERIES,
    SiteKind.LOSS,
    SiteKind.OPTIMIZER,
    SiteKind.LOADER,
    SiteKind.COLLECTIVE,
)
LAYER_KINDS: Final = (SiteKind.MODULE, SiteKind.PARAMETER, SiteKind.MODEL)
ROOT: Final = "root"


class Names:
    """The names of the sites of one run."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self._sites = sorted(sites, key=lambda site: site.id)
        self._by_id = {site.id: site for site in self._sites}
        self._model_names = _distinct_model_names(self._sites)
        self._canonical = {site.id: self._name(site) for site in self._sites}
        self._aliases = self._all_aliases()
        self._by_canonical: dict[str, list[Site]] = {}
        self._by_path: dict[str, list[Site]] = {}
        self._by_alias: dict[str, list[Site]] = {}
        ordered = sorted(self._sites, key=_preference)
        for site in ordered:
            self._by_canonical.setdefault(self._canonical[site.id], []).append(site)
            self._by_path.setdefault(site.path, []).append(site)
        for by_position in (
            True,
            False,
        ):  # `Linear_1` is the first Linear; a Linear at path "1" only where there is none
            for site in ordered:
                for alias, positional in self._aliases[site.id].items():
                    if positional is by_position:
                        self._by_alias.setdefault(alias, [site])

    def canonical(self, site: Site | int) -> str:
        """The one name we show: the module path, after the model's name where there are several."""
        return self._canonical[site if isinstance(site, int) else site.id]

    def aliases(self, site: Site | int) -> list[str]:
        """Every other name that leads to this site, the ones people write first."""
        wanted = self._by_id[site if isinstance(site, int) else site.id]
        names = [alias for alias in self._aliases[wanted.id] if self._by_alias[alias][0].id == wanted.id]
        return [name for name in names if name not in self._by_canonical and name not in self._by_path]

    def resolve(self, name: str, *, prefer: SiteKind | None = None) -> Site:
        """The site of a name: exact path, exact alias, then both without regard to case; else UnknownLayer."""
        exact = (self._by_canonical, self._by_path, self._by_alias)
        for index in exact:
            found = self._pick(name, index.get(name, []), prefer)
            if found is not None:
                return found
        folded = name.casefold()
        for index in exact:
            near = [site for known, sites in index.items() if known.casefold() == folded for site in sites]
            found = self._pick(name, near, prefer)
            if found is not None:
                return found
        inner = self._without_model(name)
        if inner is not None:
            return self.resolve(inner, prefer=prefer)
        raise UnknownLayer(name, self._typeable())

    def _without_model(self, name: str) -> str | None:
        """`net.fc` is `fc` where there is one model, net: with a second one that would be its name."""
        only = next(iter(self._model_names.values())) if len(self._model_names) == 1 else ""
        return name[len(only) + 1 :] or None if only and name.startswith(f"{only}.") else None

    def twins(self, site: Site) -> list[Site]:
        """The site and those that are the same thing: a model and the root module of it."""
        same = self._by_canonical[self._canonical[site.id]]
        root = site.kind is SiteKind.MODEL or (site.kind is SiteKind.MODULE and not site.path)
        return (
            [s for s in same if s.kind is SiteKind.MODEL or (s.kind is SiteKind.MODULE and not s.path)]
            if root
            else [site]
        )

    def match(self, pattern: str, *, regex: bool = True) -> list[Site]:
        """Every layer a name, glob or regular expression means, in order of appearance; empty where none."""
        try:
            return [self.resolve(pattern)]
        except UnknownLayer:
            pass
        if _GLOB.search(pattern):
            found = [site for site in self._layers() if any(fnmatchcase(n, pattern) for n in self._all_names(site))]
            if found:
                return found
        if not regex:
            return []
        try:
            expression = re.compile(pattern)
        except re.error:
            return []
        for test in (expression.fullmatch, expression.search):
            found = [site for site in self._layers() if any(test(name) for name in self._all_names(site))]
            if found:
                return found
        return []

    def _pick(self, name: str, sites: list[Site], prefer: SiteKind | None) -> Site | None:
        if not sites:
            return None
        for site in sites:
            if site.kind is prefer:
                return site
        best = [site for site in sites if site.kind is sites[0].kind]
        distinct = {self._canonical[site.id] for site in best}
        if len(distinct) > 1 and len({site.model for site in best}) > 1 and best[0].path == name:
            raise UnknownLayer(name, sorted(distinct))  # the same path in several models: we do not guess
        return sites[0]

    def _layers(self) -> list[Site]:
        return [site for site in self._sites if site.kind in LAYER_KINDS]

    def _all_names(self, site: Site) -> list[str]:
        return [self._canonical[site.id], site.path, *self._aliases[site.id]]

    def _typeable(self) -> list[str]:
        layers = {name for name, sites in self._by_canonical.items() if any(s.kind in LAYER_KINDS for s in sites)}
        known = [name for name in self._by_canonical if name in layers] or list(self._by_canonical)
        return list(dict.fromkeys([*known, *self._by_alias]))

    def _name(self, site: Site) -> str:
        if site.kind is SiteKind.MODEL:
            return self._model_names[site.id]
        if site.kind not in LAYER_KINDS:
            return site.path
        model = self._model_names.get(site.model) if site.model is not None else None
        if not site.path:
            return model or ROOT
        return f"{model}.{site.path}" if model and len(self._model_names) > 1 else site.path

    def _all_aliases(self) -> dict[int, dict[str, bool]]:
        """Aliases of every site; True = by position among its type (`Linear_1`), False = by path (`Linear_fc`)."""
        found: dict[int, dict[str, bool]] = {site.id: {} for site in self._sites}
        count: Counter[str] = Counter()
        for site in self._sites:
            if site.kind is SiteKind.MODULE and site.path and site.op:
                found[site.id].update(_positional(site.op, count))
                found[site.id].setdefault(f"{site.op}_{site.path}", False)
        models = [site for site in self._sites if site.kind is SiteKind.MODEL]
        roots = models or [site for site in self._sites if site.kind is SiteKind.MODULE and not site.path]
        for root in roots[:1]:
            found[root.id].setdefault(ROOT, True)
        return found


def _preference(site: Site) -> tuple[int, bool, int]:
    kind = SiteKind.MODEL if site.kind is SiteKind.MODULE and not site.path else site.kind
    return _PREFERENCE.index(kind), site.kind is not kind, site.id


def _positional(op: str, count: Counter[str]) -> dict[str, bool]:
    """`Linear_1`, `Dense_1`, `linear1`, `fc1` of the next layer of class `op`; advances the counters."""
    keras = KERAS_NAME.get(op)
    short = _DIMENSION.sub("", op).lower()
    names = {f"{op}_": op, f"{short}": short}
    if keras:
        names[f"{keras}_"] = keras
    if op == "Linear":
        names["fc"] = "fc"
        names["dense"] = "dense"
    for counter in set(names.values()):
        count[counter] += 1
    return {f"{prefix}{count[counter]}": True for prefix, counter in names.items()}


def _distinct_model_names(sites: list[Site]) -> dict[int, str]:
    names: dict[int, str] = {}
    for site in sites:
        if site.kind is SiteKind.MODEL:
            name, number = site.path or "model", 2
            while name in names.values():
                name, number = f"{site.path or 'model'}_{number}", number + 1
            names[site.id] = name
    return names
