"""`python -m rerail`."""

from rerail.cli.main import main

main()
