"""The schemas of a registry: by id, and by the versions of their subjects.

Pure. Rules: equal schemas have the same id in all subjects. A version number is never reused.
Deletions are permanent: there is no soft deletion.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from kwire.testing.registry import errors
from kwire.testing.registry.compatibility import LEVELS, Schema, check_schema, incompatibilities
from kwire.testing.registry.errors import RegistryError

LATEST: Final = "latest"
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
_WRITABLE: Final = ("READWRITE", "IMPORT")
GLOBAL: Final = ""
"""The key of the level and mode that apply to subjects without their own."""


@attrs.define(eq=False, repr=False)
class Subject:
    """The versions of one subject."""

    versions: dict[int, int] = attrs.field(factory=dict)
    """The id of each version's schema; the newest version is the last."""
    last: int = 0


@attrs.define(eq=False, repr=False)
class Subjects:
    """All schemas and subjects, the levels of compatibility, and the modes."""

    schemas: dict[int, Schema] = attrs.field(factory=dict)
    subjects: dict[str, Subject] = attrs.field(factory=dict)
    levels: dict[str, str] = attrs.field(factory=lambda: {GLOBAL: "BACKWARD"})
    modes: dict[str, str] = attrs.field(factory=lambda: {GLOBAL: "READWRITE"})

    # Schemas --------------------------------------------------------------------------------
    def store(self, subject: str, schema: Schema, schema_id: int | None = None) -> int:
        """Store a schema as the newest version of a subject, unchecked; return its id."""
        if schema_id is None:
            schema_id = self._id_of(schema)
        if schema_id is None:
            schema_id = max(self.schemas, default=0) + 1
        self.schemas.setdefault(schema_id, schema)
        entry = self.subjects.setdefault(subject, Subject())
        if schema_id not in entry.versions.values():
            entry.last += 1
            entry.versions[entry.last] = schema_id
        return schema_id

    def register(self, subject: str, schema: Schema) -> int:
        """Store a schema if it is compatible with its subject's versions; return its id."""
        check_schema(schema)
        schema_id = self._id_of(schema)
        entry = self.subjects.get(subject)
        if schema_id is not None and entry is not None and schema_id in entry.versions.values():
            return schema_id
        if self.mode(subject) not in _WRITABLE:
            raise RegistryError(errors.NOT_PERMITTED, f"Subject {subject} is in read-only mode")
        level = self.level(subject)
        reasons = incompatibilities(level, schema, self._history(subject))
        if reasons:
            raise RegistryError(
                errors.INCOMPATIBLE,
                "Schema being registered is incompatible with an earlier schema for subject "
                f'"{subject}", details: [{"; ".join(reasons)}], compatibility: {level}',
            )
        return self.store(subject, schema)

    def lookup(self, subject: str, schema: Schema) -> int:
        """Return the version of a subject that has this schema."""
        check_schema(schema)
        versions = self.subject(subject).versions
        for version, schema_id in versions.items():
            if self.schemas[schema_id].canonical == schema.canonical:
                return version
        raise RegistryError(errors.NO_SCHEMA, "Schema not found")

    def schema(self, schema_id: int) -> Schema:
        if schema_id not in self.schemas:
            raise RegistryError(errors.NO_SCHEMA, f"Schema {schema_id} not found")
        return self.schemas[schema_id]

    def places(self, schema_id: int) -> list[tuple[str, int]]:
        """Return the subjects and versions that use a schema."""
        self.schema(schema_id)
        return [
            (name, version)
            for name, entry in self.subjects.items()
            for version, of_version in entry.versions.items()
            if of_version == schema_id
        ]

    def _id_of(self, schema: Schema) -> int | None:
        same = (i for i, each in self.schemas.items() if each.canonical == schema.canonical)
        return next(same, None)

    # Versions -------------------------------------------------------------------------------
    def subject(self, name: str) -> Subject:
        entry = self.subjects.get(name)
        if entry is None:
            raise RegistryError(errors.NO_SUBJECT, f"Subject '{name}' not found.")
        return entry

    def version(self, subject: str, text: str) -> int:
        """Return the number of a version, given as a number or as ``latest``."""
        versions = self.subject(subject).versions
        if text in (LATEST, "-1"):
            return max(versions)
        if not text.isdecimal() or not int(text):
            raise RegistryError(
                errors.INVALID_VERSION,
                f"The specified version '{text}' is not a valid version id. Allowed values are "
                'between [1, 2^31-1] and the string "latest"',
            )
        if int(text) not in versions:
            raise RegistryError(errors.NO_VERSION, f"Version {text} not found.")
        return int(text)

    def delete_version(self, subject: str, version: int) -> None:
        versions = self.subject(subject).versions
        del versions[version]
        if not versions:
            del self.subjects[subject]

    def with_references(self, schema: Schema) -> Schema:
        """Return a schema with the texts of the schemas to which it refers."""
        texts: list[str] = []
        for _, subject, version in schema.references:
            number = self.version(subject, str(version))
            other = self.schema(self.subject(subject).versions[number])
            texts += [text for text in (*other.referenced, other.text) if text not in texts]
        return schema._replace(referenced=tuple(texts))

    # Compatibility --------------------------------------------------------------------------
    def reasons_against(self, subject: str, schema: Schema, version: int | None) -> list[str]:
        """Return why a schema is incompatible with a version of a subject, or with the subject."""
        check_schema(schema)
        history = self._history(subject)
        if version is not None:
            history = [self.schema(self.subject(subject).versions[version])]
        return incompatibilities(self.level(subject), schema, history)

    def _history(self, subject: str) -> Sequence[Schema]:
        entry = self.subjects.get(subject, Subject())
        return [self.schemas[schema_id] for schema_id in entry.versions.values()]

    def level(self, subject: str) -> str:
        return self.levels.get(subject, self.levels[GLOBAL])

    def mode(self, subject: str) -> str:
        return self.modes.get(subject, self.modes[GLOBAL])

    def set_level(self, subject: str, level: str) -> None:
        if level not in LEVELS:
            raise RegistryError(
                errors.INVALID_LEVEL,
                f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}",
            )
        self.levels[subject] = level

    def set_mode(self, subject: str, mode: str) -> None:
        if mode not in MODES:
            raise RegistryError(
                errors.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(MODES)}"
            )
        self.modes[subject] = mode
