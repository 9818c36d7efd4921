"""Data directories: the files that `kwire format` writes, and checks of who may open them."""
