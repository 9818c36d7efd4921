"""The folder of a checkpoint, in memory."""


class Files:
    """The files of a folder, in memory."""

    url = "lake/checkpoint"

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.is_there = False

    def exists(self) -> bool:
        return self.is_there

    def delete_empty(self) -> None:
        self.is_there = bool(self.texts)

    def read(self, name: str) -> str | None:
        return self.texts.get(name)

    def names(self, name: str) -> list[str]:
        depth = name.count("/") + 1
        below = [text for text in self.texts if text.startswith(f"{name}/")]
        return sorted({text.split("/")[depth] for text in below})

    def write(self, name: str, text: str) -> None:
        self.texts[name] = text

    def create(self, name: str, text: str) -> bool:
        self.is_there = True
        return self.texts.setdefault(name, text) is text

    def swap(self, name: str, old: str, new: str) -> bool:
        if self.texts.get(name) != old:
            return False
        self.texts[name] = new
        return True

    def delete(self, name: str) -> None:
        del self.texts[name]
