"""Checks responses and events with the published schema of Open Responses: one JSON object a line, from a file."""

import json
import sys

from openresponses_types import types
from pydantic import BaseModel, TypeAdapter, ValidationError

RESPONSE = TypeAdapter(types.ResponseResource)
BY_TYPE = {
    kind.value: TypeAdapter(event)
    for name, event in vars(types).items()
    if isinstance(event, type) and issubclass(event, BaseModel) and name.endswith("StreamingEvent")
    for kind in event.model_fields["type"].annotation
}
"""What validates an event, by its type."""


def check(line: str) -> str | None:
    """Describe what is wrong with a row; None: nothing."""
    row = json.loads(line)
    try:
        if row.get("object") == "response":
            RESPONSE.validate_python(row)
        elif (adapter := BY_TYPE.get(row["type"])) is None:
            return f"unknown event {row['type']}"
        else:
            adapter.validate_python(row)
    except ValidationError as error:
        return f"{row.get('type', 'response')}: {error}"
    return None


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        problems = [problem for line in file if (problem := check(line))]
    sys.stdout.write("\n".join(problems))
    sys.exit(bool(problems))
