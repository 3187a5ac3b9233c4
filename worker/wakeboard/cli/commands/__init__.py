"""The commands, a module per noun: words of the command line become calls of functions elsewhere."""
