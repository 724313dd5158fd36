"""Files of the data sets: where they are looked for, their checksums, and the cache they are fetched to.

Files are looked for in $FEDBIAD_DATA, then in the user's cache directory, compressed (.gz) or raw; the checksum of the
uncompressed content is verified whenever a file is read.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path

import platformdirs

from fedbiad.errors import DataError
from fedbiad.files import write_atomically

DIRECTORIES = {
    "mnist": "mnist", "fmnist": "fashion-mnist", "ptb": "ptb", "wikitext2": "wikitext-2", "reddit": "reddit",
}  # fmt: skip
FILES: dict[str, dict[str, str]] = {  # SHA-256 of the uncompressed content
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fmnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    "ptb": {
        "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    },
    "wikitext2": {
        "wiki.train.tokens": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "wiki.valid.tokens": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "wiki.test.tokens": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
    "reddit": {
        "reddit_college_top200.jsonl": "d5db928b266d3714b434c50726448735414768b99945669c5fe00366215db91f",
        "reddit_pushshift_2005-12_2006-03_top200.jsonl": (
            "b8f3e1d906e5e17c657fb5ef89eabc7e2b3730a7275d6c15e6dfe88a74780efa"
        ),
    },
}


def cache_directory(name: str) -> Path:
    """Where `fedbiad data fetch` puts a data set's files."""
    return Path(platformdirs.user_cache_dir("fedbiad")) / "data" / DIRECTORIES[name]


def directories(name: str) -> list[Path]:
    """Where a data set's files are looked for, in this order."""
    own = os.environ.get("FEDBIAD_DATA")
    return [*([Path(own) / DIRECTORIES[name]] if own else []), cache_directory(name)]


def locate(name: str, file: str) -> Path:
    """The first copy of a file, compressed or raw; an error that says where was looked if there is none."""
    for directory in directories(name):
        for path in (directory / f"{file}.gz", directory / file):
            if path.is_file():
                return path
    looked = ", ".join(map(str, directories(name)))
    raise DataError(
        f"{name}: {file} not found, looked in {looked}; run `fedbiad data fetch {name}` "
        "or point FEDBIAD_DATA at a directory that has it"
    )


def matches(name: str, file: str, content: bytes) -> bool:
    """Whether the uncompressed content of a file has the known checksum."""
    return hashlib.sha256(content).hexdigest() == FILES[name][file]


def read_file(name: str, file: str) -> bytes:
    """The uncompressed, verified content of the first copy of a file."""
    path = locate(name, file)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, path, f"cannot be read: {error}") from error
    if not matches(name, file, content):
        raise _damaged(name, path, "checksum of the content differs")
    return content


def stored(name: str, file: str) -> bool:
    """Whether the cache directory has a file, compressed and intact."""
    try:
        return matches(name, file, gzip.decompress((cache_directory(name) / f"{file}.gz").read_bytes()))
    except (OSError, EOFError, zlib.error):
        return False


def store(name: str, file: str, content: bytes) -> None:
    """Put a file into the cache directory as a whole: interrupted, it leaves the old one as it was."""
    path = cache_directory(name) / f"{file}.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, gzip.compress(content, compresslevel=6, mtime=0))


def _damaged(name: str, path: Path, reason: str) -> DataError:
    """The error for a file that is there but not as it should be, with the way to mend it."""
    # Fetching mends the cache only; a bad file in FEDBIAD_DATA would go on hiding the good one.
    first = "" if path.parent == cache_directory(name) else "remove it, then "
    return DataError(f"{path} is damaged ({reason}); {first}run `fedbiad data fetch {name} --force`")
