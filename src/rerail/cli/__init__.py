"""The command line: parse, call the api, print, exit. One module per command or pair of commands."""
