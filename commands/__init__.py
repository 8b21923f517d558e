"""The subcommands of `launch.py`, one file each."""
