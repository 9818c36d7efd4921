"""The commands of `kwire-pipeline`, one module each, with a function of the same name.

Rules of this package: a command gets the configuration and returns an exit code, or raises Refusal
or Failure with one line; the command line imports only the chosen command's module.
"""
