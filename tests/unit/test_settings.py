"""What a workspace wants commits to say."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

import pytest
import trio

from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import IntegrityError, MovedError, RefusedError, UsageError
from workspacefs.objects.commits import Provenance
from workspacefs.workspace.settings import (
    SETTINGS_KEY,
    Settings,
    change_settings,
    check_required,
    decode_settings,
    load_settings,
    parse_require,
)
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.demands import Demands


@pytest.fixture
def workspace() -> Workspace:
    return Workspace.create(MemoryBackend(secrets.token_hex(8)))


def test_nothing_is_required_at_first(workspace: Workspace) -> None:
    assert load_settings(workspace) == (Settings(), None)
    check_required(Settings(), Provenance(), {})


def test_settings_come_back_and_change(workspace: Workspace) -> None:
    """The latest of them, by whoever has seen the one before."""
    change_settings(workspace, Settings(("agent",)), None, changed_by="me")
    first, version = load_settings(workspace)
    change_settings(workspace, Settings(("agent", "run")), version, changed_by="me")

    assert first == Settings(("agent",))
    assert load_settings(workspace)[0] == Settings(("agent", "run"))


@pytest.mark.parametrize("has_seen", [False, True])
def test_change_over_an_unseen_one_is_refused(workspace: Workspace, has_seen: bool) -> None:
    """Of two that changed it at once, one is told."""
    if has_seen:
        change_settings(workspace, Settings(), None, changed_by="me")
    seen = load_settings(workspace)[1]
    change_settings(workspace, Settings(("run",)), seen, changed_by="me")

    with pytest.raises(MovedError):
        change_settings(workspace, Settings(("model",)), seen, changed_by="you")

    assert load_settings(workspace)[0] == Settings(("run",))


@pytest.mark.parametrize(
    ("provenance", "meta", "missing"),
    [
        (Provenance(), {}, ["agent", "ticket", "tool_call"]),
        (Provenance(agent="a"), {"ticket": "1"}, ["tool_call"]),
        (Provenance(agent=" ", tool_call="c"), {"ticket": " "}, ["agent", "ticket"]),
        (Provenance(tool_call="c"), {"agent": "a", "ticket": "1"}, ["agent"]),
        (Provenance(agent="a"), None, ["tool_call"]),
    ],
)
def test_refusal_says_what_is_missing_and_how_to_give_it(
    provenance: Provenance, meta: Mapping[str, str] | None, missing: list[str]
) -> None:
    """Flag and environment, or --meta."""
    ways = {
        "agent": "--agent NAME or WORKSPACEFS_AGENT",
        "tool_call": "--tool-call NAME or WORKSPACEFS_TOOL_CALL",
        "ticket": "--meta ticket=VALUE",
    }

    with pytest.raises(RefusedError) as caught:
        check_required(Settings(("agent", "ticket", "tool_call")), provenance, meta)

    assert caught.value.context["missing"] == ",".join(missing)
    told = str(caught.value)
    assert [key for key, way in ways.items() if way in told] == sorted(
        missing, key=list(ways).index
    )


def test_commit_that_says_all_is_taken() -> None:
    wanted = Settings(("agent", "model", "run", "ticket", "tool_call"))
    who = Provenance(agent="a", run="r", tool_call="t", model="m")

    check_required(wanted, who, {"ticket": "1"})


def test_keys_are_parsed() -> None:
    assert parse_require(" run,agent,,tool-call,ticket.id ") == (
        "agent", "run", "ticket.id", "tool_call",
    )  # fmt: skip
    assert parse_require("") == ()


@pytest.mark.parametrize("text", ["a b", "a=b", "-a", "workspacefs.start_ns", "a" * 101, "ä"])
def test_what_can_be_no_key_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_require(text)


def test_damage_is_told(workspace: Workspace) -> None:
    """Any byte changed, anything that is no document, members that are none."""
    change_settings(workspace, Settings(("agent",)), None, changed_by="me")
    good = workspace.backend.get(SETTINGS_KEY)
    other = json.loads(good)

    for value in (b"", b"[]", b"{}", good[:-1], good.replace(b"agent", b"agenu"), b"[" * 100_000):
        with pytest.raises(IntegrityError):
            decode_settings(value, url="x")
    with pytest.raises(RefusedError):
        decode_settings(json.dumps({**other, "format": 2}).encode(), url="x")
    assert decode_settings(good, url="x") == Settings(("agent",))


class FarBackend(MemoryBackend):
    """One whose answers cost a round trip."""

    is_local = False


def test_far_store_is_asked_once_a_minute() -> None:
    """As long as nothing is required; what is, is looked up each time."""
    name, now = secrets.token_hex(8), [0.0]
    workspace = Workspace.create(MemoryBackend(name))
    workspace.backend = FarBackend(name)
    asked: list[str] = []
    get = workspace.backend.get_versioned
    workspace.backend.get_versioned = lambda key: (asked.append(key), get(key))[1]  # type: ignore[method-assign]

    async def check() -> None:
        demands = Demands(workspace, Blocking(), monotonic_s=lambda: now[0])
        await demands.check(Provenance(), {})
        change_settings(workspace, Settings(("agent",)), None, changed_by="me")
        await demands.check(Provenance(), {})
        now[0] = 61.0
        for _ in range(2):
            with pytest.raises(RefusedError):
                await demands.check(Provenance(), {})
        change_settings(workspace, Settings(), load_settings(workspace)[1], changed_by="me")
        asked.clear()
        await demands.check(Provenance(), {})

    trio.run(check)

    assert asked == [SETTINGS_KEY]
