"""Several nodes on this machine, each in its own process: `kwire cluster`."""
