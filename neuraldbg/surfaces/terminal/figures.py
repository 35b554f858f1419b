"""Numbers and curves as short text. Unknown is a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence

DASH = "-"
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-:=+*#"
LOG_FROM = 100.0  # a curve that falls or rises this many times is drawn on a log scale


def figure(value: float | None) -> str:
    """Three digits in at most seven characters: 0.0123, 1.2e-05, 12.3, 1234, NaN."""
    if value is None:
        return DASH
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 9999.5 or size < 9.995e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}"[:7]


def quantity(value: int | None) -> str:
    """A count of parameters or operations: 850, 12.3k, 1.2M."""
    if value is None:
        return DASH
    size = float(value)
    for unit in ("", "k", "M", "G", "T"):
        if abs(size) < 999.5 or unit == "T":
            return f"{size:.0f}{unit}" if unit == "" or size >= 99.95 else f"{size:.1f}{unit}"
        size /= 1000
    raise AssertionError("unreachable")


def size(value: int | None) -> str:
    """Bytes: 512 B, 1.2 MB."""
    if value is None:
        return DASH
    return f"{value} B" if value < 1000 else f"{quantity(value)[:-1]} {quantity(value)[-1]}B"


def duration(seconds: float | None) -> str:
    """A run time: 0.8s, 42s, 3m 05s, 2h 10m."""
    if seconds is None:
        return DASH
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def percent(ratio: float | None) -> str:
    if ratio is None:
        return DASH
    return f"{ratio * 100:.1f} %" if abs(ratio) >= 0.0005 else f"{ratio * 100:.2f} %"


def by_powers_of_ten(values: Sequence[float]) -> list[float] | None:
    """Their logarithms, where they span so much that on a plain scale all but the largest would lie on the floor."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or min(finite) <= 0 or max(finite) < LOG_FROM * min(finite):
        return None
    return [math.log10(value) if math.isfinite(value) else math.nan for value in values]


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """One character per value, lowest to highest; `!` where a value is not finite."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    if not math.isfinite(high - low):
        low, high = low / 4, high / 4
        values = [value / 4 for value in values]
    drawn = []
    for value in values:
        if not math.isfinite(value):
            drawn.append("!")
        else:
            share = (value - low) / (high - low) if high > low else 0.0
            drawn.append(blocks[min(len(blocks) - 1, int(share * len(blocks)))])
    return "".join(drawn)


def ending(path: str, width: int) -> str:
    """The end of a path that is too long, from a name on: there layers differ from each other."""
    if len(path) <= width:
        return path
    end = path[len(path) - max(0, width - 2) :]
    _, dot, names = end.partition(".")
    return f"..{names if dot and names else end}"[:width]


def shortened(text: str, width: int) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= width else f"{text[: max(0, width - 2)]}.."[:width]
