"""Records how many bytes are tokenized, altogether and by each workflow task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio import workflow

from clew_workflows.contract.tokens import ByteEstimate, Vocabulary


@dataclass
class Tokenized:
    """The bytes that have been tokenized.

    Attributes:
        total: All bytes, those of activities included.
        tasks: The bytes by workflow id and workflow task, which the length of its history names.
    """

    total: int = 0
    tasks: Counter[tuple[str, int]] = field(default_factory=Counter)

    def find_largest(self, workflow_id: str) -> int:
        """Find the most bytes that one task of a workflow has tokenized."""
        return max((size for (of, _), size in self.tasks.items() if of == workflow_id), default=0)


def record_tokenizing(monkeypatch: pytest.MonkeyPatch) -> Tokenized:
    """Record from now on how many bytes are tokenized in this process."""
    tokenized = Tokenized()
    for tokenizer in (ByteEstimate, Vocabulary):
        monkeypatch.setattr(tokenizer, "count", _record(tokenizer.count, tokenized))
    return tokenized


def _record(count: Any, tokenized: Tokenized) -> Any:
    def count_and_record(self: Any, text: str) -> Any:
        size = len(text.encode())
        tokenized.total += size
        if workflow.in_workflow():
            info = workflow.info()
            tokenized.tasks[info.workflow_id, info.get_current_history_length()] += size
        return count(self, text)

    return count_and_record
