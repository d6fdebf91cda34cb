"""Starts the process that starts processes which compile; see `nursery.py`."""

from dpsql.answering.compiling.nursery import main

main()
