"""Writes src/api/types.ts from the server's models, so that the page and the API cannot drift apart.

python web/shapes.py
"""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from stretto.server import models
from stretto.server.spec import Strict

TARGET = Path(__file__).resolve().parent / "src" / "api" / "types.ts"
HEAD = "// Written by web/shapes.py from the server's models: change those, then run it again.\n"
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def written() -> str:
    """The whole file."""
    shapes = [one for _, one in inspect.getmembers(models, inspect.isclass) if issubclass(one, BaseModel) and one is not BaseModel]
    enums = [one for _, one in inspect.getmembers(models, inspect.isclass) if issubclass(one, StrEnum) and one is not StrEnum]
    _, schema = models_json_schema([(one, "serialization") for one in shapes], ref_template="{model}")
    known = {**schema["$defs"]}
    for enum in enums:
        known.setdefault(enum.__name__, {"enum": [str(one) for one in enum]})
    asked = {one.__name__ for one in Strict.__subclasses__()}
    return HEAD + "".join(_declared(name, known[name], asked=name in asked) for name in sorted(known) if name != "Strict")


def _declared(name: str, schema: dict[str, Any], *, asked: bool) -> str:
    """Requests may leave out what has a default; answers have everything."""
    if "properties" not in schema:
        return f"\nexport type {name} = {_type(schema)};\n"
    required = set(schema.get("required", ()) if asked else schema["properties"])
    lines: list[str] = []
    for key, value in schema["properties"].items():
        if "description" in value:
            lines.append(f"  /** {value['description']} */")
        lines.append(f"  {key}{'' if key in required else '?'}: {_type(value)};")
    return f"\nexport interface {name} {{\n" + "\n".join(lines) + "\n}\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"]
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{one}"' for one in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        item = _type(schema.get("items", {}))
        return f"({item})[]" if "|" in item else f"{item}[]"
    if schema.get("type") == "object":
        extra = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        value = _type(extra) if isinstance(extra, dict) else "unknown"
        return f"Record<string, {value}>"
    return PLAIN.get(schema.get("type", ""), "unknown")


if __name__ == "__main__":
    TARGET.write_text(written())
