"""Shows the functions that the compiler generates: ``python -m kwire.codec show fetch 13``.

Prints the source of the decoders and encoders of an API's request and response, or of a single
message class: ``python -m kwire.codec show TransactionLogValue 1``.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules

from kwire.codec import messages
from kwire.codec.emit_decode import decoder_source
from kwire.codec.emit_encode import encoder_source
from kwire.codec.schema import spec_of

_USAGE = "usage: python -m kwire.codec show MODULE|MESSAGE VERSION\n"


def _in_module(name: str) -> list[type]:
    values = vars(import_module(f"{messages.__name__}.{name}")).values()
    return [value for value in values if hasattr(value, "__kwire__")]


def _messages_of(name: str) -> list[type]:
    """Return the messages of a module, or the one message with this name."""
    modules = [module.name for module in iter_modules(messages.__path__)]
    if name in modules:
        return _in_module(name)
    return [cls for module in modules for cls in _in_module(module) if cls.__name__ == name]


def main(arguments: list[str]) -> int:
    """Print the source; return 1 if there is no such message or version, else 0."""
    match arguments:
        case ["show", name, number] if number.isdecimal():
            version = int(number)
        case _:
            sys.stderr.write(_USAGE)
            return 1
    classes = [cls for cls in _messages_of(name) if version in spec_of(cls).versions]
    for cls in classes:
        for source in (decoder_source(cls, version), encoder_source(cls, version)):
            sys.stdout.write(f"# {source.title}\n{source.text()}\n")
    if not classes:
        sys.stderr.write(f"no message {name} in version {version}\n")
    return 0 if classes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
