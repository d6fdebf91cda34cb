"""Compiling behind a fence: steps, time and memory are limited, and whoever no longer waits ends it."""

from dpsql.answering.compiling.compiler import Compiler

__all__ = ["Compiler"]
