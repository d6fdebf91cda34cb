"""Compilation with limits on steps, time and memory, in processes that can be killed."""

from dpsql.answering.compiling.compiler import Compiler

__all__ = ["Compiler"]
