"""`python -m secure_fl` is `secure-fl`, for where the command is not on the path."""

from __future__ import annotations

from secure_fl.cli.main import main

if __name__ == "__main__":
    main()
