"""Write ``infra/compose.env`` from its example, with a random secret for every empty value: once, for its owner alone.

Run it with any Python 3. A file that is there already is left as it is, since volumes were made with its secrets.
"""

import base64
import os
import sys
from pathlib import Path
from secrets import token_bytes, token_hex


def value(name: str) -> str:
    """Return a new secret: a Fernet key (32 bytes, URL-safe base64), else 64 hexadecimal digits."""
    return base64.urlsafe_b64encode(token_bytes(32)).decode() if name == "FERNET_KEY" else token_hex(32)


def main(file: Path) -> None:
    """Write the file, or say that it is there."""
    lines = Path(__file__).with_name("compose.env.example").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    text = "".join(f"{name}={given or value(name)}\n" for name, _, given in pairs)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.exit(f"{file} is there already, and the volumes know its secrets; remove both to begin anew")
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    print(f"wrote {file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("compose.env"))
