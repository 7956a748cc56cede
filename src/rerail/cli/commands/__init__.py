"""The commands of `rerail`: one module each, named like its command, imported when it is called."""
