"""The reference of all keys as Markdown tables, for docs/pipeline.md."""

from kwire_pipeline.config.declare import Key, keys
from kwire_pipeline.config.model import Pipeline


def reference() -> str:
    """Return one table per section, with the keys in file order."""
    tables = {"": [key for key in keys(Pipeline) if "." not in key.name]}
    for key in keys(Pipeline):
        if "." in key.name:
            tables.setdefault(key.name.rpartition(".")[0], []).append(key)
    return "\n".join(_table(name, members) for name, members in tables.items())


def _table(section: str, members: list[Key]) -> str:
    lines = [
        f"### {f'`{section}`' if section else 'Top of the file'}\n",
        "| key | type | default | meaning |\n|---|---|---|---|",
    ]
    lines += [_row(key) for key in members]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    name = key.name.rpartition(".")[2]
    default = "required" if key.required else f"`{key.default}`" if key.default else ""
    kind = key.kind.replace("|", "\\|")
    if key.section is not None:
        default = "required" if key.required else ""
        kind = f"[section](#{key.name.replace('.', '').lower()})"
    if key.sections is not None:
        kind = f"[names to sections](#{key.name.replace('.', '').lower()}name)"
    return f"| `{name}` | {kind} | {default} | {key.meaning} |"
