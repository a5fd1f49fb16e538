"""The Lua scripts and the names of keys: all that this version of MIRAGE writes to Redis.

Every key holds the cluster's name in braces, so Redis Cluster keeps them in one slot, which is
what lets one script see them all.

    meta              hash: schema, incarnation, revision, event, retired, replays
    lease             string with an expiry: "epoch holder address"
    kinds             set of kinds
    records:KIND      hash: name -> "revision unix_ms len(actor)\\n" actor payload
    index:KIND        sorted set of the names, all with score 0: pages in the order of bytes
    observed:KIND, observed-index:KIND   the same for observations, values as they are
    changes           stream; the id of an entry is its revision
    events            stream; the id of an entry is its sequence
    request:ID        string with an expiry: "revision fingerprint"
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

SCHEMA = 1
"""Of all of the above; raise it with each change that an older MIRAGE would misread."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of keys of one cluster."""

    cluster: str

    def _key(self, name: str) -> str:
        return f"{{mirage:{self.cluster}}}:{name}"

    @property
    def meta(self) -> str:
        return self._key("meta")

    @property
    def lease(self) -> str:
        return self._key("lease")

    @property
    def kinds(self) -> str:
        return self._key("kinds")

    @property
    def changes(self) -> str:
        return self._key("changes")

    @property
    def events(self) -> str:
        return self._key("events")

    @property
    def scratch(self) -> str:
        return self._key("scratch")

    def records(self, kind: str) -> str:
        return self._key(f"records:{kind}")

    def index(self, kind: str) -> str:
        return self._key(f"index:{kind}")

    def observed(self, kind: str) -> str:
        return self._key(f"observed:{kind}")

    def observed_index(self, kind: str) -> str:
        return self._key(f"observed-index:{kind}")

    def request(self, id: str) -> str:
        return self._key(f"request:{id}")


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str


def load_script(name: str) -> Script:
    """The script ``lua/NAME.lua`` with the prelude before it."""
    folder = resources.files("cluster.store") / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("prelude", name))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_COMMANDS = (
    "evalsha script|load ping hello auth select wait info config|get time"
    " get set del exists pttl hget hset hmget hdel hincrby zadd zrem zrangebylex sadd smembers"
    " xadd xrange xrevrange xread"
)


def acl_rules(cluster: str) -> str:
    """Rules of ``ACL SETUSER``, without a password, for a user who may do what a controller of one
    cluster does and no more; migration and import also need +watch +multi +exec."""
    return f"~{{mirage:{cluster}}}:* " + " ".join(f"+{each}" for each in _COMMANDS.split())
