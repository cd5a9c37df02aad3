"""What commands share on a terminal: exit codes, arguments, progress bars, extras, and files written whole."""

# what a shell reports of a program that Ctrl-C ended
INTERRUPTED = 130
