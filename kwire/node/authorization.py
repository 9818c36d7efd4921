"""Supplies a node's authorizer with the ACLs in the metadata; loaded only with an authorizer."""

from kwire.configs.authorizer import AuthorizerConfig
from kwire.drive import Slices
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.security.acls import STEP_ACLS
from kwire.security.authorizer import Authorizer, IndexChange


def make_authorizer(config: AuthorizerConfig, publisher: MetadataPublisher) -> Authorizer:
    """Return an authorizer whose ACLs follow the metadata."""
    authorizer = Authorizer(config.users, config.allow_everyone_if_no_acl_found)

    async def follow(delta: MetadataDelta) -> None:
        """Apply changed ACLs in slices; all of them come into force at once."""
        if not delta.acls and authorizer.is_loaded:
            return
        change = IndexChange(authorizer.index)
        before, after = delta.before, delta.after
        slices = Slices()
        for count, acl_id in enumerate(delta.acls, 1):
            old, new = before.acls.get(acl_id), after.acls.get(acl_id)
            if old is not None and old not in after.acl_ids:
                change.remove(old)
            if new is not None:
                change.add(new)
            if count % STEP_ACLS == 0:
                await slices.pause()
        authorizer.replace_index(change.finish())

    publisher.add_applier(follow)
    return authorizer
