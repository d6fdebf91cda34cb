"""python -m dpsql"""

from dpsql.cli import main

main()
