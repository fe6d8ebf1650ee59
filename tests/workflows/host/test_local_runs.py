"""Local runs: what sessions tell the activities of their process."""

from __future__ import annotations

import uuid

from clew_workflows.host.local_runs import LOCAL_RUNS, LocalRuns


def test_a_viewer_who_came_before_the_call_is_known() -> None:
    """The query may be answered before the activity begins; one from before the call was scheduled does not count."""
    run_id = uuid.uuid4().hex
    with LOCAL_RUNS.serve(run_id):
        LOCAL_RUNS.tell(run_id, "followed")
        assert LOCAL_RUNS.count_follows(run_id) == 1
        LOCAL_RUNS.note_call(run_id)
        assert LOCAL_RUNS.count_follows(run_id) == 0
    LOCAL_RUNS.tell(run_id, "followed")
    assert LOCAL_RUNS.count_follows(run_id) == 0


def test_news_reach_those_who_listen_and_no_others() -> None:
    """Calls of other sessions hear nothing, and a call hears when its process has lost the session."""
    runs, heard, other = LocalRuns(), list[str](), list[str]()
    with runs.listen("a", heard.append), runs.listen("b", other.append):
        with runs.serve("a"):
            assert runs.is_served("a")
            runs.tell("a", "followed")
            runs.tell("a", "stopping")
        assert not runs.is_served("a")
    runs.tell("a", "stopping")
    assert (heard, other) == (["followed", "stopping", "left"], [])
