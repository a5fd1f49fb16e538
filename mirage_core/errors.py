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
