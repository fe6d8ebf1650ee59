"""Plans: the actions of callers and the faults of one round, made from a seed. A plan is a value that can shrink."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.support.proxy import SPLITS

CALLS = {
    "message": 34, "steer": 6, "inject": 4, "signal": 8, "cancel": 4, "operate": 9, "configure": 3, "summarize": 2,
    "resolve": 12, "submit": 8, "hibernate": 2, "close": 1, "fork": 3, "checkpoint": 2, "import": 2, "delete": 2,
    "repeat": 6, "read": 7, "follow": 6, "list": 1,
    "post": 9, "stream": 5, "upload": 3, "peek": 1, "burn": 2,
}  # fmt: skip
"""What callers do, by how often."""
BY_WEB = ("post", "upload", "peek", "burn")
"""What the callers of a tenant's sessions do over HTTP. Operators follow all sessions (`stream`)."""
ENDS = ("hibernate", "close")
"""What ends a session, until its next caller opens it again."""
BEHAVIOURS = {
    "say": 20, "note": 10, "charge": 10, "both": 8, "flaky": 4, "wire": 6, "order": 6, "nap": 5, "big": 3, "slow": 8,
    "loop": 3, "break": 2, "odd": 3, "delegate": 6, "rude": 3, "unchecked": 1, "leak": 3, "down": 6, "form": 3,
    "misform": 4, "look": 12,
}  # fmt: skip
"""What a message asks of the scripted model, or of the hooks, by how often."""
BEHAVIOURS_BY_WEB = {"say": 8, "note": 3, "charge": 3, "slow": 4, "rude": 1, "leak": 1}
"""What those ask that are sent over HTTP."""
WITH_SETTINGS = ("loop", "down", "form", "misform")
"""Behaviours of messages with settings of their own, which cannot join a run."""
PROVIDER_FAULTS = (
    "reset", "stall", "limit-seconds", "limit-date", "error", "cut", "garbage", "redirect", "malformed", "huge",
)  # fmt: skip
LIVE_FAULTS = ("kill", "pause", "empty", *SPLITS)
"""Those of the live channel's server, and of the way to it."""
STORE_FAULTS = ("fail", "slow", "reset", "lost-answer", "stale", "lost-write")
FAULT_PAUSES = {
    "kill": 22.0, "stop": 26.0, "server": 70.0, "provider": 9.0, "store": 14.0, "clock": 40.0, "service": 25.0,
    "live": 18.0,
}  # fmt: skip
"""Mean seconds between two faults of a kind."""
CLOCK = "clock"
"""The fault that needs Debian's libfaketime."""
ROTATE = "rotate"
"""The change of the keys in the middle of an encrypted round: a kind of its own."""
OFFSPRING = ("fork", "checkpoint", "import")
"""What makes another session, which has callers then."""
MAKING = (*OFFSPRING, "burn")
"""What makes another session. One that was burnt has been deleted, too."""
CALL_PAUSE = 0.4
"""Mean seconds between two actions of callers."""
TENANT = "acme"
SERVED = (f"{TENANT}:web-1", f"{TENANT}:web-2")
"""The sessions of the service's tenant."""
SESSIONS = ("plain-1", "plain-2", *SERVED, "boss-1", "boss-2")
"""The sessions that exist from the beginning. Those named `boss` have an agent with a subagent."""
WORKERS = 3


@dataclass(frozen=True)
class Action:
    """One action of a caller, or one fault.

    Attributes:
        number: Its number, which makes its ids: they stay the same in a shrunk plan.
        at: Seconds after the beginning of the round.
        kind: A word of `CALLS` or of `FAULT_PAUSES`, or `ROTATE`.
        session: The session of a call; a session that an action makes is named by the action.
        values: Its other choices, which depend on the kind.
    """

    number: int
    at: float
    kind: str
    session: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault, or another action on processes."""
        return self.kind in FAULT_PAUSES or self.kind == ROTATE

    @property
    def family(self) -> str:
        """Its kind, with the kind of the fault where there are several."""
        return f"{self.kind} {self.values['fault']}" if "fault" in self.values else self.kind


@dataclass(frozen=True)
class Plan:
    """The actions of a round.

    Attributes:
        seed: The seed that it was made from.
        seconds: The seconds of the round, without its start and its end.
        actions: The actions in their order.
        encrypts: Whether all processes encrypt.
    """

    seed: int
    seconds: float
    actions: tuple[Action, ...]
    encrypts: bool = False

    @property
    def families(self) -> list[str]:
        """The families of its actions, each once."""
        return sorted({action.family for action in self.actions})

    def keep(self, actions: Iterable[Action]) -> Plan:
        """Make a plan with these actions alone, which ends soon after the last of them."""
        kept = tuple(actions)
        last = max((action.at for action in kept), default=0.0)
        return replace(self, actions=kept, seconds=min(self.seconds, last + 1))

    def dump(self) -> str:
        """Write the plan as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def load(cls, text: str) -> Plan:
        """Read a plan that `dump` has written."""
        value = json.loads(text)
        actions = tuple(Action(**action) for action in value["actions"])
        return cls(value["seed"], value["seconds"], actions, value["encrypts"])


