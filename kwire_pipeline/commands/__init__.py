"""The commands of `kwire-pipeline`, a module each with a function of its name.

Rules of this package: a command gets the configuration and returns an exit code, or raises Refusal
or Failure with one line; the command line imports only the module of the chosen command.
"""
