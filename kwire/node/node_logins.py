"""The log-in of this node at others; loaded only if they ask for one."""

from random import Random

from kwire.configs.sasl import Account
from kwire.net.node_login import NodeLogin
from kwire.security.scram import BY_NAME


def make_login(account: Account, random: Random) -> NodeLogin:
    """Return the log-in with an account of the configuration."""
    return NodeLogin(
        account.user, account.password, BY_NAME.get(account.mechanism), random.randbytes
    )
