"""Data directories: the files that `kwire format` writes, and the checks of who may open them."""
