"""Decoders refuse everything that we would not have written, with IntegrityError and nothing else.

After git's fsck messages (fsck.h): bad names, order, kinds, sizes, references.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.objects.chunk_lists import decode_chunk_list, encode_chunk_list
from workspacefs.objects.commits import Commit, Signature, decode_commit, encode_commit
from workspacefs.objects.encoding import encode
from workspacefs.objects.entry import Chunks, Device, Entry, LongContent, Subtree, Totals
from workspacefs.objects.nodes import (
    BranchItem,
    LeafNode,
    Node,
    decode_node,
    encode_branch,
    encode_leaf,
)
from workspacefs.objects.refs import ChunkRef, Ref

ID = bytes(range(32))
REG = stat.S_IFREG | 0o644
DIR = stat.S_IFDIR | 0o755


def row(**changed: object) -> list[object]:
    fields: dict[str, object] = {
        "name": b"a",
        "mode": REG,
        "uid": 0,
        "gid": 0,
        "size": 3,
        "mtime": 1,
        "ctime": 2,
        "file_id": 7,
        "nlink": 1,
        "content": b"abc",
        "xattrs": [],
    }
    assert changed.keys() <= fields.keys()
    return list((fields | changed).values())


def read_all(body: bytes) -> Node:
    node = decode_node(body, (), what="tree node")
    if isinstance(node, LeafNode):
        list(node.iter_entries())
    return node


HOSTILE_ROWS: dict[str, list[list[object]]] = {
    "empty name": [row(name=b"")],
    "dot": [row(name=b".")],
    "dot dot": [row(name=b"..")],
    "slash": [row(name=b"a/b")],
    "only slash": [row(name=b"/")],
    "absolute": [row(name=b"/etc")],
    "nul": [row(name=b"a\0b")],
    "256 bytes": [row(name=b"x" * 256)],
    "text name": [row(name="a")],
    "integer name": [row(name=1)],
    "nil name": [row(name=None)],
    "array name": [row(name=[b"a"])],
    "dot dot among others": [row(name=b"-"), row(name=b".."), row(name=b"a")],
    "duplicate": [row(), row()],
    "unsorted": [row(name=b"b"), row(name=b"a")],
    "no kind": [row(mode=0o644)],
    "unknown kind": [row(mode=0o030644)],
    "mode beyond 16 bits": [row(mode=REG | 1 << 16)],
    "negative mode": [row(mode=-1)],
    "text mode": [row(mode="0644")],
    "boolean mode": [row(mode=True)],
    "negative uid": [row(uid=-1)],
    "huge uid": [row(uid=1 << 32)],
    "negative gid": [row(gid=-1)],
    "negative size": [row(size=-3)],
    "huge size": [row(size=1 << 63)],
    "boolean size": [row(size=True, content=b"x")],
    "float time": [row(mtime=1.5)],
    "time too large": [row(ctime=1 << 63)],
    "file id zero": [row(file_id=0)],
    "file id negative": [row(file_id=-1)],
    "file id beyond 63 bits": [row(file_id=1 << 63)],
    "no links": [row(nlink=0)],
    "huge links": [row(nlink=1 << 32)],
    "ten fields": [row()[:10]],
    "twelve fields": [[*row(), 0]],
    "row is bytes": [b"row"],  # type: ignore[list-item]
    "row is nil": [None],  # type: ignore[list-item]
    "inline shorter than size": [row(size=4)],
    "inline longer than size": [row(size=2)],
    "inline empty": [row(size=0, content=b"")],
    "inline too long": [row(size=129, content=b"x" * 129)],
    "size without content": [row(content=None)],
    "text content": [row(content="abc")],
    "file with device number": [row(size=0, content=5)],
    "file with subtree": [row(size=0, content=[None, 0, 0, 0, 0])],
    "no chunks": [row(size=0, content=[])],
    "chunk sum too small": [row(size=4, content=[ID, 3])],
    "chunk sum too large": [row(size=4, content=[ID, 3, ID, 2])],
    "chunk of no bytes": [row(size=3, content=[ID, 3, ID, 0])],
    "chunk of negative size": [row(size=3, content=[ID, 5, ID, -2])],
    "chunk without size": [row(size=3, content=[ID, 3, ID])],
    "chunk id too short": [row(size=3, content=[ID[:31], 3])],
    "chunk id of text": [row(size=3, content=["x" * 32, 3])],
    "17 chunks": [row(size=17, content=[ID, 1] * 17)],
    "list id too long": [row(size=3, content=[ID + b"x"])],
    "link without target": [row(mode=stat.S_IFLNK | 0o777, size=0, content=b"")],
    "link with nil": [row(mode=stat.S_IFLNK | 0o777, size=0, content=None)],
    "link with nul": [row(mode=stat.S_IFLNK | 0o777, content=b"a\0b")],
    "link too long": [row(mode=stat.S_IFLNK | 0o777, size=4096, content=b"x" * 4096)],
    "link of wrong size": [row(mode=stat.S_IFLNK | 0o777, size=9)],
    "link with chunks": [row(mode=stat.S_IFLNK | 0o777, content=[ID, 3])],
    "fifo with content": [row(mode=stat.S_IFIFO | 0o644)],
    "fifo with size": [row(mode=stat.S_IFIFO | 0o644, content=None)],
    "socket with chunks": [row(mode=stat.S_IFSOCK | 0o644, content=[ID, 3])],
    "device without number": [row(mode=stat.S_IFCHR | 0o644, size=0, content=None)],
    "device number negative": [row(mode=stat.S_IFBLK | 0o644, size=0, content=-1)],
    "device number huge": [row(mode=stat.S_IFBLK | 0o644, size=0, content=1 << 32)],
    "device number boolean": [row(mode=stat.S_IFBLK | 0o644, size=0, content=True)],
    "directory with nil": [row(mode=DIR, size=0, content=None)],
    "directory inline": [row(mode=DIR)],
    "directory with size": [row(mode=DIR, content=[None, 0, 0, 0, 0])],
    "directory root too short": [row(mode=DIR, size=0, content=[b"x", 0, 0, 0, 0])],
    "directory root of text": [row(mode=DIR, size=0, content=["x" * 32, 0, 0, 0, 0])],
    "directory totals negative": [row(mode=DIR, size=0, content=[ID, -1, 0, 0, 0])],
    "directory totals missing": [row(mode=DIR, size=0, content=[ID, 1, 0, 0])],
    "directory totals boolean": [row(mode=DIR, size=0, content=[ID, True, 0, 0, 0])],
    "empty directory with totals": [row(mode=DIR, size=0, content=[None, 1, 0, 0, 0])],
    "xattrs nil": [row(xattrs=None)],
    "xattr without value": [row(xattrs=[b"user.a"])],
    "xattr empty name": [row(xattrs=[b"", b"v"])],
    "xattr nul in name": [row(xattrs=[b"a\0", b"v"])],
    "xattr long name": [row(xattrs=[b"x" * 256, b"v"])],
    "xattr text value": [row(xattrs=[b"user.a", "v"])],
    "xattr huge value": [row(xattrs=[b"user.a", bytes(65537)])],
    "xattr twice": [row(xattrs=[b"user.a", b"1", b"user.a", b"2"])],
    "xattr unsorted": [row(xattrs=[b"user.b", b"1", b"user.a", b"2"])],
}


@pytest.mark.parametrize("rows", HOSTILE_ROWS.values(), ids=HOSTILE_ROWS.keys())
def test_hostile_leaf_is_refused(rows: list[list[object]]) -> None:
    """Each of these is damage, named as such, whoever wrote it."""
    with pytest.raises(IntegrityError, match="tree node"):
        read_all(encode([0, rows]))


def item(**changed: object) -> list[object]:
    fields: dict[str, object] = {"last_name": b"m", "id": ID, "entries": 5}
    totals = changed.pop("totals", [5, 0, 9, 0])
    assert isinstance(totals, list)
    return [*(fields | changed).values(), *totals]


HOSTILE_NODES: dict[str, object] = {
    "nil": None,
    "integer": 5,
    "empty array": [],
    "three fields": [0, [], []],
    "level nil": [None, []],
    "level boolean": [False, [row()]],
    "level negative": [-1, [item()]],
    "level 16": [16, [item()]],
    "rows nil": [0, None],
    "rows bytes": [0, b"abc"],
    "no children": [1, []],
    "child short": [1, [item()[:6]]],
    "child long": [1, [[*item(), 0]]],
    "child is nil": [1, [None]],
    "child name empty": [1, [item(last_name=b"")]],
    "child name dot dot": [1, [item(last_name=b"..")]],
    "child name slash": [1, [item(last_name=b"a/b")]],
    "child name text": [1, [item(last_name="m")]],
    "child id short": [1, [item(id=ID[:5])]],
    "child id nil": [1, [item(id=None)]],
    "child empty": [1, [item(entries=0)]],
    "child entries negative": [1, [item(entries=-5)]],
    "child entries text": [1, [item(entries="5")]],
    "child totals negative": [1, [item(totals=[0, 0, -1, 0])]],
    "children unsorted": [1, [item(last_name=b"n"), item(last_name=b"m")]],
    "children twice": [1, [item(), item()]],
}


@pytest.mark.parametrize("value", HOSTILE_NODES.values(), ids=HOSTILE_NODES.keys())
def test_hostile_node_is_refused(value: object) -> None:
    """The frame of a node is checked before any row is."""
    with pytest.raises(IntegrityError, match="tree node"):
        read_all(encode(value))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        encode([0, [row()]])[:-1],
        encode([0, [row()]]) + b"\0",
        encode([0, [row()]]).replace(b"\x92\x00", b"\x92\xcc\x00", 1),
        b"\xdc\x00\x02" + encode([0, [row()]])[1:],
        b"\x91" * 2000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb({1: 2}),
        msgpack.packb([0, [msgpack.ExtType(4, b"x")]]),
        msgpack.packb([0, [msgpack.Timestamp(1, 1)]]),
        msgpack.packb([0, {"a": 1}]),
        msgpack.packb([0, float("nan")]),
        b"\x92\x00\xa1\xff",
    ],
    ids=[
        "empty",
        "reserved byte",
        "truncated",
        "trailing byte",
        "long spelling of an integer",
        "long spelling of an array",
        "deep nesting",
        "array of 4 G items",
        "bytes of 4 GiB",
        "map",
        "extension",
        "timestamp",
        "map inside",
        "not a number",
        "text that is not UTF-8",
    ],
)
def test_other_spellings_are_refused(body: bytes) -> None:
    """Exactly one byte string stands for a node."""
    with pytest.raises(IntegrityError, match="tree node"):
        read_all(body)


def entries() -> list[Entry]:
    chunks = tuple(ChunkRef(bytes([n]) * 32, n + 1) for n in range(3))
    common: tuple[Any, ...] = (1, 2, FileId(9), 1)
    return [
        Entry(b"a", REG, 0, 0, 0, *common),
        Entry(b"b", REG, 0, 0, 2, *common, b"hi", ((b"user.a", b"1"),)),
        Entry(b"c", REG, 0, 0, 6, *common, Chunks(chunks)),
        Entry(b"d", REG, 0, 0, 99, *common, LongContent(Ref(ID))),
        Entry(b"e", DIR, 0, 0, 0, *common, Subtree(Ref(ID), Totals(1, 2, 3, 1))),
        Entry(b"f", DIR, 0, 0, 0, *common, Subtree()),
        Entry(b"g", stat.S_IFLNK | 0o777, 0, 0, 1, *common, b"x"),
        Entry(b"h", stat.S_IFCHR | 0o600, 0, 0, 0, *common, Device(259)),
        Entry(b"i", stat.S_IFIFO | 0o600, 0, 0, 0, -5, 2, FileId(2**63 - 1), 2),
    ]


def commit() -> Commit:
    root = Entry(b"", DIR, 0, 0, 0, 1, 2, FileId(1), 2, Subtree(Ref(ID), Totals(1, 2, 3, 1)))
    return Commit(
        root=root,
        parents=(Ref(ID),),
        message="first",
        time_ns=5,
        meta=(("a", "b"), ("c", "")),
        notes=root._replace(content=Subtree()),
        signature=Signature(ID, ID + ID),
    )


DECODERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "leaf": (encode_leaf(entries())[0], read_all),
    "branch": (
        encode_branch(
            1,
            [
                BranchItem(b"m", Ref(ID), 5, Totals(5, 0, 9, 0)),
                BranchItem(b"z", Ref(ID), 6, Totals(6, 0, 9, 2)),
            ],
        )[0],
        read_all,
    ),
    "chunk list": (
        encode_chunk_list([ChunkRef(ID, 5), ChunkRef(ID, 6)])[0],
        lambda body: decode_chunk_list(body, (), what="chunk list"),
    ),
    "commit": (encode_commit(commit())[0], lambda body: decode_commit(body, (), what="commit")),
}


def test_what_was_written_is_read() -> None:
    """All kinds of entries, references and commits survive a round trip."""
    leaf, refs = encode_leaf(entries())
    node = decode_node(leaf, (), what="tree node")
    body, _ = encode_commit(commit())

    assert isinstance(node, LeafNode)
    assert list(node.iter_entries()) == entries()
    assert [ref.id for ref in refs] == [bytes([n]) * 32 for n in range(3)] + [ID, ID]
    assert decode_commit(body, (), what="commit") == commit()


def only_integrity_errors(decode: Callable[[bytes], object], body: bytes) -> None:
    try:
        decode(body)
    except IntegrityError:
        pass


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.data())
@settings(deadline=None)
def test_mutated_bytes_raise_integrity_error_only(kind: str, data: st.DataObject) -> None:
    """Flips, cuts, insertions and splices of good bytes decode or are refused; nothing else."""
    good, decode = DECODERS[kind]
    body = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "overwrite", "double"])):
            case "flip" if body:
                body[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del body[at:]
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            case "overwrite":
                patch = data.draw(st.binary(min_size=1, max_size=8))
                body[at : at + len(patch)] = patch
            case "double":
                body += body[at:]

    only_integrity_errors(decode, bytes(body))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.just(ID)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=40,
)


@pytest.mark.parametrize("kind", DECODERS)
@given(body=st.binary(max_size=300) | values.map(lambda value: bytes(msgpack.packb(value))))
@settings(deadline=None)
def test_arbitrary_bytes_raise_integrity_error_only(kind: str, body: bytes) -> None:
    """No input makes a decoder crash."""
    only_integrity_errors(DECODERS[kind][1], body)


@given(index=st.integers(0, 8), field=st.integers(0, 10), value=values)
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_field_is_read_or_refused(index: int, field: int, value: object) -> None:
    """Whatever stands in one field of one row, the rest of the code never sees it unchecked."""
    fields = msgpack.unpackb(DECODERS["leaf"][0])
    fields[1][index][field] = value

    only_integrity_errors(read_all, encode(fields))


@given(field=st.integers(0, 6), value=values)
@settings(deadline=None, max_examples=300)
def test_any_value_in_any_field_of_a_commit_is_read_or_refused(field: int, value: object) -> None:
    """The same for commits."""
    fields = msgpack.unpackb(DECODERS["commit"][0])
    fields[field] = value

    only_integrity_errors(DECODERS["commit"][1], encode(fields))
