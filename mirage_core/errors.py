"""MIRAGE's exceptions.  The name says whose fault it is; the message says what to change.

MirageError
  ConfigError          the operator's: a setting, a path, a size
    UnsupportedError   the operator's: a model, version or option that MIRAGE refuses by name
  MisuseError          the caller's: an operation that the contract forbids (a bug in MIRAGE)
    OwnershipError     a page would get a second owner, or lose its only one
  DeviceError          the machine's: the kernel or driver refused
    OutOfPagesError    fewer free pages than asked for
  TransferError        the machine's: a fetch failed or its bytes do not match their checksum
  LinkError            the peer's: agent or engine is gone, silent, or speaks another protocol
    ProtocolError      a message that cannot be read, or that has no place in the conversation
  StoreError           the metadata store's, or the way to it
    StoreUnreachableError  no answer; what was asked for may or may not have been done
    StoreAuthError     wrong user or password, or a user without the rights that MIRAGE needs
    StoreRefusedError  the server answers, but refuses to write (out of memory, disk error)
    NotReplicatedError written, but not confirmed by enough replicas
    SchemaError        the store was written by another version of MIRAGE
    HistoryLostError   the store is behind what this process has seen of it
    StaleRevisionError a record is not at the revision that the writer expected
    RequestReusedError a request id was used before for something else
    FencedError        the writer is no longer the leader
    OutOfRangeError    changes after the position asked for are kept no longer

"Cannot now" is not an exception: it is a value with a reason (``memory.outcome.Refused``).
"""


class MirageError(Exception):
    """Root of all errors that MIRAGE raises on purpose."""


class ConfigError(MirageError):
    """A setting is wrong; the message names it and says what to change."""


class UnsupportedError(ConfigError):
    """A model, version or option that MIRAGE does not support, refused by name."""


class MisuseError(MirageError):
    """The caller broke a contract; nothing was changed."""


class OwnershipError(MisuseError):
    """A page would have two owners, or none."""


class DeviceError(MirageError):
    """The kernel or the driver refused an operation; nothing was changed."""


class OutOfPagesError(DeviceError):
    """Fewer free pages than asked for."""


class TransferError(MirageError):
    """A unit's bytes could not be brought to the device as they are in the host copy."""


class LinkError(MirageError):
    """The other side of a link is gone or silent."""


class ProtocolError(LinkError):
    """The other side sent what the protocol does not allow."""


class StoreError(MirageError):
    """The metadata store did not do what was asked."""


class StoreUnreachableError(StoreError):
    """No answer from the store; whether it did what was asked is unknown, so ask again."""


class StoreAuthError(StoreError):
    """The store refuses this user, or denies it a command; the message says what to change."""


class StoreRefusedError(StoreError):
    """The store answers but takes no writes; nothing was changed."""


class NotReplicatedError(StoreError):
    """Too few replicas confirmed a write; repeat it with the same request to learn more."""


class SchemaError(StoreError):
    """The store's data are of another version."""


class HistoryLostError(StoreError):
    """The store is empty, or behind what was seen of it; nothing was changed."""


class StaleRevisionError(StoreError):
    """A record is not at the expected revision; nothing was changed.

    actual_revision  of the record; 0 if it does not exist
    """

    def __init__(self, kind: str, name: str, actual_revision: int) -> None:
        state = f"at revision {actual_revision}" if actual_revision else "absent"
        super().__init__(f"{kind}/{name} is {state}: read it again and repeat the change")
        self.kind = kind
        self.name = name
        self.actual_revision = actual_revision


class RequestReusedError(StoreError):
    """The request id stands for another request; nothing was changed."""


class FencedError(StoreError):
    """Another leader was elected, or the lease has ended; nothing was changed."""


class OutOfRangeError(StoreError):
    """The history after the position asked for is kept no longer; start from a snapshot."""
