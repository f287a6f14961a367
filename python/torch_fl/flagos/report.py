"""The table of memory statistics that memory_summary prints."""

ROWS = (
    ("allocated_bytes", "allocated"),
    ("active_bytes", "active"),
    ("requested_bytes", "requested"),
    ("reserved_bytes", "reserved"),
    ("inactive_split_bytes", "not releasable"),
    ("allocation", "allocations"),
    ("active", "active blocks"),
    ("segment", "segments"),
    ("inactive_split", "not releasable blocks"),
)
COLUMNS = ("current", "peak", "allocated", "freed")


def amount(number, is_bytes):
    """A number in at most 10 characters."""
    units = ("B", "KiB", "MiB", "GiB", "TiB") if is_bytes else ("", "K", "M", "G")
    step = 1024 if is_bytes else 1000
    value = float(number)
    for unit in units:
        if abs(value) < 10 * step or unit == units[-1]:
            return f"{value:.0f} {unit}".rstrip()
        value /= step


def summary(stats, index, abbreviated):
    """The table for device `index`."""
    width = 26 + 4 * 13
    head = f"flagos:{index}, memory"
    failures = f"out of memory: {stats['num_ooms']}, retries: {stats['num_alloc_retries']}"
    lines = ["=" * width, f"{head}{failures:>{width - len(head)}}", "=" * width]
    lines.append(f"{'':<26}" + "".join(f"{column:>13}" for column in COLUMNS))
    pools = [("all", "")]
    if not abbreviated:
        pools += [("large_pool", "  of large blocks"), ("small_pool", "  of small blocks")]
    for key, label in ROWS:
        lines.append("-" * width)
        for pool, pool_label in pools:
            cells = [
                amount(stats[f"{key}.{pool}.{column}"], key.endswith("bytes")) for column in COLUMNS
            ]
            lines.append(f"{pool_label or label:<26}" + "".join(f"{cell:>13}" for cell in cells))
    lines.append("=" * width)
    return "\n".join(lines) + "\n"
