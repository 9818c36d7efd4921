"""Data directories: what `kwire format` writes, and whose directories a node may open."""
