"""Images that a server keeps, only where it was told to."""

import hashlib
import io
from pathlib import Path

from PIL import Image

from tulip_ood.data.decoding import FORMATS
from tulip_ood.network.files import appear

__all__ = ["keep_image"]


def keep_image(folder: Path, content: bytes) -> str:
    """Write an image as it came, under a name made of its content; equal ones are kept once.

    Example:
        >>> import tempfile
        >>> file = io.BytesIO()
        >>> Image.new("L", (2, 2)).save(file, "PNG")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     name = keep_image(Path(folder), file.getvalue())
        ...     name == keep_image(Path(folder), file.getvalue()), name[-4:]
        (True, '.png')
    """
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        kind = (image.format or "image").lower()
    name = f"{hashlib.sha256(content).hexdigest()[:32]}.{kind}"
    target = folder / name
    if not target.exists():
        appear(target, lambda partial: partial.write_bytes(content))
    return name
