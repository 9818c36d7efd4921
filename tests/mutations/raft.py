"""Mistakes in the metadata quorum and in what connects its nodes."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="count-strangers-in-check-quorum",
        invariants=(44,),
        path="kwire/raftmeta/progress.py",
        old="replica = role.replicas.get(_key_of(state, role, node.id))\n"
        "        if replica is not None and",
        new="replica = max(\n"
        "            (r for r in role.replicas.values() if r.key.id == node.id),\n"
        "            key=lambda r: r.fetched_at,\n"
        "            default=None,\n"
        "        )\n"
        "        if replica is not None and",
        test="tests/raftmeta/test_check_quorum.py",
    ),
)
