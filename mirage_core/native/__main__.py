"""``python -m mirage_core.native`` builds the native library ahead of its first use."""

import sys

from mirage_core.errors import ConfigError
from mirage_core.native import library


def main() -> int:
    try:
        library.load()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(library.build_folder())
    return 0


if __name__ == "__main__":
    sys.exit(main())
