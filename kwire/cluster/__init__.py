"""Several nodes on this machine, each in a process of its own: `kwire cluster`."""
