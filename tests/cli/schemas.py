"""The schemas of docs/reference, and whether a document is as one of them says."""
import json
import pathlib

import jsonschema

SCHEMAS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "reference"
GROWING = ("top",)  # fields are added with each of its views


def load_schema(name):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return schema


def strict(schema):
    """A schema in which no object has a member that is not described."""
    if isinstance(schema, dict):
        inside = {key: strict(value) for key, value in schema.items()}
        if "properties" in inside:
            inside.setdefault("additionalProperties", False)
        return inside
    return [strict(one) for one in schema] if isinstance(schema, list) else schema


def validate(name, document):
    schema = load_schema(name)
    errors = sorted(jsonschema.Draft7Validator(schema if name in GROWING else strict(schema)).iter_errors(document), key=str)
    if errors:
        path = "/".join(map(str, errors[0].absolute_path))
        return f"{name}.schema.json does not fit at /{path}: {errors[0].message[:300]}"
    return None
