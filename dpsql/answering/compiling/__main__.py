"""Starts the fork server for compilations; see `nursery.py`."""

from dpsql.answering.compiling.nursery import main

main()
