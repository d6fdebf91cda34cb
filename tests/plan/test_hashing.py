"""What is remembered of a hash stays in its process: texts hash otherwise in another one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

from dpsql.plan.scalars import Call, Const, Field, Op, Ref
from dpsql.types import BOOLEAN, TEXT

_ASKED = """
import pickle, sys
from tests.plan.test_hashing import condition
received = pickle.load(sys.stdin.buffer)
assert received == condition() and hash(received) == hash(condition()) and received in {condition()}
"""


def condition() -> Call:
    return Call(Op.EQ, (Ref(Field(1, "state", TEXT)), Const("CA", TEXT)), BOOLEAN)


def test_equal_expressions_hash_alike_in_another_process() -> None:
    hashed = condition()
    assert hash(hashed) == hash(condition())
    subprocess.run([sys.executable, "-c", _ASKED], input=pickle.dumps(hashed), check=True, env={"PYTHONHASHSEED": "7"})


def test_a_changed_copy_has_a_hash_of_its_own() -> None:
    hashed = condition()
    hash(hashed)
    changed = replace(hashed, op=Op.NE)
    assert changed != hashed and hash(changed) != hash(hashed)
