"""The consensus state machine (KIP-595, 630, 853, 996): events in, effects out; no I/O."""
