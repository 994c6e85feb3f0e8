"""Layer groups as the reference compiler made them, from a folder of its outputs, and their compact copy.

    python benchmarks/reference_groups.py FOLDER     writes benchmarks/data/layer_groups.json anew

FOLDER has `modules/<shape>__<quantisation>_s<length>[_variant][_chip]__<module>/` with final.mlir, op.csv and
layer_group_cache.json (files may be gzipped), and `configs/<shape>.json`.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "layer_groups.json"
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
"""Model types that this compiler reads, too."""
VARIANTS = ("", "kv", "g128")
CHIPS = ("bm1684x", "bm1688")


@dataclass(frozen=True)
class ReferenceGroup:
    """kinds: of its ops in program order, without loads, stores and reshapes. secs: n, c, d, h, w. cycles: of all
    slices, None where the reference kept none. peak: highest byte per lane."""

    kinds: list[str]
    secs: list[int]
    cycles: int | None
    peak: int


@dataclass(frozen=True)
class ReferenceModule:
    """moved: bytes that loads and stores of groups move. memory: bytes of inputs, outputs and activations in DDR."""

    shape: str
    quantize: str
    length: int
    variant: str
    chip: str
    module: str
    groups: list[ReferenceGroup]
    moved: int
    memory: int

    @property
    def label(self) -> str:
        """Short name."""
        extra = "".join(f" {part}" for part in (self.variant, self.chip) if part not in ("", "bm1684x"))
        return f"{self.shape} {self.quantize} S={self.length}{extra} {self.module}"


@dataclass(frozen=True)
class Reference:
    """Modules, and the config of each shape."""

    configs: dict[str, dict[str, Any]]
    modules: list[ReferenceModule]


def load(path: Path) -> Reference:
    """The reference from its folder or from the compact copy."""
    return _read_folder(path) if path.is_dir() else _read_copy(path)


def _read_copy(path: Path) -> Reference:
    found = json.loads(path.read_text())
    modules = [
        ReferenceModule(**{**module, "groups": [ReferenceGroup(**group) for group in module["groups"]]})
        for module in found["modules"]
    ]
    return Reference(found["configs"], modules)


def _read_folder(folder: Path) -> Reference:
    configs = {
        path.stem: json.loads(path.read_text()) for path in sorted((folder / "configs").glob("*.json"))
    }
    configs = {name: config for name, config in configs.items() if config.get("model_type") in FAMILIES}
    modules = [_read_module(path) for path in sorted((folder / "modules").iterdir())]
    return Reference(configs, [m for m in modules if m is not None and m.shape in configs])


_NAME = re.compile(
    r"(?P<shape>.+)__(?P<quantize>\w+?)_s(?P<length>\d+)(?:_(?P<rest>[\w]+?))?__(?P<module>block\w*)"
)


def _read_module(folder: Path) -> ReferenceModule | None:
    match = _NAME.fullmatch(folder.name)
    if match is None:
        return None
    parts = (match["rest"] or "").split("_")
    chip = next((part for part in parts if part in ("bm1684x2", *CHIPS)), "bm1684x")
    variant = "_".join(part for part in parts if part != chip)
    if variant not in VARIANTS or chip not in CHIPS:
        return None
    text = _text(folder / "final.mlir")
    assert text is not None
    groups = _groups(text, _costs(folder))
    return ReferenceModule(
        match["shape"],
        match["quantize"],
        int(match["length"]),
        variant,
        chip,
        match["module"],
        groups,
        _moved(folder),
        sum(int(size) for size in re.findall(r"module\.(?:io|neuron)_size = (\d+)", text)),
    )


def _text(path: Path) -> str | None:
    packed = path.with_name(path.name + ".gz")
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    return path.read_text() if path.exists() else None


def _costs(folder: Path) -> list[int]:
    """Cycles of the groups in program order."""
    cache = json.loads(_text(folder / "layer_group_cache.json") or "{}")
    return [
        group["group_cost"]
        for name, part in cache.items()
        if name.startswith("subfunc")
        for group in part.get("GroupLayer", [])
    ]


def _groups(text: str, costs: list[int]) -> list[ReferenceGroup]:
    found: list[ReferenceGroup] = []
    bodies = re.findall(r'"tpu\.Group"\([^\n]*\n(.*?)\n\s*\}\) \{([^\n]*)', text, re.DOTALL)
    for number, (body, attributes) in enumerate(bodies):
        kinds = re.findall(r'"tpu\.(\w+)"', body)
        ends = [
            int(match[1]) + int(match[2])
            for kind in ("out", "buffer")
            for match in re.finditer(rf"{kind}_addr = (\d+), {kind}_size = (\d+)", body)
        ]
        secs = [int(re.findall(rf"{axis}secs = (\d+)", attributes)[0]) for axis in "ncdhw"]
        cycles = costs[number] if len(costs) == len(bodies) else None
        hidden = ("Load", "Store", "Yield", "Reshape")
        found.append(ReferenceGroup([k for k in kinds if k not in hidden], secs, cycles, max(ends)))
    return found


def _moved(folder: Path) -> int:
    rows = csv.DictReader((_text(folder / "op.csv") or "").splitlines())
    return sum(
        int(row["dir0_bytes"]) + int(row["dir1_bytes"]) for row in rows if row["op"] in ("Load", "Store")
    )


def main() -> None:
    """Write the compact copy."""
    reference = load(Path(sys.argv[1]))
    DATA.parent.mkdir(exist_ok=True)
    modules = [json.dumps(asdict(module)) for module in reference.modules]
    configs = [f"{json.dumps(name)}: {json.dumps(config)}" for name, config in reference.configs.items()]
    lines = ",\n".join(modules), ",\n".join(configs)
    DATA.write_text('{"configs": {\n' + lines[1] + '\n},\n"modules": [\n' + lines[0] + "\n]}\n")
    print(f"{DATA}: {len(modules)} modules, {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()
