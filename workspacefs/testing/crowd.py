"""Many processes that land commits on one branch, each with files of its own.

    python -m workspacefs.testing.crowd URL BRANCH NUMBER ROUNDS STATE_DIR

Prints "ready", and begins when standard input ends. Then a JSON document for each landing: when it
was done, and how long it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from workspacefs.backend.open import open_backend
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.merge.landing import LandingMerge
from workspacefs.objects.commits import ChangeCounts, Commit, Provenance
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.statedir import StateDir
from workspacefs.trees.edit import edit_directory
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.publish import seal_commit
from workspacefs.workspace.turns import turn
from workspacefs.workspace.workspace import Workspace


def plant(url: str, branch: str = "main") -> Workspace:
    """Make a workspace with a commit of one file on a branch, for a crowd to begin from."""
    workspace = Workspace.create(open_backend(url))
    now_ns = workspace.clock.now_ns()
    root = Entry(b"", 0o40755, 0, 0, 0, now_ns, now_ns, ROOT_FILE_ID, 2, Subtree())
    empty = Commit(root=root, parents=(), message="", time_ns=now_ns)
    ref, _ = _commit(workspace, None, empty, b"base", workspace.new_file_ids().allocate())
    land_commit(workspace, ref, branch, moved_by="plant")
    return workspace


def land_rounds(
    url: str,
    branch: str,
    number: int,
    rounds: int,
    state_dir: str,
    wait: Callable[[], object],
) -> Iterator[dict[str, object]]:
    """Make `rounds` commits on top of each other, each a new file, and land each; yield what each
    took. It begins when `wait` returns. See the module.
    """
    workspace = Workspace.open(url)
    ref, commit = workspace.resolve(branch)
    name = f"w{number}"
    file_ids = workspace.new_file_ids()
    wait()
    for round_number in range(rounds):
        began_s, at_s = time.monotonic(), time.time()
        file = f"{name}-{round_number}".encode("ascii")
        ref, commit = _commit(workspace, ref, commit, file, file_ids.allocate())
        joining = LandingMerge(workspace, name=name, provenance=Provenance(agent=name))
        with turn(StateDir(state_dir), workspace.id, branch):
            landed = land_commit(workspace, ref, branch, moved_by=name, join=joining.join)
        if landed is None:
            raise AssertionError(f"{name} is in conflict, with files that are its own")
        yield {
            "worker": number,
            "round": round_number,
            "commit": ref.id.hex(),
            "began_s": at_s,
            "took_s": time.monotonic() - began_s,
            "done_s": time.time(),
        }


def _commit(
    workspace: Workspace, parent: Ref | None, before: Commit, name: bytes, file_id: FileId
) -> tuple[Ref, Commit]:
    now_ns = workspace.clock.now_ns()
    entry = Entry(name, 0o100644, 0, 0, len(name), now_ns, now_ns, file_id, 1, name)
    with workspace.new_writer(is_small=True) as writer:
        subtree = edit_directory(
            before.root.subtree, {name: entry}, workspace.store, writer, workspace.tree_params
        )
        commit = Commit(
            root=before.root._replace(content=subtree, mtime_ns=now_ns),
            parents=() if parent is None else (parent,),
            message=name.decode(),
            time_ns=now_ns,
            provenance=Provenance(agent=name.decode().partition("-")[0]),
            changes=ChangeCounts(added=1),
        )
        return seal_commit(writer, commit).ref, commit


def run_crowd(
    url: str, workers: int, rounds: int, state_dirs: Sequence[str], environ: Mapping[str, str]
) -> list[dict[str, object]]:
    """Run a crowd that begins at one moment; return all its rows, in the order they were done.

    Args:
        url: Of a store that plant() made.
        workers: Processes.
        rounds: Landings of each.
        state_dirs: State directories, dealt out in turn; those with the same one are one machine.
        environ: Of the processes.

    Raises:
        AssertionError: One failed; its standard error is ours.
    """
    crowd = [
        subprocess.Popen(
            [
                sys.executable, "-m", "workspacefs.testing.crowd", url, "main", str(number),
                str(rounds), state_dirs[number % len(state_dirs)],
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environ),
        )
        for number in range(workers)
    ]  # fmt: skip
    for process in crowd:
        assert process.stdout is not None
        process.stdout.readline()
    for process in crowd:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None  # communicate() would use it
    outputs = [process.communicate()[0] for process in crowd]
    if any(process.returncode for process in crowd):
        raise AssertionError(f"{sum(bool(one.returncode) for one in crowd)} workers failed")
    rows = [json.loads(line) for output in outputs for line in output.splitlines()]
    return sorted(rows, key=lambda row: row["done_s"])


def main() -> None:
    """Land as the arguments say."""
    url, branch, number, rounds, state_dir = sys.argv[1:]

    def wait() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()

    for row in land_rounds(url, branch, int(number), int(rounds), state_dir, wait):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
