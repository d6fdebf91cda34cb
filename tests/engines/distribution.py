"""A package as pip installs it: a module on the path, and beside it what its distribution registers."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, package: str, entries: dict[str, str], module: str = "") -> None:
    """Put a distribution into a folder of `sys.path`, with the engines it registers by their schemes."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{scheme} = {value}" for scheme, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[dpsql.engines]", *lines, ""]))
    if module:
        (folder / f"{package.replace('-', '_')}.py").write_text(module)
