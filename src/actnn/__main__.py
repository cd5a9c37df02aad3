"""``python -m actnn``."""

import sys

from actnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