def make_plan(seed: int, seconds: float, *, clocks: bool = True) -> Plan:
    """Make the plan of a round. Equal seeds and times make equal plans. Those of even seeds encrypt.

    Args:
        seed: The seed.
        seconds: The seconds of the round.
        clocks: Whether clocks jump. Else the plan is the same without that.
    """
    chance, encrypts = random.Random(f"chaos-{seed}"), seed % 2 == 0
    moments = [(at, "call") for at in _draw_moments(chance, CALL_PAUSE, seconds)]
    for kind, pause in FAULT_PAUSES.items():
        moments += [(at, kind) for at in _draw_moments(chance, pause, seconds)]
    if encrypts:
        moments.append((round(seconds * 0.4, 2), ROTATE))
    sessions: list[str] = [*SESSIONS]
    actions = []
    for number, (at, kind) in enumerate(sorted(moments)):
        if kind == "call":
            action = _make_call(chance, number, at, sessions)
            if action.kind in OFFSPRING:
                sessions.append(name_offspring(action))
            elif action.kind == "delete":
                sessions.remove(action.session)
        else:
            action = Action(number, at, kind, values=_choose_fault(chance, kind))
        if clocks or kind != CLOCK:
            actions.append(action)
    return Plan(seed, seconds, tuple(actions), encrypts)


def name_offspring(action: Action) -> str:
    """Name the session that an action makes. Those that are made over HTTP are the tenant's."""
    name = f"{action.kind}-{action.number}"
    return f"{TENANT}:{name}" if action.kind in BY_WEB else name


def _draw_moments(chance: random.Random, pause: float, seconds: float) -> list[float]:
    moments: list[float] = []
    at = chance.expovariate(1 / pause)
    while at < seconds:
        moments.append(round(at, 2))
        at += chance.expovariate(1 / pause)
    return moments


def _choose(chance: random.Random, weights: Mapping[str, int]) -> str:
    return chance.choices(tuple(weights), tuple(weights.values()))[0]


def _make_call(chance: random.Random, number: int, at: float, sessions: list[str]) -> Action:
    kind, offspring = _choose(chance, CALLS), sessions[len(SESSIONS) :]
    if kind == "delete" and not offspring:
        kind = "read"
    values: dict[str, Any] = {"seed": chance.randrange(2**32)}
    if kind == "post":
        values["behaviour"] = _choose(chance, BEHAVIOURS_BY_WEB)
    if kind == "message":
        values["behaviour"] = _choose(chance, BEHAVIOURS)
        modes = ("queue", "queue", "queue", "reject", "interrupt", "steer")
        values["on_busy"] = chance.choice(modes[:-1] if values["behaviour"] in WITH_SETTINGS else modes)
    # Most calls meet on a few sessions; the newest offspring gets its share.
    session = chance.choice(
        SERVED if kind in BY_WEB else offspring if kind == "delete" else (*SESSIONS, *SESSIONS, *sessions[-3:])
    )
    return Action(number, at, kind, session, values)


def _choose_fault(chance: random.Random, kind: str) -> dict[str, Any]:
    match kind:
        case "rotate":
            return {}
        case "kill":
            return {"worker": chance.randrange(WORKERS), "seconds": round(chance.uniform(0, 6), 1)}
        case "stop":
            # Workers' heartbeats are missed after 8 seconds, workflow tasks after 10.
            return {"worker": chance.randrange(WORKERS), "seconds": round(chance.uniform(1, 14), 1)}
        case "server":
            return {"seconds": round(chance.uniform(0, 4), 1)}
        case "provider":
            fault = chance.choice(PROVIDER_FAULTS)
            return {"fault": fault, "seconds": round(chance.uniform(2, 12), 1), "share": chance.choice((0.3, 0.6, 1))}
        case "service":
            return {"how": chance.choice(("kill", "drain", "stop")), "seconds": round(chance.uniform(0, 5), 1)}
        case "live":
            # Viewers wait 7 seconds for an answer.
            return {"how": chance.choice(LIVE_FAULTS), "seconds": round(chance.uniform(0, 12), 1)}
        case "store":
            fault = chance.choice(STORE_FAULTS)
            return {"fault": fault, "seconds": round(chance.uniform(3, 18), 1), "share": chance.choice((0.3, 0.6, 1))}
        case _:
            offset = chance.choice((-86_400, -3600, -30, 30, 3600, 86_400, 40 * 86_400))
            return {"worker": chance.randrange(WORKERS), "offset": offset, "seconds": round(chance.uniform(5, 20), 1)}


Breaks = Callable[[Plan], Awaitable[bool]]
"""Whether a plan still breaks a promise. It may be wrong now and then: processes are not deterministic."""


async def shrink(plan: Plan, breaks: Breaks, seconds: float) -> Plan:
    """Make a plan smaller while it breaks a promise, for at most so many seconds and one more try."""
    give_up_at = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() > give_up_at

    plain = replace(plan.keep(action for action in plan.actions if action.kind != ROTATE), encrypts=False)
    if plan.encrypts and not is_over() and await breaks(plain):
        plan = plain
    for family in plan.families:
        candidate = plan.keep(action for action in plan.actions if action.family != family)
        if not is_over() and len(candidate.actions) < len(plan.actions) and await breaks(candidate):
            plan = candidate
    size = len(plan.actions) // 2
    while size and not is_over():
        start, smaller = 0, False
        while start < len(plan.actions) and not is_over():
            rest: tuple[Action, ...] = plan.actions[:start] + plan.actions[start + size :]
            candidate = plan.keep(rest)
            if await breaks(candidate):
                plan, smaller = candidate, True
            else:
                start += size
        size = min(size, len(plan.actions)) if smaller and size == 1 else size // 2
    return plan
